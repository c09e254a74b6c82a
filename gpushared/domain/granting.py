"""Apply a pass over the queue: grants, leases that give way, and the reasons why the other requests wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpushared.domain.asking import size_of
from gpushared.domain.elastic import is_elastic
from gpushared.domain.eligible import not_yet
from gpushared.domain.instructions import MakeEdits
from gpushared.domain.lease import Grant, Lease, LeaseId, Promised, Requeued, Reserved, Suspended
from gpushared.domain.placement import Reason, Refusal, Rooms
from gpushared.domain.policy.passes import NEVER, Plan, Preemption, Verdict, WaitReason
from gpushared.domain.queue import Decision, Reservation, granted, why_no_room
from gpushared.domain.request import Request
from gpushared.domain.requeue import preempt, start_requeued, wanted_request
from gpushared.domain.reserving import claim_seconds
from gpushared.domain.scheduling import pass_over
from gpushared.domain.state import Draft, NodeState
from gpushared.domain.surroundings import lack_of_host, rooms_for
from gpushared.domain.suspension import resume

_NOT_YET = (WaitReason.HELD, WaitReason.BEGIN_TIME, WaitReason.AFTER_LEASE)


def grant_what_fits(draft: Draft) -> float:
    """Grant the requests that the pass chose, and make the leases that the pass chose give way.

    Return when time alone may change the answer; infinite if only an event can.
    """
    state = draft.view()
    if not state.waiting():
        return NEVER
    plan = pass_over(state, draft.now)
    for lease_id, grants in plan.grants.items():
        lease = draft.leases[lease_id]
        _grant(replace(lease, promised=None, behind=plan.behind.get(lease_id, ())), grants, draft)
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
    victims = tuple(one.lease for one in preemption.victims)
    winner = draft.leases[preemption.winner]
    names = ", ".join(victims)
    text = f"{names} {'gives' if len(victims) == 1 else 'give'} way to it, because {preemption.why}"
    promised = Promised(preemption.grants, victims, preemption.why, preemption.turn)
    winner = draft.put(replace(winner, promised=promised).note(draft.now, text))
    for victim in victims:
        to = f"{winner.id} of {winner.owner_name}, because {preemption.why}"
        preempt(draft.leases[victim], to, draft)


def _drop_broken_promises(plan: Plan, draft: Draft) -> None:
    """Forget room that was lost after it was promised, for example because its GPU broke."""
    for lease in list(draft.leases.values()):
        verdict = plan.verdicts.get(lease.id)
        if lease.promised is not None and verdict and verdict.reason is not WaitReason.PREEMPTING:
            draft.put(replace(lease, promised=None).note(draft.now, "the room that was made for it is lost"))


# --- why the others wait -------------------------------------------------------------------------------


def decisions(state: NodeState, now: float) -> tuple[Decision, ...]:
    """Return the result of one pass over the queue now, in the queue's order; empty if nobody waits."""
    waiting = {lease.id: lease for lease in state.waiting()}
    if not waiting:
        return ()
    plan = pass_over(state, now)
    rooms = state.rooms()
    order = _order(plan, waiting)
    return tuple(
        _decision(waiting[lease], position, plan, rooms, state, now)
        for position, lease in enumerate(order, start=1)
    )


def _order(plan: Plan, waiting: Iterable[LeaseId]) -> list[LeaseId]:
    """Return the granted requests, then those that the pass looked at, then those that must not start yet."""
    later = [lease for lease, verdict in plan.verdicts.items() if verdict.reason in _NOT_YET]
    known = dict.fromkeys((*plan.grants, *(one for one in plan.verdicts if one not in later), *later))
    return [*known, *(lease for lease in waiting if lease not in known)]


def _decision(
    lease: Lease, position: int, plan: Plan, rooms: Rooms, state: NodeState, now: float
) -> Decision:
    if lease.id in plan.grants:
        return Decision(lease.id, position, plan.grants[lease.id])
    kept = _reservation(lease.id, plan)
    verdict = plan.verdicts.get(lease.id)
    if verdict is None or verdict.reason is WaitReason.RESOURCES:
        reason, refusals, lack = _no_room(wanted_request(lease, state), rooms, state)
        return Decision(lease.id, position, (), reason, refusals, kept, lack)
    return Decision(
        lease.id, position, (), Reason(verdict.reason), (), kept, _text(lease, verdict, state, now)
    )


def _no_room(request: Request, rooms: Rooms, state: NodeState) -> tuple[Reason, tuple[Refusal, ...], str]:
    """Return the refusals of ``why_no_room``, and a sentence if it is the host that has too little."""
    reason, refusals = why_no_room(request, rooms_for(request, rooms, state))
    lack = lack_of_host(request, state) if reason is Reason.QUEUE_ORDER else ""
    return Reason.HOST_RESOURCES if lack else reason, refusals, lack


def _text(lease: Lease, verdict: Verdict, state: NodeState, now: float) -> str:
    why = not_yet(lease, state, now) if verdict.reason in _NOT_YET else None
    return verdict.text if why is None else why[1]


def _reservation(lease: LeaseId, plan: Plan) -> Reservation | None:
    """Return the request's own reservation, else the first reservation of another request."""
    ordered = sorted(plan.reservations, key=lambda one: one.lease != lease)
    return next((Reservation(one.lease, one.gpus, one.start_at) for one in ordered), None)
