"""Notify a container's program that its lease will end, so that it can save its work; withdraw notices."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.instructions import NotifyContainer
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.lease import (
    Active,
    Idleness,
    Lease,
    Notice,
    NoticeKind,
)
from gpushared.domain.model.units import format_wait


def notify(lease: Lease, notice: Notice, draft: Draft) -> Lease:
    """Notify the program once: by a file in the container, and by the signal that the request named."""
    if lease.notice == notice:
        return lease
    changed = replace(lease, notice=notice)
    is_idle = notice.kind is NoticeKind.IDLE
    ends = "" if is_idle else f" that it ends in {format_wait(notice.until - draft.now)}"
    changed = draft.put(changed.note(draft.now, f"told{ends}: {notice.text}"))
    draft.do(NotifyContainer(lease.id))
    return changed


def withdraw(lease: Lease, draft: Draft, only: NoticeKind | None = None) -> Lease:
    """Withdraw the notice, because the lease does not end after all; ``only`` limits this to one kind."""
    if lease.notice is None or only not in (None, lease.notice.kind):
        return lease
    draft.do(NotifyContainer(lease.id))
    return replace(lease, notice=None)


def notify_of_expiry(draft: Draft) -> None:
    """Notify the leases whose time is nearly up."""
    for lease in list(draft.leases.values()):
        ends = lease.expires_at
        if ends is None or not isinstance(lease.state, Active):
            continue
        if lease.notice is not None and lease.notice.kind is not NoticeKind.IDLE:
            continue
        notice_seconds = min(draft.rules.notice_seconds, (ends - lease.state.since) / 2)
        if draft.now < ends and ends - draft.now <= notice_seconds:
            notify(lease, Notice(NoticeKind.EXPIRES, ends, "its time limit is near"), draft)


def awake(lease: Lease, draft: Draft) -> Lease:
    """Return the lease as one that is not idle, without its idle notice."""
    draft.resting.pop(lease.id, None)
    lease = withdraw(lease, draft, NoticeKind.IDLE)
    return replace(lease, idleness=Idleness())
