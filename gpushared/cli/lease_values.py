"""The values of a lease's options, read before the daemon is asked or an image is pulled."""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.cli.faults import wrong_values

_SIZES = ("gpu", "gpu_memory", "gpu_compute")
_ANY_SIZE = "1"


def check_values(said: Mapping[str, object]) -> None:
    """Raise UsageError where a value makes no sense on any machine.

    ``said``: the keyword arguments of ``Client.request``. What a preset adds, only the daemon knows.
    """
    from gpushared.domain.asking import Ask, read_request

    words = {name: _word(said[name]) for name in Ask.__dataclass_fields__ if name in said}
    words["preset"] = ""
    if not any(words.get(name) for name in _SIZES):
        words["gpu"] = _ANY_SIZE
    with wrong_values():
        read_request(Ask(**words), {})


def _word(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return str(value or "")
