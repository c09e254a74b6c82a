"""Apply a pass over the queue: eligible requests, grants, leases that give way, and reasons to wait."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from gpushared.domain.leases.instructions import MakeEdits
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.queue_pass import pass_over
from gpushared.domain.leases.requeue import is_leaving, placement_request, preempt, start_requeued
from gpushared.domain.leases.surroundings import capacities_for, lack_of_host
from gpushared.domain.leases.suspension import resume
from gpushared.domain.model.elastic import is_elastic
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    LeaseId,
    Promised,
    Requeued,
    Reserved,
    Suspended,
)
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import size_of
from gpushared.domain.model.units import format_duration
from gpushared.domain.scheduling.outcome import (
    Decision,
    KeptGpus,
    granted,
    why_no_room,
)
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PassDecision,
    Plan,
    Preemption,
    WaitReason,
)
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacities, Reason, Refusal
from gpushared.domain.scheduling.scheduling_pass import NO_ROOM

_NOT_YET = (WaitReason.HELD, WaitReason.BEGIN_TIME, WaitReason.AFTER_LEASE)


def grant_what_fits(draft: Draft) -> float:
    """Grant the requests that the pass chose, and make the leases that the pass chose give way.

    Return when time alone may change the answer; infinite if only an event can.
    """
    state = draft.view()
    # Before the first survey after a start no GPU is known, and promised room would count as lost.
    if not state.waiting() or not state.gpus:
        return NEVER
    plan = pass_over(state, draft.now)
    for lease_id, grants in plan.grants.items():
        lease = draft.leases[lease_id]
        lease_preemption = replace(lease.preemption, promised=None, behind=plan.behind.get(lease_id, ()))
        _grant(replace(lease, preemption=lease_preemption), grants, draft)
    _drop_broken_promises(plan, draft)
    for preemption in plan.preemptions:
        _make_room(preemption, draft)
    draft.turns = plan.turns
    return plan.look_again_at


def _grant(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    match lease.state:
        case Suspended():
            resume(lease, grants, draft)
        case Requeued():
            start_requeued(_with_limit(lease, grants, draft), grants, draft)
        case _:
            names = ", ".join(f"GPU {draft.gpus[grant.gpu].label}" for grant in grants)
            reserved = Reserved(grants, draft.now, draft.now + claim_seconds(lease, draft))
            size = f": {size_of(grants)}" if is_elastic(lease.request) else ""
            draft.move(_with_limit(lease, grants, draft), reserved, f"granted on {names}{size}")
            draft.do(MakeEdits(lease.id))


def _with_limit(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> Lease:
    return replace(lease, expires_at=granted(lease, grants, draft.now).expires_at)


def _make_room(preemption: Preemption, draft: Draft) -> None:
    victims = tuple(victim.lease for victim in preemption.victims)
    winner = draft.leases[preemption.winner]
    names = ", ".join(victims)
    text = f"{names} {'gives' if len(victims) == 1 else 'give'} way to it, because {preemption.why}"
    promised = Promised(preemption.grants, victims, preemption.why, preemption.turn)
    winner = draft.put(_with_promise(winner, promised).note(draft.now, text))
    for victim in victims:
        lease = draft.leases.get(victim)
        # One victim can make room for several winners, and a reservation is over once it gave way to the first.
        if lease is not None and not is_leaving(lease):
            preempt(lease, f"{winner.id} of {winner.owner_name}, because {preemption.why}", draft)


def _with_promise(lease: Lease, promised: Promised | None) -> Lease:
    return replace(lease, preemption=replace(lease.preemption, promised=promised))


def _drop_broken_promises(plan: Plan, draft: Draft) -> None:
    """Forget room that was lost after it was promised, for example because its GPU broke."""
    for lease in list(draft.leases.values()):
        decision = plan.verdicts.get(lease.id)
        if lease.preemption.promised and decision and decision.reason is not WaitReason.PREEMPTING:
            draft.put(_with_promise(lease, None).note(draft.now, "the room that was made for it is lost"))


# --- reasons to wait -----------------------------------------------------------------------------------


def decisions(state: NodeState, now: float) -> tuple[Decision, ...]:
    """Return the result of one pass over the queue now, in the queue's order; empty if the queue is empty."""
    waiting = {lease.id: lease for lease in state.waiting()}
    if not waiting:
        return ()
    plan = pass_over(state, now)
    capacities = state.capacities()
    order = _order(plan, waiting)
    return tuple(
        _decision(waiting[lease], position, plan, capacities, state, now)
        for position, lease in enumerate(order, start=1)
    )


def _order(plan: Plan, waiting: Iterable[LeaseId]) -> list[LeaseId]:
    """Return the granted requests, then those that the pass looked at, then those that must not start yet."""
    later = [lease for lease, decision in plan.verdicts.items() if decision.reason in _NOT_YET]
    order = dict.fromkeys((*plan.grants, *(lease for lease in plan.verdicts if lease not in later), *later))
    return [*order, *(lease for lease in waiting if lease not in order)]


def _decision(
    lease: Lease, position: int, plan: Plan, capacities: FreeCapacities, state: NodeState, now: float
) -> Decision:
    if lease.id in plan.grants:
        return Decision(lease.id, position, plan.grants[lease.id])
    reservation = _reservation(lease.id, plan)
    pass_decision = plan.verdicts.get(lease.id)
    if pass_decision is None or pass_decision.reason is WaitReason.RESOURCES:
        reason, refusals, lack = _no_room(placement_request(lease, state), capacities, state)
        text = "" if pass_decision is None or pass_decision.text == NO_ROOM.text else pass_decision.text
        return Decision(lease.id, position, (), reason, refusals, reservation, lack or text)
    reason, text = Reason(pass_decision.reason), _text(lease, pass_decision, state, now)
    return Decision(lease.id, position, (), reason, (), reservation, text, lasting=pass_decision.lasting)


def _no_room(
    request: Request, capacities: FreeCapacities, state: NodeState
) -> tuple[Reason, tuple[Refusal, ...], str]:
    """Return the refusals of ``why_no_room``, and a sentence if the host has too little CPU or memory."""
    reason, refusals = why_no_room(request, capacities_for(request, capacities, state))
    lack = lack_of_host(request, state) if reason is Reason.QUEUE_ORDER else ""
    return Reason.HOST_RESOURCES if lack else reason, refusals, lack


def _text(lease: Lease, decision: PassDecision, state: NodeState, now: float) -> str:
    why = not_yet(lease, state, now) if decision.reason in _NOT_YET else None
    return decision.text if why is None else why[1]


def _reservation(lease: LeaseId, plan: Plan) -> KeptGpus | None:
    """Return the request's own reservation, else the first reservation of another request."""
    first = min(plan.reservations, key=lambda reservation: reservation.lease != lease, default=None)
    return None if first is None else KeptGpus(first.lease, first.gpus, first.start_at)


MINUTE_SECONDS = 60
"""The last minute before a begin time is counted in seconds."""


def not_yet(lease: Lease, state: NodeState, now: float) -> tuple[Reason, str] | None:
    """Return why a waiting lease must not start now, whatever is free; None if the lease may start."""
    if lease.held_by:
        return Reason.HELD, f"is held by {lease.held_by}"
    before = [LeaseId(name) for name in lease.request.after if LeaseId(name) in state.leases]
    if before:
        return Reason.AFTER_LEASE, f"starts after {', '.join(before)}"
    begin_at = state.begins_at(lease.request)
    if begin_at is not None and now < begin_at:
        step = 1 if begin_at - now < MINUTE_SECONDS else MINUTE_SECONDS
        seconds = math.ceil((begin_at - now) / step) * step
        return Reason.BEGIN_TIME, f"is to start in {format_duration(seconds)} at the earliest"
    return None


def claim_seconds(lease: Lease, draft: Draft) -> int:
    """Return how long the lease waits for its container.

    A gang waits for its other parts, and an interactive job for its owner; any other container comes at once.
    """
    attempt_log = draft.attempts.get(lease.coordinator)
    attempt = None if attempt_log is None or lease.attempt is None else attempt_log.live.get(lease.attempt)
    if attempt is None or attempt.spec is None or not (attempt.gang or attempt.spec.interactive):
        return draft.rules.claim_seconds
    return attempt.reserve_seconds
