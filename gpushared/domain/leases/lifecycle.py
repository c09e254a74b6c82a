"""Follow containers to their end: each sight of a container, draining, deadlines, and ends by a fault."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from gpushared.domain.leases.events import (
    Condition,
    ContainerSeen,
    EngineSurveyed,
    GpusSampled,
)
from gpushared.domain.leases.instructions import (
    DropEdits,
    HoldContainer,
    InspectContainer,
    ResumeContainer,
    SampleGpus,
    StopContainer,
    SuspendContainer,
)
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.leases.notice import awake
from gpushared.domain.leases.parked import REMOVED, over, seen_parked
from gpushared.domain.leases.surroundings import note_memory
from gpushared.domain.model.lease import (
    Active,
    Draining,
    Ended,
    Expired,
    Failed,
    Finished,
    Lease,
    NeverClaimed,
    Outcome,
    Paused,
    Preempted,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Stopped,
    Suspended,
    Suspending,
    WithContainer,
)

_UP = (Condition.RUNNING, Condition.PAUSED, Condition.RESTARTING)

ENDED_BY_SOMEBODY = frozenset({137, 143})
"""These exit codes follow SIGKILL and SIGTERM. A program that met a fault ends by itself, with other
codes."""
RUN_AGAIN = "run it again; with `--restart-on-fault 3` that happens by itself"


def seen(event: ContainerSeen, draft: Draft) -> None:
    """Apply the engine's facts about a container; a container without a live lease changes nothing."""
    lease = draft.view().of_container(event.container) or _bind(event, draft)
    if lease is None:
        return
    note_memory(lease.id, event.memory, draft)
    if event.name and event.name != lease.container_name:
        lease = replace(lease, container_name=event.name)
        lease = draft.put(lease.note(draft.now, f"the container is called {event.name} now"))
    match lease.state:
        case Starting() as state:
            _seen_starting(lease, state, event, draft)
        case Active() | Paused():
            _seen_up(lease, event, draft)
        case Suspending() | Resuming() if event.condition not in (Condition.RUNNING, Condition.PAUSED):
            _seen_up(lease, event, draft)
        case Suspended() | Requeued():
            seen_parked(lease, event, draft)
        case Draining() as state:
            _seen_draining(lease, state, event, draft)
        case Queued() | Reserved() | Suspending() | Resuming() | Ended():
            pass
        case unreachable:
            assert_never(unreachable)


def surveyed(event: EngineSurveyed, draft: Draft) -> None:
    """Apply a survey to the leases that have not moved on since it was taken."""
    present = {container.container for container in event.containers}
    for container in event.containers:
        lease = _lease_of(container, draft)
        if lease is not None and _is_news(container, lease, event.at, draft.now):
            seen(container, draft)
    for lease in list(draft.leases.values()):
        state = lease.state
        if isinstance(state, WithContainer) and state.container not in present and state.since < event.at:
            seen(ContainerSeen(state.container, Condition.GONE), draft)
    if not draft.engine_surveyed:
        draft.engine_surveyed = True
        _take_up_again(draft)
    _move_again(draft)


def _move_again(draft: Draft) -> None:
    """Ask again for moves off the GPUs and back that a restart of the engine or daemon cut off.

    A container whose move is under way needs no second instruction, and gets none (``ContainerQueues``).
    """
    for lease in list(draft.leases.values()):
        if isinstance(lease.state, Suspending):
            draft.do(SuspendContainer(lease.id, lease.state.container))
        elif isinstance(lease.state, Resuming):
            draft.do(ResumeContainer(lease.id, lease.state.container))


def _take_up_again(draft: Draft) -> None:
    """Resume the work that the daemon's end cut off.

    Creates have lost their clients, and nobody waits for stops.
    """
    deadline = draft.now + draft.rules.claim_seconds
    for lease in list(draft.leases.values()):
        state = lease.state
        if isinstance(state, Reserved) and not state.claimed and state.deadline > deadline:
            draft.move(lease, replace(state, deadline=deadline), "the create was cut off by a restart")
        elif isinstance(state, Draining) and not state.exited:
            grace_seconds = max(0, math.ceil(state.retry_at - draft.rules.stop_retry_seconds - draft.now))
            _ask_to_stop(lease, state, "the stop was cut off by a restart", draft, grace_seconds)


def _lease_of(event: ContainerSeen, draft: Draft) -> Lease | None:
    return draft.view().of_container(event.container) or draft.view().of_device(event.device_name)


def _is_news(event: ContainerSeen, lease: Lease, at: float, now: float) -> bool:
    """Return True if a survey taken at ``at`` has news about the lease as it is now.

    A container that is older than its lease is stopped until its start is done. Only an event or an inspect,
    not a survey, proves that such a container has ended.
    """
    state = lease.state
    if isinstance(state, Ended) or state.since >= at:
        return False
    start_is_due = isinstance(state, Starting) and state.deadline is not None and now < state.deadline
    return not (start_is_due and event.condition is Condition.EXITED and _is_reused(lease))


def _is_reused(lease: Lease) -> bool:
    """Return True if the lease was taken for a container that already existed."""
    return lease.device_name != lease.id


def _bind(event: ContainerSeen, draft: Draft) -> Lease | None:
    """Bind a container to its lease by the label, after a daemon died between the create and its note."""
    lease = draft.view().of_device(event.device_name) if event.device_name else None
    if lease is None or not isinstance(lease.state, Reserved) or event.condition is Condition.GONE:
        return None
    if _is_reused(lease) and event.condition not in _UP:
        return None
    lease = replace(lease, container_name=event.name, image=event.image, created_grants=lease.grants)
    to = Starting(lease.grants, event.container, draft.now, draft.now + draft.rules.start_seconds)
    return draft.move(lease, to, f"container {event.name or event.container[:12]} was found")


def _seen_starting(lease: Lease, state: Starting, event: ContainerSeen, draft: Draft) -> None:
    match event.condition:
        case Condition.RUNNING | Condition.PAUSED if not state.held:
            _runs(lease, event, draft, "the container runs")
        case Condition.RESTARTING if not state.held and state.deadline is not None:
            draft.move(lease, replace(state, deadline=None), _restart_text(event))
        case Condition.CREATED if not state.held:
            if state.deadline is None or draft.now >= state.deadline:
                _drain_exited(lease, NeverClaimed(), "the container was not started in time", draft)
        case Condition.EXITED if not state.held:
            _exited(lease, event, draft)
        case Condition.GONE:
            _drain_exited(lease, _finished(event), _exit_text(event), draft)
        case (
            Condition.RUNNING | Condition.PAUSED | Condition.RESTARTING | Condition.CREATED | Condition.EXITED
        ):
            pass
        case unreachable:
            assert_never(unreachable)


def _runs(lease: Lease, event: ContainerSeen, draft: Draft, why: str) -> None:
    lease = awake(lease, draft).without_fault()
    lease = draft.move(lease, Active(lease.grants, event.container, draft.now), why)
    draft.do(HoldContainer(lease.id, event.container))
    if event.condition is Condition.PAUSED:
        draft.move(lease, Paused(lease.grants, event.container, draft.now), "the container is paused")


def _restart_text(event: ContainerSeen) -> str:
    code = "" if event.exit_code is None else f" with {event.exit_code}"
    return f"the container ended{code}; its restart policy starts it again"


def _seen_up(lease: Lease, event: ContainerSeen, draft: Draft) -> None:
    container = event.container
    match event.condition:
        case Condition.RUNNING if isinstance(lease.state, Active):
            # The container may have been restarted so fast, or with the engine, that only its new run was seen.
            if event.runs_anew:
                to = replace(lease.state, since=draft.now)
                draft.move(lease, to, "the container was restarted, and nobody saw its end")
            draft.do(HoldContainer(lease.id, container))
        case Condition.RUNNING if isinstance(lease.state, Paused):
            draft.move(lease, Active(lease.grants, container, draft.now), "the container goes on")
        case Condition.PAUSED if isinstance(lease.state, Active):
            draft.move(lease, Paused(lease.grants, container, draft.now), "the container is paused")
        case Condition.RESTARTING:
            draft.move(lease, Starting(lease.grants, container, draft.now, None), _restart_text(event))
        case Condition.EXITED:
            _exited(lease, event, draft)
        case Condition.GONE:
            _drain_exited(lease, _finished(event), _exit_text(event), draft)
        case Condition.RUNNING | Condition.PAUSED | Condition.CREATED:
            pass
        case unreachable:
            assert_never(unreachable)


def _exited(lease: Lease, event: ContainerSeen, draft: Draft) -> None:
    if not is_of_fault(lease, event.exit_code):
        _drain_exited(lease, _finished(event), _exit_text(event), draft)
    elif may_start_again(lease):
        start_again(lease, _exit_text(event), draft, not_before=draft.now)
        draft.do(SampleGpus())
    else:
        _drain_exited(lease, outcome_of(lease, event.exit_code), _exit_text(event), draft)


def _seen_draining(lease: Lease, state: Draining, event: ContainerSeen, draft: Draft) -> None:
    up = event.condition in _UP
    if state.outcome == REMOVED and event.exit_code is not None and not up:
        # A survey missed the container before its exit was reported.
        draft.move(lease, replace(state, outcome=_finished(event)), _exit_text(event))
    elif not up and not state.exited:
        gone = event.condition is Condition.GONE
        draft.move(lease, replace(state, exited=True, since=draft.now, gone=gone), "the container has ended")
        draft.do(SampleGpus())
    elif event.condition is Condition.GONE and not state.gone:
        draft.move(lease, replace(state, gone=True), "the container is gone")
    elif up and state.exited:
        _up_again(lease, state, event, draft)


def _up_again(lease: Lease, state: Draining, event: ContainerSeen, draft: Draft) -> None:
    """Let a lease go on whose container runs again before its memory was back, if it had ended by itself."""
    by_itself = isinstance(state.outcome, Finished | NeverClaimed) or state.outcome == REMOVED
    # The outcome after a fault names the fault, but such a container too had ended by itself.
    if not by_itself and not lease.health.fault:
        grace = draft.rules.stop_grace_seconds
        _ask_to_stop(lease, replace(state, exited=False), "the container runs again", draft, grace)
        return
    if event.condition is Condition.RESTARTING:
        draft.move(lease, Starting(state.grants, state.container, draft.now, None), _restart_text(event))
    else:
        _runs(lease, event, draft, "the container was started again")
    draft.do(InspectContainer(state.container))


def _finished(event: ContainerSeen) -> Outcome:
    return REMOVED if event.exit_code is None else Finished(event.exit_code, event.start_error)


def _exit_text(event: ContainerSeen) -> str:
    if event.exit_code is None:
        return "the container is gone"
    if event.start_error:
        return f"the container could not be started: {event.start_error}"
    return f"the container ended with {event.exit_code}"


def _drain_exited(lease: Lease, outcome: Outcome, why: str, draft: Draft) -> None:
    assert isinstance(lease.state, WithContainer)
    to = Draining(lease.grants, lease.state.container, draft.now, outcome, exited=True, retry_at=draft.now)
    draft.move(lease, to, why)
    draft.do(SampleGpus())


def end(lease: Lease, outcome: Stopped | Failed, why: str, draft: Draft, *, grace_seconds: int) -> None:
    """End a lease, whatever its state."""
    if isinstance(lease.state, WithContainer):
        drain(lease, outcome, why, draft, grace_seconds=grace_seconds)
    elif not isinstance(lease.state, Ended):
        end_early(lease, outcome, why, draft)


def drain(lease: Lease, outcome: Outcome, why: str, draft: Draft, *, grace_seconds: int) -> None:
    """End a lease that has a container: the container first, then its memory.

    A drain under way goes on, and ends sooner if the new grace is shorter than the rest of the first one.
    """
    state = lease.state
    assert isinstance(state, WithContainer)
    retry_at = draft.now + grace_seconds + draft.rules.stop_retry_seconds
    if not isinstance(state, Draining):
        fresh = Draining(lease.grants, state.container, draft.now, outcome, exited=False, retry_at=retry_at)
        _ask_to_stop(lease, fresh, why, draft, grace_seconds)
    elif not state.exited and retry_at < state.retry_at:
        _ask_to_stop(lease, state, why, draft, grace_seconds)


def refuted(lease: Lease, why: str, draft: Draft, *, ends: bool) -> None:
    """Note that the lease's container is not the one that was made for it; with ``ends``, end the lease."""
    if ends and not isinstance(lease.state, Draining):
        hint = "tell the administrator: something made or started it past the gate"
        drain(lease, Failed(why, hint), why, draft, grace_seconds=0)
    else:
        draft.put(lease.note(draft.now, why))


def end_early(
    lease: Lease, outcome: Stopped | NeverClaimed | Expired | Preempted | Failed, why: str, draft: Draft
) -> None:
    """End a lease that has no container: nothing ran, so nothing has to be drained."""
    draft.move(lease, Ended(outcome, draft.now, lease.grants), why)
    if lease.grants:
        draft.do(DropEdits(lease.id, lease.device_name))


def _ask_to_stop(lease: Lease, to: Draining, why: str, draft: Draft, grace_seconds: int) -> None:
    retry_at = draft.now + grace_seconds + draft.rules.stop_retry_seconds
    draft.move(lease, replace(to, retry_at=retry_at), why)
    draft.do(StopContainer(lease.id, to.container, grace_seconds))


def watch_deadlines(draft: Draft, *, sample: GpusSampled | None) -> None:
    """Handle leases that should have moved on by themselves."""
    for lease in list(draft.leases.values()):
        state = lease.state
        if isinstance(state, Draining):
            _watch_draining(lease, state, draft, sample)
        elif isinstance(state, Starting) and not state.by_node and _is_due(state.deadline, draft.now):
            _overdue(lease, state, draft)


def _is_due(deadline: float | None, now: float) -> bool:
    return deadline is not None and now >= deadline


def _watch_draining(lease: Lease, state: Draining, draft: Draft, sample: GpusSampled | None) -> None:
    if not state.exited:
        if draft.now >= state.retry_at:
            _stop_again(lease, state, draft)
    elif state.since > draft.now:
        draft.move(lease, replace(state, since=draft.now), "the clock was set back")
    elif sample is None:
        draft.do(SampleGpus())
    elif _memory_is_back(lease, state, sample, draft):
        over(lease, state, draft)


def _memory_is_back(lease: Lease, state: Draining, sample: GpusSampled, draft: Draft) -> bool:
    """Return True if the sample shows that the lease's memory is free again.

    A sick or lost GPU that does not answer will never show it: there the memory counts as free.
    """
    mute = frozenset(sample.troubles) - sample.readable - sample.lost
    mute -= {gpu for gpu in mute if (drained := draft.view().drain_of(gpu)) is not None and drained.sick}
    readable = not any(grant.gpu in mute for grant in state.grants)
    return sample.at >= state.since and readable and lease.id not in sample.busy


def _stop_again(lease: Lease, state: Draining, draft: Draft) -> None:
    """Ask the container to stop again: either the stop failed, or its result was missed."""
    _ask_to_stop(lease, state, "the container is asked to stop again", draft, 0)
    draft.do(InspectContainer(state.container))


def _overdue(lease: Lease, state: Starting, draft: Draft) -> None:
    """Ask the engine about a container whose start is overdue, or was missed."""
    if state.held:
        draft.move(lease, replace(state, held=False), "the restart takes too long")
    draft.do(InspectContainer(state.container))


# --- faults ---------------------------------------------------------------------------------------------


def is_of_fault(lease: Lease, exit_code: int | None) -> bool:
    """Return True if the container ended because of the fault that the lease met."""
    return bool(lease.health.fault) and exit_code not in (None, 0, *ENDED_BY_SOMEBODY)


def may_start_again(lease: Lease) -> bool:
    return lease.health.restarts < lease.request.restart_on_fault


def outcome_of(lease: Lease, exit_code: int | None) -> Outcome:
    """Return the outcome of a lease whose container ended because of its fault."""
    times = f", after {lease.health.restarts} restarts for such faults" if lease.health.restarts else ""
    return Failed(f"its container ended with {exit_code} because {lease.health.fault}{times}", RUN_AGAIN)


def start_again(lease: Lease, why: str, draft: Draft, *, not_before: float) -> None:
    """Keep the lease, and start its container again as soon as the fault is over."""
    assert isinstance(lease.state, WithContainer)
    number, limit = lease.health.restarts + 1, lease.request.restart_on_fault
    state = Starting(lease.grants, lease.state.container, draft.now, not_before, held=True, by_node=True)
    lease = replace(lease, health=replace(lease.without_fault().health, restarts=number))
    draft.move(lease, state, f"{why}; it is to be started again ({number} of {limit})")
