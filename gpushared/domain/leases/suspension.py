"""Take a running container off its GPUs without ending it, and bring it back.

Its GPU memory is moved to the host's by a CUDA checkpoint and its processes are frozen, so that the GPUs are
really free for others. The container comes back to the same GPUs, because a container sees no others.
"""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.events import (
    ContainerResumed,
    ContainerSuspended,
    PauseAsked,
    ResumeAsked,
    ResumeFailed,
    SuspendFailed,
)
from gpushared.domain.leases.instructions import (
    InspectContainer,
    MakeEdits,
    ResumeContainer,
    SuspendContainer,
)
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.notice import awake, withdraw
from gpushared.domain.leases.parked import stop_parked
from gpushared.domain.leases.surroundings import lack_of_memory
from gpushared.domain.model.errors import StateConflict
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    Grant,
    Lease,
    MemoryWall,
    Paused,
    Resuming,
    Suspended,
    Suspending,
    state_name,
)

KEEP_HINT = "`docker pause` freezes it too, but its GPU memory stays taken"


def why_not(lease: Lease, state: NodeState) -> str:
    """Return why this lease cannot be taken off its GPUs without being ended; empty if it can."""
    means = state.means
    if means.no_checkpoint:
        return means.no_checkpoint
    if lease.preemption.suspend_trouble:
        return lease.preemption.suspend_trouble
    walls = lease.walls
    if walls is not None and walls.memory_wall is MemoryWall.MIG:
        return "CUDA checkpoints do not work on MIG instances"
    if walls is not None and walls.compute_cap is ComputeCap.MPS_PERCENTAGE and not means.checkpoint_with_mps:
        return "CUDA checkpoints do not work for clients of MPS"
    return lack_of_memory(lease, state)


# --- requests of people --------------------------------------------------------------------------------


def pause_asked(event: PauseAsked, draft: Draft) -> None:
    """Take a lease off its GPUs until somebody asks to resume it."""
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    if isinstance(lease.state, Suspending | Suspended):
        if lease.state.wanted:
            _set_wanted(lease, f"paused by {event.caller.name}", draft, wanted=False)
        return
    if not isinstance(lease.state, Active):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)} and does not run", hint="`gpushare ps` lists them"
        )
    if trouble := why_not(lease, draft.view()):
        raise StateConflict(f"lease {lease.id} cannot be paused: {trouble}", hint=KEEP_HINT)
    suspend(lease, f"paused by {event.caller.name}", draft, wanted=False)


def resume_asked(event: ResumeAsked, draft: Draft) -> None:
    """Bring a lease back as soon as there is room; the lease waits in the queue with the others."""
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    if isinstance(lease.state, Suspending | Suspended):
        if not lease.state.wanted:
            _set_wanted(lease, f"to be resumed for {event.caller.name}", draft, wanted=True)
    elif isinstance(lease.state, Paused):
        raise StateConflict(
            f"lease {lease.id} was paused by docker and keeps its GPU memory",
            hint=f"`docker unpause {lease.container_name or lease.container}` lets it go on",
        )
    elif not isinstance(lease.state, Resuming | Active):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)}, not paused",
            hint="`gpushare why` tells its story",
        )


def _set_wanted(lease: Lease, why: str, draft: Draft, *, wanted: bool) -> None:
    assert isinstance(lease.state, Suspending | Suspended)
    draft.put(replace(lease, state=replace(lease.state, wanted=wanted)).note(draft.now, why))


# --- off the GPUs --------------------------------------------------------------------------------------


def suspend(lease: Lease, why: str, draft: Draft, *, wanted: bool) -> None:
    """Begin to take a running lease off its GPUs. ``wanted``: it comes back when there is room."""
    state = lease.state
    assert isinstance(state, Active)
    deadline = draft.now + draft.rules.suspend_seconds
    to = Suspending(state.grants, state.container, draft.now, deadline, wanted=wanted)
    draft.move(lease, to, why)
    draft.do(SuspendContainer(lease.id, state.container))


def suspended(event: ContainerSuspended, draft: Draft) -> None:
    lease = draft.find(event.lease)
    state = lease.state
    if not isinstance(state, Suspending):
        return
    to = _off_gpus(lease, state, draft, wanted=state.wanted)
    lease = replace(awake(withdraw(lease, draft), draft), expires_at=None)
    draft.move(lease, to, "its GPU memory is on the host and its processes are frozen")


def _off_gpus(lease: Lease, state: Suspending | Resuming, draft: Draft, *, wanted: bool) -> Suspended:
    left_seconds = None if lease.expires_at is None else max(1.0, lease.expires_at - draft.now)
    return Suspended(state.container, draft.now, draft.next_sequence, state.grants, left_seconds, wanted)


def suspend_failed(event: SuspendFailed, draft: Draft) -> None:
    """Let the lease run on, and do not try again if that would fail too.

    A container that was thawed without its GPUs, and cannot be frozen again, is stopped.
    """
    lease = draft.find(event.lease)
    state = lease.state
    if isinstance(state, Suspending):
        trouble = event.reason if event.lasting else ""
        lease = replace(lease, preemption=replace(lease.preemption, suspend_trouble=trouble))
        to = Active(state.grants, state.container, draft.now)
        draft.move(lease, to, f"could not be taken off its GPUs: {event.reason}")
        draft.do(InspectContainer(state.container))
    elif isinstance(state, Suspended):
        stop_parked(
            lease, state, f"it was thawed without its GPUs, and not frozen again: {event.reason}", draft
        )


# --- back on the GPUs ----------------------------------------------------------------------------------


def resume(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    """Begin to bring the lease back, since there is room again."""
    state = lease.state
    assert isinstance(state, Suspended)
    left_seconds = state.left_seconds
    deadline = draft.now + draft.rules.suspend_seconds
    lease = replace(lease, expires_at=None if left_seconds is None else draft.now + left_seconds)
    draft.move(lease, Resuming(grants, state.container, draft.now, deadline), "there is room for it again")
    draft.do(MakeEdits(lease.id))
    draft.do(ResumeContainer(lease.id, state.container))


def resumed(event: ContainerResumed, draft: Draft) -> None:
    lease = draft.find(event.lease)
    state = lease.state
    if isinstance(state, Resuming):
        draft.move(lease, Active(state.grants, state.container, draft.now), "it goes on where it was")
        draft.do(InspectContainer(state.container))


def resume_failed(event: ResumeFailed, draft: Draft) -> None:
    """Keep the lease suspended.

    Its memory is still on the host, so nothing is lost; somebody has to check.
    """
    lease = draft.find(event.lease)
    state = lease.state
    if isinstance(state, Resuming):
        to = _off_gpus(lease, state, draft, wanted=False)
        why = f"could not be brought back: {event.reason}; `gpushare resume {lease.id}` tries again"
        draft.move(replace(lease, expires_at=None), to, why)


def watch_suspensions(draft: Draft) -> None:
    """Ask again for suspensions and resumptions that are late, also after a restart of the daemon."""
    for lease in list(draft.leases.values()):
        state = lease.state
        if not isinstance(state, Suspending | Resuming) or draft.now < state.deadline:
            continue
        later = replace(state, deadline=draft.now + draft.rules.suspend_seconds)
        if isinstance(state, Suspending):
            draft.move(lease, later, "it takes long to be taken off its GPUs")
            draft.do(SuspendContainer(lease.id, state.container))
        else:
            draft.move(lease, later, "it takes long to be brought back")
            draft.do(ResumeContainer(lease.id, state.container))
