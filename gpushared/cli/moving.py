"""Leases that are taken off their GPUs or brought back: a command that asks for that sees it through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gpushared.cli.each import each_lease
from gpushared.cli.faults import say
from gpushared.cli.waiting import Interrupted, signals_interrupt
from gpushared.client import Client, Lease
from gpushared.domain.errors import StateConflict

MOVES = {
    "suspending": "its GPU memory is being moved to the host",
    "resuming": "its GPU memory is being moved back",
}
"""The states in which a lease is on its way, and what happens there."""
QUIET_SECONDS = 2.0
POLL_SECONDS = 30.0


def each_moved(names: Iterable[str], work: Callable[[str], str]) -> int:
    """As ``each_lease``; a signal ends the command, and what the daemon does goes on."""
    try:
        with signals_interrupt():
            return each_lease(names, work)
    except Interrupted as end:
        say("the daemon goes on without this command", hint="`gpushare ps` shows how far it is")
        return end.exit_code


def moved(client: Client, lease: Lease) -> Lease:
    """The lease once it is not on its way any more; one that takes its time is told of."""
    quiet_until: float | None = time.monotonic() + QUIET_SECONDS
    while lease.state in MOVES:
        if quiet_until is not None and time.monotonic() >= quiet_until:
            say(f"{lease.id} is {lease.state}: {MOVES[lease.state]}")
            quiet_until = None
        seconds = POLL_SECONDS if quiet_until is None else QUIET_SECONDS
        lease = client.wait(lease.id, lease.token, timeout_seconds=seconds)
    return lease


def not_so(client: Client, lease: Lease, wanted: str) -> StateConflict:
    """It came to something else than it was asked for; the newest line of its story says why."""
    story = client.explain(lease.id).story
    why = f": {story[-1].text}" if story else ""
    return StateConflict(
        f"{lease.id} is {lease.state}, not {wanted}{why}", hint=f"its story: gpushare why {lease.id}"
    )
