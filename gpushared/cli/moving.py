"""Take leases off their GPUs or bring them back, and wait until that is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gpushared.cli.each import each_lease
from gpushared.cli.faults import say
from gpushared.cli.waiting import Interrupted, signals_interrupt
from gpushared.client import Client, Lease
from gpushared.domain.model.errors import StateConflict

MOVES = {
    "suspending": "its GPU memory is being moved to the host",
    "resuming": "its GPU memory is being moved back",
}
"""The states in which a lease is on its way, and what happens there."""
QUIET_SECONDS = 2.0
POLL_SECONDS = 30.0


def each_moved(names: Iterable[str], work: Callable[[str], str]) -> int:
    """Do work on each lease as ``each_lease`` does; a signal ends the command, but not the daemon's work."""
    try:
        with signals_interrupt():
            return each_lease(names, work)
    except Interrupted as end:
        say("the daemon goes on without this command", hint="`gpushare ps` shows how far it is")
        return end.exit_code


def moved(client: Client, lease: Lease) -> Lease:
    """Return the lease once its move is over; tell the user of a long move."""
    quiet_until: float | None = time.monotonic() + QUIET_SECONDS
    while lease.state in MOVES:
        if quiet_until is not None and time.monotonic() >= quiet_until:
            say(f"{lease.id} is {lease.state}: {MOVES[lease.state]}")
            quiet_until = None
        seconds = POLL_SECONDS if quiet_until is None else QUIET_SECONDS
        lease = client.wait(lease.id, lease.token, timeout_seconds=seconds)
    return lease


def not_so(client: Client, lease: Lease, wanted: str) -> StateConflict:
    """Return the error for a lease in another state than wanted; its story's newest line has the reason."""
    story = client.explain(lease.id).story
    why = f": {story[-1].text}" if story else ""
    return StateConflict(
        f"{lease.id} is {lease.state}, not {wanted}{why}", hint=f"its story: gpushare why {lease.id}"
    )
