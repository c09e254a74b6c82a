"""Choose the parts of NVIDIA's driver that a leased container gets besides CUDA, such as video. Pure.

NVIDIA's container toolkit reads the capabilities from ``NVIDIA_DRIVER_CAPABILITIES``, and fails a start over
a word that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.config.gate_settings import COMMON_DRIVER_CAPABILITIES, DRIVER_CAPABILITIES
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown

VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
ALL = "all"


def named_in(env: Sequence[str]) -> str | None:
    """Return the variable's value, None if it is not there; the engine takes the last of several.

    A bare name, which takes back the image's value, is an empty value.
    """
    found = [value for name, _, value in (entry.partition("=") for entry in env) if name == VARIABLE]
    return found[-1] if found else None


def check_driver_capabilities(env: Sequence[str], given: Sequence[str] = DRIVER_CAPABILITIES) -> None:
    """Raise if the user's variables name a capability that is unknown, or that the site does not give."""
    for word in _words(named_in(env) or ""):
        if word not in {ALL, *COMMON_DRIVER_CAPABILITIES, *DRIVER_CAPABILITIES}:
            raise RequestError(f"NVIDIA's driver has no capability {shown(word)}", hint=_hint(given))
        if word not in {ALL, *COMMON_DRIVER_CAPABILITIES, *given}:
            raise PermissionRefused(
                f"the capability {word} of NVIDIA's driver is not given here", hint=_hint(given)
            )


def driver_capabilities(named: str, given: Sequence[str] = DRIVER_CAPABILITIES) -> str:
    """Return the variable's value for a container: the named capabilities that the site gives."""
    words = _words(named)
    if ALL in words and set(given) >= set(DRIVER_CAPABILITIES):
        return ALL
    have = [*COMMON_DRIVER_CAPABILITIES, *given]
    kept = have if ALL in words else [word for word in words if word in have]
    return ",".join(kept or COMMON_DRIVER_CAPABILITIES)


def _hint(given: Sequence[str]) -> str:
    return f"name {ALL}, or some of {', '.join([*COMMON_DRIVER_CAPABILITIES, *given])}, in {VARIABLE}"


def _words(value: str) -> list[str]:
    return list(dict.fromkeys(word for part in value.split(",") if (word := part.strip())))
