"""Which end of a container a request asks for, by the Docker Engine API."""

from __future__ import annotations

from gpushared.domain.stopping import KILL, AskedEnd
from gpushared.gate.target import Target


def asked_end(method: str, target: Target) -> AskedEnd | None:
    """What a stop, restart, kill or removal asks for; None for a removal that ends nothing."""
    if method == "DELETE":
        return KILL if target.flag("force") else None
    if target.path.endswith("/kill"):
        return AskedEnd(target.get("signal") or "KILL", kill=False)
    return asked_stop(target)


def asked_stop(target: Target) -> AskedEnd:
    """The stop that a stop or a restart asks for. What is no number the engine takes for none, or refuses."""
    try:
        grace = int(target.get("t"))
    except ValueError:
        grace = None
    return AskedEnd(target.get("signal"), grace)
