"""Run the node's state machine: one event in, a step out (a new state, what to write, what to do).

``handle`` is the only way to change a state. The step's state becomes true when the journal has the step's
changes; only then may its instructions be performed and the caller be answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import singledispatch

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.node_messages import (
    AttemptPrepared,
    Contact,
    ContactMade,
    EngineEnded,
    FencesLooked,
    GuardEnded,
    GuardLooked,
    LaunchFailed,
    MachineGoesDown,
    OrderTaken,
)
from gpushared.domain.leases import events as m
from gpushared.domain.leases import (
    gpu_health,
    idle_leases,
    job_attempts,
    mps_containment,
    requeue,
    suspension,
)
from gpushared.domain.leases.gpu_health import end_on_destroyed
from gpushared.domain.leases.granting import grant_what_fits
from gpushared.domain.leases.instructions import InspectContainer, MakeEdits
from gpushared.domain.leases.lifecycle import (
    drain,
    end,
    end_early,
    refuted,
    seen,
    surveyed,
    watch_deadlines,
)
from gpushared.domain.leases.memory_watchdog import watch
from gpushared.domain.leases.node_state import (
    Draft,
    NodeState,
    Step,
    Use,
)
from gpushared.domain.leases.notice import notify_of_expiry
from gpushared.domain.leases.project_settings import set_project
from gpushared.domain.leases.resizing import resize, take_settings
from gpushared.domain.leases.submission import refuse_to_queue, submit
from gpushared.domain.leases.terms import demand_profile_of
from gpushared.domain.leases.timing import extend, hold, set_priority
from gpushared.domain.model.errors import GpushareError, PermissionRefused, StateConflict
from gpushared.domain.model.gpu import Drained, GpuId
from gpushared.domain.model.lease import (
    Active,
    Ended,
    Expired,
    Failed,
    Lease,
    NeverClaimed,
    Paused,
    Queued,
    Requeued,
    Reserved,
    Starting,
    Stopped,
    Suspended,
    WithContainer,
    state_name,
)
from gpushared.domain.scheduling.project_accounts import ProjectAccounts, usage_of

NOBODY = "nobody"
"""The name stands for a client that is gone, where a record names the one who ended a lease."""


def handle(state: NodeState, event: m.Event, now: float, *, grants: bool = True) -> Step:
    """Return the step of one event. ``now``: seconds since the epoch.

    Without ``grants`` no pass over the queue follows the event. An error of the tree means that nothing
    changed.
    """
    draft = Draft(state, now)
    try:
        _handle(event, draft, grants=grants)
    except GpushareError as error:
        # An attempt's request is refused in a record of the attempt, which is written.
        draft = job_attempts.refused(event, error, state, now)
    return draft.finish()


def _handle(event: m.Event, draft: Draft, *, grants: bool) -> None:
    if not draft.earlier_boots_over:
        # The first step that is written ends these, so that they can begin at no moment.
        job_attempts.end_attempts_of_earlier_boots(draft)
    if isinstance(event, AttemptPrepared):
        immediate = job_attempts.prepared(event, draft)
    else:
        _apply(event, draft)
        immediate = isinstance(event, m.RequestSubmitted) and event.immediate
    if grants:
        grant_what_fits(draft)
    if isinstance(event, m.RequestSubmitted | AttemptPrepared):
        refuse_to_queue(draft, immediate=immediate)
    job_attempts.follow(draft)


def restore(
    state: NodeState,
    leases: Iterable[Lease],
    next_sequence: int,
    ended: Iterable[Lease] = (),
    drained: Mapping[GpuId, Drained] | None = None,
    accounts: ProjectAccounts | None = None,
    records: Iterable[Attempt] = (),
    contacts: Mapping[str, Contact] | None = None,
) -> NodeState:
    """Return the state after a restart, from the journal; of ended leases only the newest, oldest first.

    No restart of a container is under way any more. A create may have succeeded without being noted, so no
    reservation ends for want of a container before the engine was surveyed.
    """
    ordered = sorted(leases, key=lambda lease: lease.sequence)
    live = {lease.id: _with_settings(_without_claims(lease)) for lease in ordered}
    over = {lease.id: lease for lease in ended}
    accounts = accounts or ProjectAccounts()
    return replace(
        state,
        leases=live,
        ended=over,
        next_sequence=next_sequence,
        drained=drained or {},
        usage=usage_of(accounts.usage, state.rules.policy.half_life_seconds),
        turns=accounts.turns,
        projects=accounts.projects,
        demand_profile=demand_profile_of((*over.values(), *live.values())),
        engine_surveyed=False,
        earlier_boots_over=False,
        attempts=job_attempts.restored(records, contacts or {}),
        contacts=contacts or {},
        contacts_written=contacts or {},
    )


def _without_claims(lease: Lease) -> Lease:
    match lease.state:
        case Starting(held=True, by_node=False):
            return replace(lease, state=replace(lease.state, held=False, deadline=None))
        case Reserved(claimed=True):
            return replace(lease, state=replace(lease.state, claimed=False))
        case _:
            return lease


def _with_settings(lease: Lease) -> Lease:
    """Return the lease with the grants of its container's creation.

    Earlier releases wrote these only if they had changed.
    """
    if lease.container is None or lease.created_grants:
        return lease
    grants = lease.state.held if isinstance(lease.state, Suspended | Requeued) else lease.grants
    return replace(lease, created_grants=grants)


# --- users ---------------------------------------------------------------------------------------------


@singledispatch
def _apply(event: object, draft: Draft) -> None:  # noqa: ARG001 - the signature of every rule
    raise TypeError(f"no rule for {type(event).__name__}")


@_apply.register
def _(event: m.RequestSubmitted, draft: Draft) -> None:
    submit(event, draft)


@_apply.register
def _(event: m.RequestAbandoned, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if isinstance(lease.state, Queued):
        draft.move(lease, Ended(Stopped(NOBODY), draft.now), "nobody waits for it any more")
    elif isinstance(lease.state, Reserved) and not lease.state.claimed and draft.engine_surveyed:
        why = "whoever asked for it ended without a container"
        end_early(lease, Stopped(NOBODY), why, draft)


@_apply.register
def _(event: m.RequestMissed, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if isinstance(lease.state, Queued):
        draft.put(replace(lease, missed_seconds=event.seconds))


@_apply.register
def _(event: m.ReleaseAsked, draft: Draft) -> None:
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    if isinstance(lease.state, Ended):
        return
    if isinstance(lease.state, WithContainer):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)} and has a container",
            hint=f"`gpushare stop {lease.id}` ends both",
        )
    end_early(lease, Stopped(event.caller.name), f"given back by {event.caller.name}", draft)


@_apply.register
def _(event: m.StopAsked, draft: Draft) -> None:
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    if isinstance(lease.state, Ended):
        return
    why = f"stopped by {event.caller.name}"
    end(lease, Stopped(event.caller.name), why, draft, grace_seconds=event.grace_seconds)


@_apply.register
def _(event: m.ResizeAsked, draft: Draft) -> None:
    resize(event, draft)


@_apply.register
def _(event: m.HoldAsked, draft: Draft) -> None:
    hold(event, draft)


@_apply.register
def _(event: m.PriorityAsked, draft: Draft) -> None:
    set_priority(event, draft)


@_apply.register
def _(event: m.ExtendAsked, draft: Draft) -> None:
    extend(event, draft)


@_apply.register
def _(event: m.PauseAsked, draft: Draft) -> None:
    suspension.pause_asked(event, draft)


@_apply.register
def _(event: m.ResumeAsked, draft: Draft) -> None:
    suspension.resume_asked(event, draft)


@_apply.register
def _(event: m.PreemptAsked, draft: Draft) -> None:
    requeue.preempt_asked(event, draft)


@_apply.register
def _(event: m.ProjectSet, draft: Draft) -> None:
    set_project(event, draft)


@_apply.register
def _(event: m.ClaimAsked, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if lease.owner_uid != event.caller.uid:
        raise PermissionRefused(
            f"lease {lease.id} belongs to {lease.owner_name}", hint="every user claims their own leases"
        )
    if not isinstance(lease.state, Reserved):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)} and cannot be claimed",
            hint="ask for a new one with `gpushare run`",
        )
    if lease.state.claimed:
        raise StateConflict(f"lease {lease.id} is being claimed already", hint="one container a lease")
    deadline = draft.now + draft.rules.create_seconds
    draft.answer = lease.id
    draft.move(lease, replace(lease.state, claimed=True, deadline=deadline), "a container is being created")


@_apply.register
def _(event: m.ClaimDropped, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if isinstance(lease.state, Reserved) and lease.state.claimed:
        deadline = draft.now + draft.rules.claim_seconds
        draft.move(
            lease, replace(lease.state, claimed=False, deadline=deadline), "the container was not created"
        )


@_apply.register
def _(event: m.ContainerCreated, draft: Draft) -> None:
    lease = draft.find(event.lease)
    draft.answer = lease.id
    if isinstance(lease.state, Starting | Active | Paused) and lease.container == event.container:
        return  # the engine reported the container first
    if not isinstance(lease.state, Reserved):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)} already",
            hint="ask for a new one with `gpushare run`",
        )
    other = draft.view().of_container(event.container)
    if other is not None:
        raise StateConflict(
            f"container {event.container[:12]} belongs to lease {other.id}", hint="one lease a container"
        )
    lease = replace(lease, container_name=event.name, image=event.image, created_grants=lease.grants)
    requeues = event.stays if lease.request.requeue is None else lease.request.requeue
    lease = replace(lease, preemption=replace(lease.preemption, requeues=requeues))
    deadline = draft.now + draft.rules.start_seconds
    to = Starting(lease.grants, event.container, draft.now, deadline)
    draft.move(lease, to, f"container {event.name or event.container[:12]} was created")


@_apply.register
def _(event: m.StartAsked, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if isinstance(lease.state, Starting) and not lease.state.held:
        deadline = draft.now + draft.rules.start_seconds
        draft.move(lease, replace(lease.state, deadline=deadline), "the container is being started")


@_apply.register
def _(event: m.RestartAsked, draft: Draft) -> None:
    lease = draft.find(event.lease)
    state = lease.state
    if isinstance(state, Starting | Active | Paused):
        deadline = draft.now + event.grace_seconds + draft.rules.start_seconds
        to = Starting(state.grants, state.container, draft.now, deadline, held=True)
        draft.move(lease, to, "the container is being restarted")


@_apply.register
def _(event: m.RestartDone, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if isinstance(lease.state, Starting) and lease.state.held:
        to = replace(lease.state, held=False, by_node=False)
        draft.move(lease, to, "the restart is done")
        draft.do(InspectContainer(lease.state.container))


# --- parts ---------------------------------------------------------------------------------------------


@_apply.register
def _(event: m.ContainerSeen, draft: Draft) -> None:
    job_attempts.note_unseen_runs((event,), draft)
    seen(event, draft)


@_apply.register
def _(event: m.EngineSurveyed, draft: Draft) -> None:
    job_attempts.note_unseen_runs(event.containers, draft)
    surveyed(event, draft)


@_apply.register
def _(event: m.MeansKnown, draft: Draft) -> None:
    draft.means = event.means


@_apply.register
def _(event: m.ContainerSuspended, draft: Draft) -> None:
    suspension.suspended(event, draft)


@_apply.register
def _(event: m.SuspendFailed, draft: Draft) -> None:
    suspension.suspend_failed(event, draft)


@_apply.register
def _(event: m.ContainerResumed, draft: Draft) -> None:
    suspension.resumed(event, draft)


@_apply.register
def _(event: m.ResumeFailed, draft: Draft) -> None:
    suspension.resume_failed(event, draft)


@_apply.register
def _(event: m.EditsMade, draft: Draft) -> None:
    lease = draft.find(event.lease)
    walls = lease.walls_with(event.walls)
    if lease.grants and lease.walls != walls:
        text = f"memory wall {walls.memory_wall}, compute cap {walls.compute_cap}"
        draft.put(replace(lease, walls=walls).note(draft.now, text))


@_apply.register
def _(event: m.SettingsTaken, draft: Draft) -> None:
    take_settings(event, draft)


@_apply.register
def _(event: m.ContainerRefuted, draft: Draft) -> None:
    lease = draft.view().leases.get(event.lease)
    if lease is not None and lease.container == event.container:
        refuted(lease, event.why, draft, ends=event.ends)


@_apply.register
def _(event: m.EditsFailed, draft: Draft) -> None:
    lease = draft.find(event.lease)
    # Before the engine's first survey the lease may have a container that nobody noted.
    if isinstance(lease.state, Reserved) and draft.engine_surveyed:
        end_early(lease, Failed(event.reason), event.reason, draft)
    elif lease.grants:
        draft.put(lease.note(draft.now, event.reason))


@_apply.register
def _(event: m.GpusSurveyed, draft: Draft) -> None:
    draft.gpus = {gpu.id: gpu for gpu in sorted(event.gpus, key=lambda gpu: gpu.index)}
    end_on_destroyed(event, draft)


@_apply.register
def _(event: m.GpusSampled, draft: Draft) -> None:
    # GPUs that no survey has listed yet count too: nothing is granted before other processes are counted.
    for gpu_id in event.readable:
        draft.stray_bytes[gpu_id] = event.stray_bytes.get(gpu_id, 0)
    for gpu in list(draft.gpus.values()):
        if gpu.id in event.readable or gpu.id in event.troubles:
            draft.gpus[gpu.id] = replace(gpu, trouble=event.troubles.get(gpu.id))
    gpu_health.sampled(event, draft)
    draft.use = Use(event.at, event.readable, event.busy, event.used_bytes, event.lost)
    watch(event, draft)
    idle_leases.look(event, draft)
    _look_after(draft, event)


@_apply.register
def _(event: m.ClientsParted, draft: Draft) -> None:
    lease = draft.find(event.lease)
    if not isinstance(lease.state, Ended):
        noun = "process was" if event.clients == 1 else "processes were"
        text = f"{event.clients} {noun} taken off MPS before the end"
        if event.trouble:
            text = f"its processes could not be taken off MPS before the end: {event.trouble}"
        draft.put(lease.note(draft.now, text))


@_apply.register
def _(event: m.ServerFaulted, draft: Draft) -> None:
    mps_containment.server_faulted(event, draft)


@_apply.register
def _(event: m.GpuDrainAsked, draft: Draft) -> None:
    gpu_health.drain_asked(event, draft)


_apply.register(OrderTaken, job_attempts.order_taken)
_apply.register(LaunchFailed, job_attempts.launch_failed)
_apply.register(ContactMade, job_attempts.contact_made)
_apply.register(FencesLooked, job_attempts.fences_looked)
_apply.register(GuardLooked, job_attempts.guard_looked)
_apply.register(GuardEnded, job_attempts.guard_ended)
_apply.register(EngineEnded, job_attempts.engine_ended)


@_apply.register
def _(event: MachineGoesDown, draft: Draft) -> None:  # noqa: ARG001 - chosen by its type
    draft.goes_down = True


@_apply.register
def _(event: m.DayTimeSet, draft: Draft) -> None:
    """Write the settings of leases with a time limit anew, because the settings contain the time of day."""
    draft.ahead_seconds = event.ahead_seconds
    for lease in draft.view().holders():
        if lease.expires_at is not None:
            draft.do(MakeEdits(lease.id))


@_apply.register
def _(event: m.QuietTimeChanged, draft: Draft) -> None:
    draft.quiet = event.quiet


@_apply.register
def _(event: m.Tick, draft: Draft) -> None:  # noqa: ARG001 - chosen by its type
    for lease in list(draft.leases.values()):
        if lease.expires_at is not None and draft.now >= lease.expires_at and lease.grants:
            _expire(lease, draft)
        elif isinstance(lease.state, Reserved) and draft.now >= lease.state.deadline:
            _end_unclaimed(lease, NeverClaimed(), "no container claimed it in time", draft)
    job_attempts.prune(draft)
    notify_of_expiry(draft)
    requeue.stop_notified(draft)
    suspension.watch_suspensions(draft)
    _look_after(draft, None)


def _look_after(draft: Draft, sample: m.GpusSampled | None) -> None:
    """Do the work that is due by now, whichever event brought the time."""
    gpu_health.end_on_sick_gpus(draft)
    mps_containment.watch_faults(draft)
    watch_deadlines(draft, sample=sample)


def _expire(lease: Lease, draft: Draft) -> None:
    why = "its time limit was reached"
    if isinstance(lease.state, Reserved):
        _end_unclaimed(lease, Expired(), why, draft)
    elif isinstance(lease.state, Starting | Active | Paused):
        drain(lease, Expired(), why, draft, grace_seconds=draft.rules.stop_grace_seconds)


def _end_unclaimed(lease: Lease, outcome: NeverClaimed | Expired, why: str, draft: Draft) -> None:
    if draft.engine_surveyed:
        end_early(lease, outcome, why, draft)
