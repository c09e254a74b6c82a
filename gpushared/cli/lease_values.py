"""Read the values of a lease's options, docker's own for CPU and memory among them, before the daemon is asked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from gpushared.cli.errors import wrong_values
from gpushared.client.submit_parameters import LEASE_PARAMETERS
from gpushared.domain.model.errors import RequestError
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.cli.docker_args import RunArguments

_SIZES = ("gpu", "gpu_memory", "gpu_compute")
_ANY_SIZE = "1"
_MAX_PROJECT = 64
_MAX_DIGITS = 9
_NOT_READ = frozenset({"preset", "immediate", "held", "requeue", "begin_at", "ends_with_caller"})
"""The daemon reads none of them as text, and knows alone what a preset is."""
_CPUS = r"\d{1,6}(?:\.\d{1,9})?|\.\d{1,9}"
_MICROSECONDS = r"\d{1,12}"
_MEMORY = r"(\d{1,18}(?:\.\d{1,9})?) ?([kmgtp]?)(?:i?b)?"
"""Compiled where they are needed: most commands say nothing of the host."""
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
DEFAULT_PERIOD = "100000"
"""Docker's, in microseconds, where only ``--cpu-quota`` is given."""


def check_values(values: Mapping[str, object]) -> None:
    """Raise UsageError where a value makes no sense on any machine.

    ``values``: the keyword arguments of ``Client.request``. What a preset adds, only the daemon knows.
    """
    if _are_plain(values):
        return
    from gpushared.domain.model.request_spec import RequestSpec, read_request

    texts = {name: _text(values[name]) for name in RequestSpec.__dataclass_fields__ if name in values}
    texts["preset"] = ""
    if not any(texts.get(name) for name in _SIZES):
        texts["gpu"] = _ANY_SIZE
    try:
        read_request(RequestSpec(**texts), {})
    except RequestError:
        for name, text in texts.items():
            size = {} if name in _SIZES else {"gpu": _ANY_SIZE}
            if text:
                with wrong_values(option_of(name)):
                    read_request(RequestSpec(**size, **{name: text}), {})
        with wrong_values():  # each value makes sense, and all of them together make none
            raise


def option_of(name: str) -> str:
    """Return ``--away-from`` for the keyword argument ``away_from``."""
    options = {parameter.argument: parameter.option for parameter in LEASE_PARAMETERS}
    return "--" + options.get(name, name.replace("_", "-"))


def _are_plain(values: Mapping[str, object]) -> bool:
    """Return True for common values that are valid beside any other values.

    To read all values as the daemon does takes longer to import than the rest of ``gpushare run``.
    """
    texts = ((name, _text(value)) for name, value in values.items() if name not in _NOT_READ)
    return all(not text or (name in _PLAIN and _PLAIN[name](text)) for name, text in texts)


def _is_plain_gpu(text: str) -> bool:
    """Return True for ``1`` to ``9``, and ``0.01`` to ``0.99``."""
    whole, dot, part = text.partition(".")
    digits = part if dot and whole == "0" and len(part) <= 2 else "" if dot else whole  # noqa: PLR2004 - places
    return digits.isascii() and digits.isdigit() and int(digits) > 0 and len(whole) == 1


def _is_plain_time(text: str) -> bool:
    """Return True for ``1s`` to ``99d``."""
    number = text[:-1]
    return text[-1] in "smhd" and len(number) in {1, 2} and number.isascii() and number.strip("0").isdigit()


def _is_number(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()


_PLAIN: Mapping[str, Callable[[str], bool]] = {
    "gpu": _is_plain_gpu,
    "time": _is_plain_time,
    "lease_class": lambda text: text in {"build", "train", "infer"},
    "project": lambda text: len(text) <= _MAX_PROJECT,
    "host_cpu_milli": _is_number,
    "host_memory_bytes": lambda text: text.isdigit() and len(text) <= _MAX_DIGITS + 3,
}


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return str(value or "")


def cpu_milli(args: RunArguments) -> int:
    """Return thousandths of a core by ``--cpus`` or ``--cpu-quota``; 0 if neither is a number."""
    cpus = args.value("cpus")
    if cpus:
        return math.ceil(float(cpus) * 1000) if re.fullmatch(_CPUS, cpus, re.ASCII) else 0
    quota, period = args.value("cpu-quota"), args.value("cpu-period") or DEFAULT_PERIOD
    if not quota or not all(re.fullmatch(_MICROSECONDS, each, re.ASCII) for each in (quota, period)):
        return 0
    if not int(period):
        return 0
    return -(-int(quota) * 1000 // int(period))


def memory_bytes(args: RunArguments) -> int:
    """Return bytes by ``--memory``, a number alone being bytes; 0 if it is no size, which docker will say."""
    memory = args.value("memory")
    match = re.fullmatch(_MEMORY, memory, re.ASCII | re.IGNORECASE) if memory else None
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()]) if match else 0
