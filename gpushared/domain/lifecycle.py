"""From container to end: what each sight of a container means for its lease, draining, deadlines."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.lease import (
    Active,
    Draining,
    Ended,
    Finished,
    Lease,
    NeverClaimed,
    Outcome,
    Paused,
    Reserved,
    Starting,
    Stopped,
    WithContainer,
)
from gpushared.domain.messages import (
    Condition,
    ContainerSeen,
    DropEdits,
    GpusSampled,
    InspectContainer,
    SampleGpus,
    StopContainer,
)
from gpushared.domain.state import Draft


def seen(event: ContainerSeen, draft: Draft) -> None:
    """Apply what the engine says of a container; containers without a live lease are no matter of ours."""
    lease = draft.view().of_container(event.container) or _bind(event, draft)
    if lease is None:
        return
    match lease.state:
        case Starting() as state:
            _seen_starting(lease, state, event, draft)
        case Active() | Paused():
            _seen_up(lease, event, draft)
        case Draining() as state:
            _seen_draining(lease, state, event, draft)
        case _:
            pass


def _bind(event: ContainerSeen, draft: Draft) -> Lease | None:
    """A daemon that died between a create and its note finds the container by its label."""
    lease = draft.view().of_device(event.device_name) if event.device_name else None
    if lease is None or not isinstance(lease.state, Reserved) or event.condition is Condition.GONE:
        return None
    lease = replace(lease, container_name=event.name, image=event.image)
    to = Starting(lease.grants, event.container, draft.now, draft.now + draft.rules.start_seconds)
    return draft.move(lease, to, f"container {event.name or event.container[:12]} was found")


def _seen_starting(lease: Lease, state: Starting, event: ContainerSeen, draft: Draft) -> None:
    match event.condition:
        case Condition.RUNNING if not state.held:
            draft.move(lease, Active(state.grants, state.container, draft.now), "the container runs")
        case Condition.PAUSED if not state.held:
            lease = draft.move(lease, Active(state.grants, state.container, draft.now), "the container runs")
            draft.move(lease, Paused(state.grants, state.container, draft.now), "the container is paused")
        case Condition.CREATED if not state.held:
            if state.deadline is None or draft.now >= state.deadline:
                _drain_exited(lease, NeverClaimed(), "the container was not started in time", draft)
        case Condition.EXITED if not state.held:
            _drain_exited(lease, _finished(event), _exit_text(event), draft)
        case Condition.GONE:
            _drain_exited(lease, _finished(event), _exit_text(event), draft)
        case _:
            pass


def _seen_up(lease: Lease, event: ContainerSeen, draft: Draft) -> None:
    container = event.container
    match event.condition:
        case Condition.RUNNING if isinstance(lease.state, Paused):
            draft.move(lease, Active(lease.grants, container, draft.now), "the container goes on")
        case Condition.PAUSED if isinstance(lease.state, Active):
            draft.move(lease, Paused(lease.grants, container, draft.now), "the container is paused")
        case Condition.RESTARTING:
            why = f"the container ended with {event.exit_code}; its restart policy starts it again"
            draft.move(lease, Starting(lease.grants, container, draft.now, None), why)
        case Condition.EXITED | Condition.GONE:
            _drain_exited(lease, _finished(event), _exit_text(event), draft)
        case _:
            pass


def _seen_draining(lease: Lease, state: Draining, event: ContainerSeen, draft: Draft) -> None:
    if event.condition in (Condition.EXITED, Condition.GONE, Condition.CREATED) and not state.exited:
        draft.move(lease, replace(state, exited=True, since=draft.now), "the container has ended")
        draft.do(SampleGpus())


def _finished(event: ContainerSeen) -> Outcome:
    return Stopped("removal of the container") if event.exit_code is None else Finished(event.exit_code)


def _exit_text(event: ContainerSeen) -> str:
    return (
        "the container is gone" if event.exit_code is None else f"the container ended with {event.exit_code}"
    )


def _drain_exited(lease: Lease, outcome: Outcome, why: str, draft: Draft) -> None:
    assert isinstance(lease.state, WithContainer)
    to = Draining(lease.grants, lease.state.container, draft.now, outcome, exited=True, retry_at=draft.now)
    draft.move(lease, to, why)
    draft.do(SampleGpus())


def drain(lease: Lease, outcome: Outcome, why: str, draft: Draft, *, grace_seconds: int) -> None:
    """End a lease that has a container: the container first, then its memory. A drain under way goes on."""
    assert isinstance(lease.state, WithContainer)
    if isinstance(lease.state, Draining):
        return
    container = lease.state.container
    retry_at = draft.now + grace_seconds + draft.rules.stop_retry_seconds
    to = Draining(lease.grants, container, draft.now, outcome, exited=False, retry_at=retry_at)
    draft.move(lease, to, why)
    draft.do(StopContainer(lease.id, container, grace_seconds))


def watch_deadlines(draft: Draft, *, sample: GpusSampled | None) -> None:
    """Look after leases that should have moved on by themselves."""
    for lease in list(draft.leases.values()):
        match lease.state:
            case Draining(exited=True) as state if sample is not None:
                if _memory_is_back(lease, state, sample):
                    draft.move(lease, Ended(state.outcome, draft.now, state.grants), "its memory is back")
                    draft.do(DropEdits(lease.id, lease.device_name))
            case Draining(exited=True):
                draft.do(SampleGpus())
            case Draining() as state if draft.now >= state.retry_at:
                _stop_again(lease, state, draft)
            case Starting(deadline=float(deadline)) as state if draft.now >= deadline:
                _overdue(lease, state, draft)
            case _:
                pass


def _memory_is_back(lease: Lease, state: Draining, sample: GpusSampled) -> bool:
    mute = frozenset(sample.troubles) - sample.readable
    readable = not any(grant.gpu in mute for grant in state.grants)
    return sample.at >= state.since and readable and lease.id not in sample.busy


def _stop_again(lease: Lease, state: Draining, draft: Draft) -> None:
    retry_at = draft.now + draft.rules.stop_retry_seconds
    draft.move(lease, replace(state, retry_at=retry_at), "the container is asked to stop again")
    draft.do(StopContainer(lease.id, state.container, 0))


def _overdue(lease: Lease, state: Starting, draft: Draft) -> None:
    """Its start is overdue, or was missed: the engine knows."""
    if state.held:
        draft.move(lease, replace(state, held=False), "the restart takes too long")
    draft.do(InspectContainer(state.container))
