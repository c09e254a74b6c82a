"""Who is given what now: one pass over the queue, and what a grant means for each kind of waiting lease."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.eligible import not_yet
from gpushared.domain.lease import Grant, Lease, Requeued, Reserved, Suspended
from gpushared.domain.messages import MakeEdits
from gpushared.domain.queue import Decision, decide, granted
from gpushared.domain.requeue import start_requeued, wanted_request
from gpushared.domain.state import Draft, NodeState
from gpushared.domain.suspension import resume


def grant_what_fits(draft: Draft) -> None:
    """Give what is free to those whose turn it is."""
    for decision in decisions(draft.view(), draft.now):
        if decision.grants:
            _grant(draft.leases[decision.lease], decision.grants, draft)


def decisions(state: NodeState, now: float) -> tuple[Decision, ...]:
    """What one pass over the queue says now; none when nobody waits."""
    waiting = state.waiting()
    kept = {lease.id: why for lease in waiting if (why := not_yet(lease, state.leases, now))}
    ready = [_as_placed(lease, state) for lease in waiting if lease.id not in kept]
    decided = decide(ready, state.rooms(), state.holders(), now) if ready else ()
    by_id = {decision.lease: decision for decision in decided}
    return tuple(
        replace(by_id[lease.id], position=position)
        if lease.id in by_id
        else Decision(lease.id, position, reason=kept[lease.id][0], text=kept[lease.id][1])
        for position, lease in enumerate(waiting, start=1)
    )


def _as_placed(lease: Lease, state: NodeState) -> Lease:
    request = wanted_request(lease, state)
    return lease if request is lease.request else replace(lease, request=request)


def _grant(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    match lease.state:
        case Suspended():
            resume(lease, grants, draft)
        case Requeued():
            start_requeued(_with_limit(lease, grants, draft), grants, draft)
        case _:
            names = ", ".join(f"GPU {draft.gpus[grant.gpu].label}" for grant in grants)
            reserved = Reserved(grants, draft.now, draft.now + draft.rules.claim_seconds)
            draft.move(_with_limit(lease, grants, draft), reserved, f"granted on {names}")
            draft.do(MakeEdits(lease.id))


def _with_limit(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> Lease:
    return replace(lease, expires_at=granted(lease, grants, draft.now).expires_at)
