"""Change the time of a lease for people: holds, priorities, more time."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.events import ExtendAsked, HoldAsked, PriorityAsked
from gpushared.domain.leases.instructions import MakeEdits
from gpushared.domain.leases.node_state import Draft, waits
from gpushared.domain.leases.notice import withdraw
from gpushared.domain.leases.queue_pass import pass_over
from gpushared.domain.model.errors import (
    LimitReached,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.lease import (
    Draining,
    Ended,
    Lease,
    LeaseState,
    NoticeKind,
    Suspended,
    state_name,
)
from gpushared.domain.model.request import check_priority
from gpushared.domain.model.units import MAX_DURATION_SECONDS, format_duration
from gpushared.domain.scheduling.pass_records import NEVER


def hold(event: HoldAsked, draft: Draft) -> None:
    """Keep a waiting lease from starting, or release it; the lease keeps its place either way."""
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    _check_waits(lease)
    if event.held and not lease.held_by:
        own = event.caller.uid == lease.owner_uid
        held_lease = replace(lease, held_by=event.caller.name, held_by_admin=not own)
        draft.put(held_lease.note(draft.now, f"held by {event.caller.name}"))
    elif not event.held and lease.held_by:
        if lease.held_by_admin and not event.caller.trusted:
            raise PermissionRefused(
                f"lease {lease.id} is held by {lease.held_by}", hint="ask them, or another administrator"
            )
        free = replace(lease, held_by="", held_by_admin=False)
        draft.put(free.note(draft.now, f"let go by {event.caller.name}"))


def set_priority(event: PriorityAsked, draft: Draft) -> None:
    """Move a waiting lease among the others of its project."""
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    _check_waits(lease)
    check_priority(event.priority)
    if event.priority == lease.request.priority:
        return
    request = replace(lease.request, priority=event.priority)
    text = f"{event.caller.name} gave it the priority {event.priority}"
    draft.put(lease.with_request(request).note(draft.now, text))


def _check_waits(lease: Lease) -> None:
    if not waits(lease):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)} and does not wait",
            hint="`gpushare queue` lists those that do",
        )


def extend(event: ExtendAsked, draft: Draft) -> None:
    """Give a lease more time.

    Other leases' reservations count on the end of the lease, so only trusted callers may break those.
    """
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    if isinstance(lease.state, Draining | Ended):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)}", hint="ask for a new one with `gpushare run`"
        )
    limit = lease.request.time_limit_seconds
    if limit is None:
        raise RequestError(f"lease {lease.id} has no time limit", hint="there is nothing to extend")
    if limit + event.seconds > MAX_DURATION_SECONDS:
        raise RequestError(
            f"{format_duration(limit + event.seconds)} is too long",
            hint=f"a lease may last {format_duration(MAX_DURATION_SECONDS)}",
        )
    if lease.grants and not event.caller.trusted:
        _check_nobody_counts_on_its_end(lease, draft)
    draft.put(_longer(lease, event.seconds, event.caller.name, draft))
    if lease.grants:
        draft.do(MakeEdits(lease.id))


def _longer(lease: Lease, seconds: int, by: str, draft: Draft) -> Lease:
    limit = lease.request.time_limit_seconds
    assert limit is not None
    expires_at = None if lease.expires_at is None else lease.expires_at + seconds
    request = replace(lease.request, time_limit_seconds=limit + seconds)
    longer = replace(lease.with_request(request), expires_at=expires_at, state=_longer_state(lease, seconds))
    longer = withdraw(longer, draft, NoticeKind.EXPIRES)
    return longer.note(draft.now, f"{by} extended it by {format_duration(seconds)}")


def _longer_state(lease: Lease, seconds: int) -> LeaseState:
    """Return the lease's state with more time. The time of a suspended lease stands still in its state."""
    state = lease.state
    if isinstance(state, Suspended) and state.left_seconds is not None:
        return replace(state, left_seconds=state.left_seconds + seconds)
    return state


def _check_nobody_counts_on_its_end(lease: Lease, draft: Draft) -> None:
    gpus = {grant.gpu for grant in lease.grants}
    for reservation in pass_over(draft.view(), draft.now).reservations:
        if gpus & reservation.gpus and reservation.start_at < NEVER:
            winner = reservation.lease or reservation.project
            raise LimitReached(
                f"{winner} waits for the GPU and counts on the end of {lease.id}",
                hint="let it end and ask again, or ask an administrator to extend it",
            )
