"""Find the end of a container that a request asks for, by the Docker Engine API."""

from __future__ import annotations

from gpushared.domain.leases.stop_order import KILL, AskedEnd
from gpushared.gate.target import Target


def asked_end(method: str, target: Target) -> AskedEnd | None:
    """Return the end that a stop, restart, kill or removal asks for; None for a removal that ends nothing."""
    if method == "DELETE":
        return KILL if target.flag("force") else None
    if target.path.endswith("/kill"):
        return AskedEnd(target.get("signal") or "KILL", kill=False)
    return asked_stop(target)


def asked_stop(target: Target) -> AskedEnd:
    """Return the stop of a stop or restart. The engine ignores a grace that is no number, or refuses it."""
    try:
        grace = int(target.get("t"))
    except ValueError:
        grace = None
    return AskedEnd(target.get("signal"), grace)
