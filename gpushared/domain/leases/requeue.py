"""Make leases give way to others: take them off their GPUs, or notify, stop and queue them again.

The steps, the mildest first; each lease shows which step applies to it (``step_of``):

1. ``suspend``: if a CUDA checkpoint works, the container is frozen and its GPU memory moved to the host.
2. ``requeue``: its program is notified (see ``notice``), the container is stopped when the notice is over,
   and it is started again, from its beginning, when there is room.
3. ``stop``: the same without the start, for a container that is removed when it ends or whose output
   somebody is attached to.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gpushared.domain.leases.events import PreemptAsked
from gpushared.domain.leases.instructions import MakeEdits
from gpushared.domain.leases.lifecycle import drain, end_early
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.notice import notify
from gpushared.domain.leases.suspension import suspend, why_not
from gpushared.domain.model.elastic import as_held
from gpushared.domain.model.errors import PermissionRefused, StateConflict
from gpushared.domain.model.lease import (
    Active,
    Draining,
    Grant,
    Lease,
    Notice,
    NoticeKind,
    Paused,
    Preempted,
    Requeued,
    Reserved,
    Starting,
    Suspended,
    Suspending,
    state_name,
)
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.pass_records import NEVER


class PreemptionStep(StrEnum):
    """Name the step that makes a lease give way."""

    SUSPEND = "suspend"
    REQUEUE = "requeue"
    STOP = "stop"


def step_of(lease: Lease, state: NodeState) -> PreemptionStep:
    """Return the mildest step that is possible for this lease."""
    if isinstance(lease.state, Active) and not why_not(lease, state):
        return PreemptionStep.SUSPEND
    return PreemptionStep.REQUEUE if lease.preemption.requeues else PreemptionStep.STOP


def can_give_way(lease: Lease, state: NodeState) -> bool:
    """Return False if nobody but an administrator can make the lease give way, even when it is idle."""
    policy = state.policy
    if policy.lossless_only and step_of(lease, state) is not PreemptionStep.SUSPEND:
        return False
    return policy.classes[lease.request.lease_class].min_run_seconds < NEVER


def preempt_asked(event: PreemptAsked, draft: Draft) -> None:
    """Make a lease give way on an administrator's order."""
    if not event.caller.trusted:
        raise PermissionRefused(
            "only trusted callers may preempt leases", hint="be root, or in the docker group"
        )
    lease = draft.find(event.lease)
    draft.answer = lease.id
    if not isinstance(lease.state, Reserved | Starting | Active | Paused):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)}", hint="`gpushare ps` lists those that run"
        )
    if not is_leaving(lease):
        preempt(lease, event.caller.name, draft)


def is_leaving(lease: Lease) -> bool:
    """Return True if the lease's GPUs come free without more being done."""
    notified = lease.notice is not None and lease.notice.kind is NoticeKind.PREEMPTED
    return notified or isinstance(lease.state, Draining | Suspending)


def preempt(lease: Lease, by: str, draft: Draft) -> None:
    """Let a lease give way; ``by`` names the winner, for the lease's story."""
    why = f"gives way to {by}"
    if isinstance(lease.state, Reserved):
        end_early(lease, Preempted(by), why, draft)
        return
    step = step_of(lease, draft.view())
    lease = replace(lease, preemption=replace(lease.preemption, count=lease.preemption.count + 1))
    if step is PreemptionStep.SUSPEND:
        suspend(lease, why, draft, wanted=True)
        return
    anew = lease.preemption.begun_anew + 1
    lease = replace(lease, preemption=replace(lease.preemption, begun_anew=anew))
    until = draft.now + draft.rules.preempt_notice_seconds
    after = (
        "and starts again when there is room"
        if step is PreemptionStep.REQUEUE
        else "and is not started again"
    )
    notify(lease, Notice(NoticeKind.PREEMPTED, until, f"{why}, {after}"), draft)
    stop_notified(draft)


def stop_notified(draft: Draft) -> None:
    """Stop the leases whose notice is over."""
    for lease in list(draft.leases.values()):
        notice = lease.notice
        if notice is None or notice.kind is not NoticeKind.PREEMPTED or draft.now < notice.until:
            continue
        if isinstance(lease.state, Starting | Active | Paused):
            outcome = Preempted(notice.text, requeue=lease.preemption.requeues)
            drain(lease, outcome, "its notice is over", draft, grace_seconds=draft.rules.stop_grace_seconds)


# --- back in the queue ---------------------------------------------------------------------------------


def start_requeued(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    """Start the container of a queued lease again, by the node itself, since there is room."""
    state = lease.state
    assert isinstance(state, Requeued)
    to = Starting(grants, state.container, draft.now, draft.now, held=True, by_node=True)
    draft.move(lease, to, "there is room for it again")
    draft.do(MakeEdits(lease.id))


def placement_request(lease: Lease, state: NodeState) -> Request:
    """Return the request by which a waiting lease is to be placed.

    A lease that had its GPUs before may be bound to them: a suspended lease always, and one whose settings
    the engine cannot change any more.
    """
    match lease.state:
        case Suspended(held=grants, left_seconds=left_seconds):
            limit = None if left_seconds is None else int(left_seconds)
            # A suspended lease never gave back its memory on the host.
            return replace(as_held(lease.request, grants), time_limit_seconds=limit, host_memory_bytes=None)
        case Requeued(held=grants) if not state.means.binds_late:
            return as_held(lease.request, lease.created_grants or grants)
        case _:
            return lease.request
