"""List leases, the ended ones page by page, and explain when each part of a lease's new size takes effect."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from gpushared.api.v1 import leases_pb2
from gpushared.domain.leases.node_rules import Action
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import (
    ComputeCap,
    Ended,
    Grant,
    Lease,
    LeaseState,
    MemoryWall,
    Outcome,
    Queued,
    Requeued,
    Reserved,
    state_name,
)
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import format_memory, format_percent, shown
from gpushared.ports import EngineFacts, Journal, PastLeases
from gpushared.storage.records import kind_of

MAX_LISTED = 1000
LISTED = 50
ENDED = kind_of(Ended)
LIVE_STATES = frozenset(kind_of(state) for state in get_args(LeaseState)) - {ENDED}
OUTCOMES = frozenset(map(kind_of, get_args(Outcome)))
ON_GPU = {MemoryWall.NONE, MemoryWall.WATCHDOG, MemoryWall.WHOLE_GPU}
"""These walls need no setting of a process."""


@dataclass(frozen=True, slots=True)
class LeasePage:
    """Hold the leases of one answer. ``more`` further leases match, and ``next_token`` leads to them."""

    leases: list[Lease]
    more: int = 0
    next_token: str = ""


async def list_leases(message: leases_pb2.ListLeasesRequest, state: NodeState, journal: Journal) -> LeasePage:
    """List leases that are not over in the order of their requests, then ended leases, the newest first.

    Raises RequestError for a wrong state, time or page token.
    """
    _check_states(message.states)
    live = [] if message.page_token else _live(message, state)
    if not _wants_past(message):
        return LeasePage(live)
    query = _past(message, state)
    limit = min(max(message.limit, 0) or LISTED, MAX_LISTED)
    over, more = await journal.past(query, limit)
    over_ids = {lease.id for lease in over}
    leases = [*(lease for lease in live if lease.id not in over_ids), *over]
    return LeasePage(leases, more, _token(over[-1]) if over and more else "")


def _check_states(states: Iterable[str]) -> None:
    valid_states = LIVE_STATES | OUTCOMES | {ENDED}
    for state in states:
        if state not in valid_states:
            raise RequestError(
                f"{shown(state)} is no state of a lease",
                hint=f"the states: {', '.join(sorted(valid_states))}",
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
    return PastLeases(since, message.user, outcomes, _read_token(message.page_token))


def _token(lease: Lease) -> str:
    assert isinstance(lease.state, Ended), "pages are of leases that are over"
    return f"{lease.state.at!r}:{lease.sequence}"


def _read_token(token: str) -> tuple[float, int] | None:
    """Return the time and number at which the page before ended. Raises RequestError."""
    if not token:
        return None
    if not re.fullmatch(r"\d{1,12}\.\d{1,20}:\d{1,18}", token):
        raise RequestError("this page token is none of ours", hint="leave it out to begin anew")
    at, _, sequence = token.partition(":")
    return float(at), int(sequence)


def resize_effects(before: Lease, after: Lease, state: NodeState, facts: EngineFacts | None) -> list[str]:
    """Describe the change from ``before`` to ``after``; ``facts`` tell what a container's restart changes."""
    if (before.request, before.grants) == (after.request, after.grants):
        return ["nothing changed: it has this size already"]
    if isinstance(after.state, Queued | Requeued):
        return [f"asked for now: {describe(after.request)}; it keeps its place in the queue"]
    return list(_effects(before, after, state, facts))


def _effects(before: Lease, after: Lease, state: NodeState, facts: EngineFacts | None) -> Iterator[str]:
    yield f"booked now: {'; '.join(_booked(grant, state) for grant in after.grants)}"
    if not before.grants or isinstance(after.state, Reserved):
        yield "limits: those of its container, when it is created"
        return
    if _memory(before) != _memory(after):
        yield _watchdog(after, state)
        if after.walls is not None and after.walls.memory_wall is MemoryWall.DRIVER:
            yield f"driver memory limit now: {_memory(after)} for all that the container runs"
        if _is_limited_by_mps(before):
            yield f"MPS memory limit: {_by_process(_memory(after), facts)}"
    if _compute(before) != _compute(after):
        if before.walls is not None and before.walls.compute_cap is ComputeCap.MPS_PERCENTAGE:
            yield f"thread percentage: {_by_process(_compute(after), facts)}"
        else:
            yield "compute: booked, and held by nothing"
    if before.walls is not None and before.walls.memory_wall is MemoryWall.MPS_SERVER:
        yield "MPS server: one that runs keeps the limits it was started with; a process gets the lower ones"
    if after.walls is not None and after.walls != before.walls:
        yield f"walls now: {after.walls.memory_wall} for memory, {after.walls.compute_cap} for compute"


def _is_limited_by_mps(lease: Lease) -> bool:
    """Return True if the limits of MPS apply to the lease's processes.

    Beside a limit of the driver's they apply if MPS caps the compute.
    """
    if lease.walls is None or lease.walls.memory_wall in ON_GPU:
        return False
    through_mps = lease.walls.compute_cap is ComputeCap.MPS_PERCENTAGE
    return through_mps or lease.walls.memory_wall is not MemoryWall.DRIVER


def _booked(grant: Grant, state: NodeState) -> str:
    index = state.gpus[grant.gpu].index if grant.gpu in state.gpus else grant.gpu
    compute = format_percent(grant.compute_permille)
    more = f" (and up to {format_percent(grant.ceiling_permille)}% where it is free)"
    burst = more if grant.ceiling_permille > grant.compute_permille else ""
    return f"{format_memory(grant.memory_bytes)} and {compute}% of the compute{burst} on GPU {index}"


def _watchdog(lease: Lease, state: NodeState) -> str:
    policy = state.rules.watchdog[lease.request.lease_class]
    action = "warns" if policy.action is Action.WARN else "ends the container"
    return f"watchdog now: {action} beyond {_memory(lease)} and its tolerance"


def _by_process(new: str, facts: EngineFacts | None) -> str:
    """Explain from when on processes get the new limits.

    Processes read their limits when they begin, from variables of the container or the gate.
    """
    text = f"what runs, and what that starts, keeps its own; `docker exec` through this daemon gets {new}"
    if facts is None:
        return text
    if facts.lease_devices:
        return f"{text}, and so does the container when it is restarted"
    return (
        f"{text}, but not the container when it is restarted: its settings are those it was created with, "
        f"and once stopped it is started again with the size of then"
    )


def _memory(lease: Lease) -> str:
    return " and ".join(dict.fromkeys(format_memory(grant.memory_bytes) for grant in lease.grants))


def _compute(lease: Lease) -> str:
    """Return the percentage of a process, which has one for all its GPUs, the smallest."""
    return f"{format_percent(min(grant.ceiling_permille for grant in lease.grants))}%"
