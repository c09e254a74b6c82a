"""Tell the program in a container that its lease will end, so that it can save its work."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.instructions import NotifyContainer
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.lease import (
    Active,
    Failed,
    Lease,
    Notice,
    NoticeKind,
    Outcome,
    Starting,
    WithContainer,
)
from gpushared.domain.model.units import format_duration


def notify(lease: Lease, notice: Notice, draft: Draft) -> Lease:
    """Tell the program once: by a file in the container, and by the signal that the request named."""
    if lease.notice == notice:
        return lease
    told = replace(lease, notice=notice)
    left = format_duration(max(1, round(notice.until - draft.now)))
    what = "told" if notice.kind is NoticeKind.IDLE else f"told that it ends in {left}"
    told = draft.put(told.note(draft.now, f"{what}: {notice.text}"))
    draft.do(NotifyContainer(lease.id))
    return told


def withdraw(lease: Lease, draft: Draft, only: NoticeKind | None = None) -> Lease:
    """Take the notice back, since the lease does not end after all; ``only`` limits this to one kind."""
    if lease.notice is None or only not in (None, lease.notice.kind):
        return lease
    draft.do(NotifyContainer(lease.id))
    return replace(lease, notice=None)


def notify_of_expiry(draft: Draft) -> None:
    """Tell the leases whose time is nearly up."""
    for lease in list(draft.leases.values()):
        ends = lease.expires_at
        if ends is None or not isinstance(lease.state, Active):
            continue
        if lease.notice is not None and lease.notice.kind is not NoticeKind.IDLE:
            continue
        notice_seconds = min(draft.rules.notice_seconds, (ends - lease.state.since) / 2)
        if draft.now < ends and ends - draft.now <= notice_seconds:
            notify(lease, Notice(NoticeKind.EXPIRES, ends, "its time limit is near"), draft)


ENDED_BY_SOMEBODY = frozenset({137, 143})
"""These exit codes follow SIGKILL and SIGTERM. A program that met a fault ends by itself, with other
codes."""
RUN_AGAIN = "run it again; with `--restart-on-fault 3` that happens by itself"


def is_of_fault(lease: Lease, exit_code: int | None) -> bool:
    """Return True if the container ended because of the fault that the lease met."""
    return bool(lease.fault) and exit_code not in (None, 0, *ENDED_BY_SOMEBODY)


def may_start_again(lease: Lease) -> bool:
    return lease.restarts < lease.request.restart_on_fault


def outcome_of(lease: Lease, exit_code: int | None) -> Outcome:
    """Return the outcome of a lease whose container ended because of its fault."""
    times = f", after {lease.restarts} restarts for such faults" if lease.restarts else ""
    return Failed(f"its container ended with {exit_code} because {lease.fault}{times}", RUN_AGAIN)


def start_again(lease: Lease, why: str, draft: Draft, *, not_before: float) -> None:
    """Keep the lease, and start its container again as soon as the fault is over."""
    assert isinstance(lease.state, WithContainer)
    number, limit = lease.restarts + 1, lease.request.restart_on_fault
    state = Starting(lease.grants, lease.state.container, draft.now, not_before, held=True, by_node=True)
    lease = replace(lease, restarts=number, fault="", faulted_at=None)
    draft.move(lease, state, f"{why}; it is to be started again ({number} of {limit})")


def awake(lease: Lease, draft: Draft) -> Lease:
    """Return the lease as one that is not idle, with its idle notice taken back."""
    draft.resting.pop(lease.id, None)
    lease = withdraw(lease, draft, NoticeKind.IDLE)
    return replace(lease, idle_since=None, lowered=False)
