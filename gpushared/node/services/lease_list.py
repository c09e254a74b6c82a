"""List leases: the leases that are not over in one piece, and the others page by page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from gpushared.api.v1 import leases_pb2
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import Ended, Lease, LeaseState, Outcome, state_name
from gpushared.domain.model.units import shown
from gpushared.ports import Journal, PastLeases
from gpushared.storage.records import kind_of

MAX_LISTED = 1000
LISTED = 50
ENDED = kind_of(Ended)
LIVE_STATES = frozenset(kind_of(state) for state in get_args(LeaseState)) - {ENDED}
OUTCOMES = frozenset(map(kind_of, get_args(Outcome)))


@dataclass(frozen=True, slots=True)
class Listed:
    """Hold the leases of one answer. ``more`` further leases match, and ``next_token`` leads to them."""

    leases: list[Lease]
    more: int = 0
    next_token: str = ""


async def listed(message: leases_pb2.ListLeasesRequest, state: NodeState, journal: Journal) -> Listed:
    """List leases that are not over in the order of their requests, then ended leases, the newest first.

    Raises RequestError for a wrong state, time or page token.
    """
    _check_states(message.states)
    live = [] if message.page_token else _live(message, state)
    if not _wants_past(message):
        return Listed(live)
    which = _past(message, state)
    limit = min(max(message.limit, 0) or LISTED, MAX_LISTED)
    over, more = await journal.past(which, limit)
    found = {lease.id for lease in over}
    leases = [*(lease for lease in live if lease.id not in found), *over]
    return Listed(leases, more, _token(over[-1]) if over and more else "")


def _check_states(states: Iterable[str]) -> None:
    known = LIVE_STATES | OUTCOMES | {ENDED}
    for state in states:
        if state not in known:
            raise RequestError(
                f"{shown(state)} is no state of a lease", hint=f"the states: {', '.join(sorted(known))}"
            )


def _live(message: leases_pb2.ListLeasesRequest, state: NodeState) -> list[Lease]:
    return [
        lease
        for lease in state.leases.values()
        if message.user in {"", lease.owner_name}
        and (not message.states or state_name(lease.state) in message.states)
    ]


def _wants_past(message: leases_pb2.ListLeasesRequest) -> bool:
    if message.states:
        return bool((OUTCOMES | {ENDED}).intersection(message.states))
    return message.ended


def _past(message: leases_pb2.ListLeasesRequest, state: NodeState) -> PastLeases:
    if not math.isfinite(message.since):
        raise RequestError("the time since when is no number", hint="give seconds since the epoch")
    outcomes = frozenset() if ENDED in message.states else OUTCOMES.intersection(message.states)
    since = message.since - state.ahead_seconds if message.since else 0.0
    return PastLeases(since, message.user, outcomes, _place(message.page_token))


def _token(lease: Lease) -> str:
    assert isinstance(lease.state, Ended), "pages are of leases that are over"
    return f"{lease.state.at!r}:{lease.sequence}"


def _place(token: str) -> tuple[float, int] | None:
    """Return the time and number at which the page before ended. Raises RequestError."""
    if not token:
        return None
    if not re.fullmatch(r"\d{1,12}\.\d{1,20}:\d{1,18}", token):
        raise RequestError("this page token is none of ours", hint="leave it out to begin anew")
    at, _, sequence = token.partition(":")
    return float(at), int(sequence)
