"""Run one pass over the queue: the grants, the leases that give way, and the reasons of those that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from statistics import fmean

from gpushared.domain.model.lease import LeaseId
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.long_runs import sunk, sunk_holder
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PassDecision,
    PendingRequest,
    Plan,
    Preemption,
    RunningLease,
)
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.queue_order import (
    ProjectQueue,
    RequestLine,
    project_queues,
    reason_to_hold_back,
)
from gpushared.domain.scheduling.scheduling_pass import SchedulingPass
from gpushared.domain.scheduling.use_over_time import Usage

DRAIN_REST = 0.5
"""After a drain the next one waits for this part of ``drain_seconds``."""


def plan(
    waiting: Iterable[PendingRequest],
    holders: Sequence[RunningLease] | HolderIndex,
    capacity: CapacityPort,
    usage: Usage,
    policy: Policy,
    now: float,
    *,
    under_way: Sequence[Preemption] = (),
    turns: Mapping[str, float] | None = None,
) -> Plan:
    """Run one pass. The decisions are booked in ``capacity``: callers that still need it hand in a copy.

    ``under_way``: preemptions of earlier passes whose winners still wait. A winner starts as soon as its
    victims have left; until then its place is kept, whatever happens around it. ``holders``: all holders, or
    an index that the caller keeps for this policy, where only the priorities of long runs sink.
    """
    if not isinstance(holders, HolderIndex):
        holders = HolderIndex(policy, capacity, [sunk_holder(holder, policy, now) for holder in holders])
    holder_index, next_sinks_at = holders, holders.sink(now)
    scheduling_pass = SchedulingPass(holder_index, usage, capacity, turns or {}, now)
    scheduling_pass.wake(next_sinks_at)
    requests = sorted((sunk(candidate, policy) for candidate in waiting), key=attrgetter("lease.sequence"))
    _finish_preemptions(under_way, requests, holder_index.leaving, scheduling_pass)
    scheduling_pass.keep_fixed()
    ready = _ready_requests(requests, scheduling_pass)
    queues = project_queues(ready, policy, scheduling_pass.turns, now)
    scheduling_pass.quota_usage.waiting = queues.keys()
    _drain_a_host(ready, scheduling_pass)
    _reserve_turns(queues, scheduling_pass)
    _serve_claims(queues, scheduling_pass)
    _serve_long_waits(queues, scheduling_pass)
    _serve_the_rest(_left_over(queues, scheduling_pass), scheduling_pass)
    return Plan(
        scheduling_pass.grants,
        tuple(scheduling_pass.preemptions),
        scheduling_pass.verdicts,
        tuple(scheduling_pass.reservations),
        scheduling_pass.turns,
        scheduling_pass.behind,
        scheduling_pass.look_again_at,
        scheduling_pass.fixed(),
    )


def _finish_preemptions(
    under_way: Sequence[Preemption],
    requests: Sequence[PendingRequest],
    still: Mapping[LeaseId, RunningLease],
    scheduling_pass: SchedulingPass,
) -> None:
    """Grant the winners whose victims have left, and keep the places of the other winners.

    ``still``: the leases that leave. A victim that has left may hold GPUs again, somewhere else: nobody waits
    for that.
    """
    waiting = {candidate.lease.id: candidate for candidate in requests}
    for preemption in under_way:
        winner = waiting.get(preemption.winner)
        if winner is not None:
            staying = [still[victim.lease] for victim in preemption.victims if victim.lease in still]
            scheduling_pass.finish(winner, preemption, staying)


def _ready_requests(
    requests: Iterable[PendingRequest], scheduling_pass: SchedulingPass
) -> list[PendingRequest]:
    """Return the requests that the pass may look at."""
    ready = []
    for candidate in requests:
        if scheduling_pass.is_done(candidate.lease.id):
            continue
        decision = reason_to_hold_back(candidate, scheduling_pass.now)
        if decision is None:
            ready.append(candidate)
            continue
        scheduling_pass.verdicts[candidate.lease.id] = decision
        if candidate.begin_at is not None:
            scheduling_pass.wake(candidate.begin_at)
    return ready


def _drain_a_host(ready: Collection[PendingRequest], scheduling_pass: SchedulingPass) -> None:
    """Drain a host for the request that has waited longest, if it waits too long.

    After a request that waited so long has started, the next one waits for ``DRAIN_REST`` of that time.
    """
    drain_seconds = scheduling_pass.policy.drain_seconds
    due = [candidate for candidate in ready if candidate.since + drain_seconds <= scheduling_pass.now]
    rests_until = _rests_until(scheduling_pass) if due else -NEVER
    if scheduling_pass.now < rests_until:
        scheduling_pass.wake(rests_until)
        return
    for candidate in sorted(due, key=attrgetter("since", "lease.sequence")):
        if scheduling_pass.reserve_drain(candidate):
            return
    next_since = min(
        (candidate.since for candidate in ready if candidate.since + drain_seconds > scheduling_pass.now),
        default=NEVER,
    )
    scheduling_pass.wake(next_since + drain_seconds)


def _rests_until(scheduling_pass: SchedulingPass) -> float:
    """Return until when no host is drained, because a request has started that waited so long."""
    drain_seconds = scheduling_pass.policy.drain_seconds
    ends = (
        holder.started_at + DRAIN_REST * drain_seconds
        for holder in scheduling_pass.quota_usage.holder_index.holders()
        if holder.started_at - holder.lease.created_at >= drain_seconds
    )
    return max(ends, default=-NEVER)


def _reserve_turns(queues: Mapping[str, ProjectQueue], scheduling_pass: SchedulingPass) -> None:
    """Keep GPUs for the projects' next turns, those of the least use first."""
    for project in sorted(queues, key=lambda name: (scheduling_pass.quota_usage.fair(name), name)):
        turn = queues[project].turn
        if turn is not None:
            scheduling_pass.reserve_turn(turn)
        scheduling_pass.wake(queues[project].turn_due_at)


def _serve_claims(queues: Mapping[str, ProjectQueue], scheduling_pass: SchedulingPass) -> None:
    """Serve requests within their project's guarantee, the emptiest guarantee first."""
    promised = [name for name in queues if scheduling_pass.policy.project(name).is_guaranteed_something]
    heap = [(scheduling_pass.quota_usage.filled(name), name) for name in promised]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        if _serve_a_claim(queues[name], scheduling_pass):
            heappush(heap, (scheduling_pass.quota_usage.filled(name), name))


def _serve_a_claim(queue: ProjectQueue, scheduling_pass: SchedulingPass) -> bool:
    """Serve one request that is within its project's guarantee and has room; return False without one."""
    while (line := queue.first()) is not None:
        candidate = line.candidates[0]
        models = scheduling_pass.quota_usage.claims(candidate, scheduling_pass.capacity)
        placement = scheduling_pass.place_claim(candidate, models) if models else None
        if placement is None:
            scheduling_pass.note_unmet(queue.drop(), guaranteed=bool(models))
            continue
        scheduling_pass.book(candidate, placement, turn=candidate is queue.turn)
        queue.advance()
        return True
    return False


def _serve_long_waits(queues: Mapping[str, ProjectQueue], scheduling_pass: SchedulingPass) -> None:
    """Start requests for several GPUs that have waited for the patience where they fit, the oldest first.

    A host is seldom empty, so a request that fits only there must not lose the host to requests that fit
    elsewhere too. Projects that used more than the average do without. Only the oldest request of each line is
    looked at.
    """
    names = {*queues, *scheduling_pass.quota_usage.holder_index.projects()}
    average = fmean(map(scheduling_pass.quota_usage.fair, names)) if names else 0.0
    oldest = [
        min(line.candidates, key=attrgetter("since"))
        for queue in queues.values()
        for line in queue.lines()
        if line.candidates[0].lease.request.gpu_count > 1
    ]
    for candidate in sorted(oldest, key=attrgetter("since", "lease.sequence")):
        if candidate.since + scheduling_pass.policy.patience_seconds > scheduling_pass.now:
            break
        placement = (
            scheduling_pass.place_at_once(candidate)
            if scheduling_pass.quota_usage.fair(candidate.project) <= average
            else None
        )
        if placement is not None:
            scheduling_pass.book(candidate, placement, turn=candidate is queues[candidate.project].turn)


def _left_over(
    queues: Mapping[str, ProjectQueue], scheduling_pass: SchedulingPass
) -> Mapping[str, ProjectQueue]:
    """Return the queue without the requests that were served; only projects with a claim had any."""
    for name, queue in queues.items():
        if scheduling_pass.policy.project(name).is_guaranteed_something:
            queue.restore()
            queue.find_turn(
                scheduling_pass.turns.get(name, -NEVER), scheduling_pass.policy, scheduling_pass.now
            )
    return {name: queue for name, queue in queues.items() if queue.heap}


def _serve_the_rest(queues: Mapping[str, ProjectQueue], scheduling_pass: SchedulingPass) -> None:
    """Serve all other requests, by fair share."""
    heap = [(scheduling_pass.quota_usage.fair(name), name) for name in queues]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        queue = queues[name]
        _serve_one(queue, scheduling_pass)
        if queue.heap:
            heappush(heap, (scheduling_pass.quota_usage.fair(name), name))


def _serve_one(queue: ProjectQueue, scheduling_pass: SchedulingPass) -> None:
    """Serve the project's turn, or else its first request; a refusal drops all of the request's line."""
    turn, queue.turn = queue.turn, None
    if turn is not None and scheduling_pass.is_done(turn.lease.id):
        turn = None
    line = queue.first()
    assert line is not None
    candidate = turn or line.candidates[0]
    if turn is None and scheduling_pass.is_done(candidate.lease.id):
        queue.advance()
        return
    answer = scheduling_pass.place_ordinary(candidate, turn=turn is not None)
    if not isinstance(answer, PassDecision):
        scheduling_pass.book(candidate, answer, turn=turn is not None)
    elif turn is not None:
        scheduling_pass.verdicts[candidate.lease.id] = answer
    else:
        _refuse(queue.drop(), answer, scheduling_pass)


def _refuse(line: RequestLine, decision: PassDecision, scheduling_pass: SchedulingPass) -> None:
    for candidate in line.candidates:
        if candidate.lease.id not in scheduling_pass.grants:
            scheduling_pass.verdicts.setdefault(candidate.lease.id, decision)
