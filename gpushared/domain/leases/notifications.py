"""Derive from a lease's state the events that its owner, its project and the site are told.

Each event stands in the state for as long as anybody may have to be told of it: ``standing`` yields all of
them, and an event that was told before is recognised by its occasion. So an event is told once, and an event
that a crash kept from being told is told after the restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from gpushared.domain.leases.node_machine import NOBODY
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import Gpu, GpuId, gpu_label
from gpushared.domain.model.lease import (
    Active,
    Ended,
    Expired,
    Failed,
    Finished,
    Grant,
    Idle,
    Lease,
    NeverClaimed,
    NoticeKind,
    Outcome,
    OutsideMps,
    OverLimit,
    Paused,
    Preempted,
    Requeued,
    Starting,
    Stopped,
    Suspended,
    Suspending,
    outcome_kind,
)
from gpushared.domain.model.notification import GpuPart, KnownEvents, Notification, NotificationKind
from gpushared.domain.model.request_spec import size_of
from gpushared.domain.model.units import format_duration, format_wait

GPU_SUBJECT = "gpu "


@dataclass(frozen=True, slots=True)
class _Event:
    kind: NotificationKind
    occasion: str
    at: float
    text: str


def of_lease(
    lease: Lease, state: NodeState, now: float, sent_events: KnownEvents, *, soon_seconds: float
) -> tuple[Notification, ...]:
    """Return the events of a lease that were not told yet.

    ``soon_seconds``: the lease's end is told this long before its time limit, at most half of the limit.
    """
    events = [*_standing(lease, state.gpus), *_resumed(lease, sent_events)]
    if (soon := _ends_soon(lease, now, soon_seconds)) is not None:
        events.append(soon)
    return tuple(
        _notification(lease, event, state)
        for event in events
        if (event.kind, event.occasion) not in sent_events
    )


def of_gpus(state: NodeState, sent_events: Mapping[str, KnownEvents]) -> tuple[Notification, ...]:
    """Return the failures of GPUs that were not told yet."""
    kind, notifications = NotificationKind.GPU_UNHEALTHY, []
    for gpu_id, drained in sorted(state.drained.items()):
        subject, occasion = f"{GPU_SUBJECT}{gpu_id}", _moment(drained.since)
        if not drained.sick or (kind, occasion) in sent_events.get(subject, ()):
            continue
        label = gpu_label(gpu_id, state.gpus)
        text = f"GPU {label} {drained.reason}; it gets no new leases until it is undrained"
        notifications.append(Notification(kind, subject, occasion, drained.since, text))
    return tuple(notifications)


# --- the events of a lease -----------------------------------------------------------------------------


def _standing(lease: Lease, gpus: Mapping[GpuId, Gpu]) -> Iterator[_Event]:
    kind, label, state = NotificationKind, f"{lease.id} of {lease.owner_name}", lease.state
    if _was_granted(lease):
        since = lease.created_at if lease.held_since is None else lease.held_since
        yield _Event(kind.GRANTED, "", since, f"{label} has its part of {_gpu_text(lease, gpus)}")
    if count := lease.preemption.count:
        yield _Event(kind.GIVES_WAY, str(count), _gives_way_at(lease), f"{label} {_way(lease)}")
    if isinstance(state, Suspended | Requeued):
        yield _Event(kind.PAUSED, _moment(state.since), state.since, f"{label} {_pause(state)}")
    if (over := lease.health.over_since) is not None:
        text = f"{label} uses more GPU memory than it holds"
        yield _Event(kind.OVER_LIMIT, f"memory {_moment(over)}", over, text)
    if (outside := lease.health.outside_since) is not None:
        text = f"{label} has a process that uses a GPU without MPS, where nothing holds it to its part"
        yield _Event(kind.OVER_LIMIT, f"mps {_moment(outside)}", outside, text)
    if (idle := lease.idleness.since) is not None and isinstance(state, Active | Paused):
        yield _Event(kind.IDLE, _moment(idle), idle, f"{label} {_rest(lease)}")
    if isinstance(state, Ended) and _end_is_told(lease, state.outcome):
        yield _Event(kind.ENDED, "", state.at, f"{label} ended: {outcome_text(state.outcome)}")


def _was_granted(lease: Lease) -> bool:
    """Return True if the lease has held parts of GPUs, now or earlier."""
    if lease.grants or lease.created_grants:
        return True
    return isinstance(lease.state, Ended) and bool(lease.state.grants)


def _end_is_told(lease: Lease, outcome: Outcome) -> bool:
    """Return False for a lease that left the queue by the wish of its own client."""
    if _was_granted(lease) or not isinstance(outcome, Stopped):
        return True
    return outcome.by not in {lease.owner_name, NOBODY}


def _gives_way_at(lease: Lease) -> float:
    return lease.state.at if isinstance(lease.state, Ended) else lease.state.since


def _way(lease: Lease) -> str:
    if isinstance(lease.state, Suspending | Suspended):
        return "has to give way: it is taken off its GPUs and comes back when there is room"
    again = (
        "starts again from its beginning when there is room"
        if lease.preemption.requeues
        else "is not started again"
    )
    return f"has to give way: it is stopped and {again}"


def _pause(state: Suspended | Requeued) -> str:
    if isinstance(state, Requeued):
        return "was stopped and starts again when there is room"
    if state.wanted:
        return "is off its GPUs and goes on when there is room"
    return "is off its GPUs until `gpushare resume` brings it back"


def _rest(lease: Lease) -> str:
    notice = lease.notice
    if notice is not None and notice.kind is NoticeKind.IDLE:
        return f"is idle: {notice.text}"
    return "is idle: it does no work on its GPUs"


def _resumed(lease: Lease, sent_events: KnownEvents) -> Iterator[_Event]:
    """Yield the end of each pause that was told, once the lease is back on its GPUs."""
    if not isinstance(lease.state, Starting | Active | Paused):
        return
    for kind, occasion in sorted(sent_events):
        if kind is NotificationKind.PAUSED:
            text = f"{lease.id} of {lease.owner_name} is back on its GPUs"
            yield _Event(NotificationKind.RESUMED, occasion, lease.state.since, text)


def _ends_soon(lease: Lease, now: float, soon_seconds: float) -> _Event | None:
    ends, limit = lease.expires_at, lease.request.time_limit_seconds
    if ends is None or limit is None or not isinstance(lease.state, Starting | Active | Paused):
        return None
    before = min(soon_seconds, limit / 2)
    if not 0 < ends - now <= before:
        return None
    text = f"{lease.id} of {lease.owner_name} ends in {format_wait(ends - now)}, at its time limit"
    return _Event(NotificationKind.ENDS_SOON, _moment(ends), ends - before, text)


def _moment(at: float) -> str:
    return f"{at:.3f}"


# --- the texts -----------------------------------------------------------------------------------------


def outcome_text(outcome: Outcome) -> str:
    """Write an outcome without names; the reason of a failure may name an image or the lease of another user."""
    match outcome:
        case Finished(code, start_error):
            return "its container could not be started" if start_error else f"exit code {code}"
        case Stopped():
            return "it was stopped"
        case Expired():
            return "its time limit was reached"
        case NeverClaimed():
            return "no container was started in time"
        case OverLimit():
            return "it used more GPU memory than it held"
        case OutsideMps():
            return "its process used a GPU without MPS, which holds it to its part"
        case Preempted():
            return "it gave way to others"
        case Idle(seconds):
            return f"it did nothing on its GPUs for {format_duration(seconds)}"
        case Failed():
            return "it failed, and `gpushare why` tells its owner the reason"
        case unreachable:
            assert_never(unreachable)


def _notification(lease: Lease, event: _Event, state: NodeState) -> Notification:
    grants = lease.state.grants if isinstance(lease.state, Ended) else lease.grants or lease.created_grants
    notification = Notification(
        event.kind,
        lease.id,
        event.occasion,
        event.at,
        event.text,
        lease=lease.id,
        job="" if lease.attempt is None else lease.attempt.job,
        owner=lease.owner_name,
        owner_uid=lease.owner_uid,
        project=lease.payer,
        lease_class=lease.request.lease_class,
        gpus=tuple(_part(grant, state.gpus) for grant in grants),
        ends_at=lease.expires_at,
        container=lease.container_name,
        image=lease.image,
        targets=_targets(lease, event.kind),
    )
    if event.kind is not NotificationKind.ENDED or not isinstance(lease.state, Ended):
        return notification
    outcome = lease.state.outcome
    code = outcome.exit_code if isinstance(outcome, Finished) and not outcome.start_error else None
    return replace(notification, outcome=outcome_kind(outcome), exit_code=code)


OF_COORDINATOR = frozenset({NotificationKind.GRANTED, NotificationKind.ENDED})


def _targets(lease: Lease, kind: NotificationKind) -> tuple[str, ...]:
    """Return the targets of the request; the pool tells them that its job begins and ends."""
    return () if lease.coordinator and kind in OF_COORDINATOR else lease.request.notify


def _part(grant: Grant, gpus: Mapping[GpuId, Gpu]) -> GpuPart:
    return GpuPart(gpu_label(grant.gpu, gpus), grant.memory_bytes, grant.compute_permille)


def _gpu_text(lease: Lease, gpus: Mapping[GpuId, Gpu]) -> str:
    grants = lease.grants or lease.created_grants
    if isinstance(lease.state, Ended):
        grants = lease.state.grants or grants
    names = " and ".join(dict.fromkeys(f"GPU {gpu_label(grant.gpu, gpus)}" for grant in grants)) or "a GPU"
    return f"{names}: {size_of(grants)}" if grants else names
