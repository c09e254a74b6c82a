"""Handle the requests of users to a coordinator: submit, cancel or hold a job, or set its priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.jobs.attempt_history import BEGUN_STATES
from gpushared.domain.jobs.coordinator_events import (
    CancelAsked,
    ClientGone,
    JobHoldAsked,
    JobPriorityAsked,
    JobSubmitted,
    Send,
)
from gpushared.domain.jobs.coordinator_state import (
    NOTHING,
    PoolDraft,
    Total,
    Wake,
    is_gang,
    is_over,
)
from gpushared.domain.jobs.job import (
    HERE,
    After,
    AfterKind,
    AttemptState,
    Cancelled,
    Cancelling,
    Ended,
    Job,
    JobFailed,
    JobSpec,
    JobState,
    NodeName,
    Owner,
    Placing,
    Queued,
    Running,
    Succeeded,
    Then,
)
from gpushared.domain.jobs.job_progress import cancel, end
from gpushared.domain.jobs.orders import name_of, send, send_ends
from gpushared.domain.jobs.protocol import CLIENT_END, GiveBack
from gpushared.domain.model.errors import (
    LimitReached,
    NotFound,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import check_priority
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.projects import project_of

DEPENDENTS_AT_ONCE = 100
"""A step checks this many of the jobs that waited for a finished one."""
NEXT_SECONDS = 0.001
"""The rest of these jobs waits this long, so that other events come in between."""
MAX_JOB_BYTES = 128 * 1024
"""The first description of a job takes at most this much. Later notes take no more, and stores have room for
both."""
PART_BYTES = 1200
"""Each node's part of a job counts for this much."""
MAX_NODES = MAX_JOB_BYTES // PART_BYTES
"""A job's one record holds all parts of the job. The rest of the job's description takes some of the room."""
FEWER = "wait for some of them, or cancel some"
OWN_ROOM = 200
"""However full the pool is, each realm may have one part in this many of the pool's limit."""
KEPT_SECONDS = 1.0
"""A job that its node had kept for at least this long counts as kept; any job takes a moment to come."""


def submit(event: JobSubmitted, draft: PoolDraft) -> None:
    """Submit a job, or return the job that an equal earlier request made."""
    earlier, spec = _earlier_job(event, draft), event.spec
    if earlier is not None and (earlier.told_by == HERE or is_same_request(earlier.spec, spec)):
        _vouch(earlier, event, draft)
        draft.answer = earlier.id
        return
    check(spec, event.priority, draft)
    if not event.old:
        _check_name(spec, draft)
    old = event.old and not draft.state.settled
    past = {job.id: job for job in event.past if spec.owner.may_see_jobs_of(job.spec.owner)}
    if not old:
        for after in spec.after:
            if after.job not in past:
                _check_known(after.job, spec.owner, draft)
    if earlier is not None:
        _displace(earlier, draft)
    job = Job(
        id=event.job,
        sequence=draft.state.next_sequence if earlier is None else earlier.sequence,
        spec=spec,
        submitted_at=draft.now,
        state=Queued(draft.now),
        project=project_of(spec.owner.person, spec.request.project, draft.state.policy),
        attempts=draft.state.numbers.get(event.job, 0) if earlier is None else earlier.attempts,
        held_by=spec.owner.principal if event.held else "",
        priority=event.priority,
        awaits=spec.after,
        kept_since=_kept_since(event, draft),
    )
    enter(job, draft, old=old)
    where = "" if spec.origin == HERE or draft.rules.here else f" through node {spec.origin}"
    job = job.note(job.asked_at, f"submitted by {spec.owner.principal}{where}")
    if job.kept_since is not None:
        job = job.note(draft.now, f"node {spec.origin} had kept it until now")
    draft.put(job)
    draft.answer = job.id
    look_at_dependencies(draft.state.jobs[job.id], draft, past)


def _kept_since(event: JobSubmitted, draft: PoolDraft) -> float | None:
    """Return since when the job's node had kept it, which cannot be before the node joined the pool."""
    member = draft.state.members.get(event.spec.origin)
    if member is None or event.kept_seconds < KEPT_SECONDS:
        return None
    return min(draft.now, max(member.enrolled_at, draft.now - event.kept_seconds))


def _check_known(job: JobId, by: Owner, draft: PoolDraft) -> None:
    """Check that the awaited job is known.

    Raises NotFound; raises Unavailable while nodes may still report the job.
    """
    try:
        draft.state.find(job, by)
    except NotFound:
        if draft.state.settled:
            raise
        raise Unavailable(
            f"whether there is a job {shown(job)} is not known yet: nodes are asked what they have",
            hint="try again in a moment",
        ) from None


def enter(job: Job, draft: PoolDraft, *, old: bool) -> None:
    """Record a new job's id, number and awaited jobs, before the job is first put."""
    state = draft.state
    state.next_sequence = max(state.next_sequence, job.sequence + 1)
    if old:
        state.old = state.old.put(job.id, None)
    state.numbers = state.numbers.drop(job.id)
    for after in job.awaits:
        if after.job in state.ended:
            continue
        waiting = state.dependents.get(after.job, ())
        state.dependents = state.dependents.put(after.job, (*waiting, job.id))


def _earlier_job(event: JobSubmitted, draft: PoolDraft) -> Job | None:
    """Return the job that an earlier request with this id made, or None.

    Raises StateConflict if the id belongs to another owner's job.
    """
    earlier = draft.state.jobs.get(event.job) or draft.state.ended.get(event.job)
    if earlier is not None:
        check_whose(earlier, event.spec.owner)
    return earlier


def check_whose(job: Job, owner: Owner) -> None:
    """Raise StateConflict if the known job with this id belongs to another owner."""
    job_owner = job.spec.owner
    if job_owner.person != owner.person and job_owner.principal != owner.principal:
        raise StateConflict(
            f"the id {job.id} is that of somebody else's job", hint="submit it with another request id"
        )


def is_same_request(spec: JobSpec, other: JobSpec) -> bool:
    """Return True if both ask for the same, whatever node each came from."""
    return replace(spec, owner=other.owner, target=other.target, origin=other.origin) == other


def _displace(job: Job, draft: PoolDraft) -> None:
    """End a job that only a node reported: its owner submits another job with the same id."""
    draft.state.old = draft.state.old.drop(job.id)
    if isinstance(job.state, Ended):
        draft.forget(job)
    else:
        send_ends(job, draft)


def _vouch(job: Job, event: JobSubmitted, draft: PoolDraft) -> None:
    """Accept the owner's submission of a job that only a node's report had named until now.

    Raises StateConflict.
    """
    if job.told_by == HERE:
        return
    if isinstance(job.state, Ended):
        if not event.old:
            raise StateConflict(
                f"only node {job.told_by} tells that this job, {job.id}, is over",
                hint="to have it run (again), submit it with another request id",
            )
        return
    vouched = replace(job, spec=event.spec, told_by=HERE)
    draft.put(vouched.note(draft.now, f"{event.spec.owner.principal} asks for it, so it may run anywhere"))


def check(spec: JobSpec, priority: int, draft: PoolDraft) -> None:
    """Check that the job can run here and that the limits allow it.

    Raises RequestError, NotFound or LimitReached.
    """
    state, rules = draft.state, draft.rules
    check_priority(priority)
    if not 1 <= spec.nodes <= MAX_NODES:
        raise RequestError(f"{spec.nodes} nodes are not possible", hint=f"ask for 1 to {MAX_NODES}")
    if spec.target != HERE and spec.target not in state.members:
        raise no_node(spec.target)
    if is_gang(spec) and (rules.here or spec.target != HERE):
        raise RequestError("one node cannot be several", hint="submit it to the pool, without --node")
    if is_gang(spec) and spec.interactive:
        raise RequestError("an interactive job runs on one node", hint="leave out --nodes and --span")
    if is_gang(spec) and spec.request.max_gpu_count is not None:
        raise RequestError(
            "a job on several nodes has a fixed number of GPUs", hint="say one number with --gpu, such as 2"
        )
    _check_size(spec)
    _check_pool(spec, draft)
    if not rules.here:
        _check_realm(spec, draft)
    _check_person(spec, draft)


def _check_name(spec: JobSpec, draft: PoolDraft) -> None:
    """Raise StateConflict if an unfinished job has the name.

    An engine allows each name once. In a pool, where few jobs share an engine, names belong to each person.
    An interactive job's container gets its name from the engine of its node alone: other nodes allow the same
    name, and its node allows it as soon as the container is removed, before the pool hears of that.
    """
    if not spec.name or spec.interactive:
        return
    named = draft.state.named(spec.name, None if draft.rules.here else replace(spec.owner, admin=False))
    going = next((job for job in named if not isinstance(job.state, Ended)), None)
    if going is not None:
        is_own = going.spec.owner.person == spec.owner.person
        raise name_taken(spec.name, going.id if is_own else None)


def name_taken(name: str, job: JobId | None) -> StateConflict:
    """Return the error for a taken name. ``job`` has the name; None hides another person's job."""
    whose = "somebody else's job" if job is None else f"job {job}"
    return StateConflict(
        f"the name {shown(name)} is that of {whose}, which is not over",
        hint="use another --name" if job is None else f"use another --name, or wait: gpushare wait {job}",
    )


def _check_pool(spec: JobSpec, draft: PoolDraft) -> None:
    """Raise LimitReached if the pool is full, except for a realm with few jobs."""
    state, rules = draft.state, draft.rules
    of_realm = state.realms.get(spec.owner.realm, NOTHING).changed(spec, 1)
    own = (rules.max_queued // OWN_ROOM, rules.max_queued_bytes // OWN_ROOM)
    if not rules.here and of_realm.jobs <= own[0] and of_realm.spec_bytes <= own[1]:
        return
    _check_total(
        Total(len(state.jobs), state.spec_bytes),
        Total(rules.max_queued, rules.max_queued_bytes),
        spec,
        counted="jobs wait or run",
        sized="jobs that wait or run",
        hint="try again later",
    )


def _check_realm(spec: JobSpec, draft: PoolDraft) -> None:
    """Raise LimitReached if the realm has used its limit.

    The nodes that speak for a realm can invent users, so a limit for each person is not enough.
    """
    rules, realm = draft.rules, spec.owner.realm
    _check_total(
        draft.state.realms.get(realm, NOTHING),
        Total(rules.max_queued_per_realm, rules.max_queued_bytes_per_realm),
        spec,
        counted=f"jobs of users of {realm} wait or run",
        sized=f"jobs of users of {realm}",
        hint=FEWER,
    )


def _check_person(spec: JobSpec, draft: PoolDraft) -> None:
    rules, person = draft.rules, spec.owner.person
    _check_total(
        draft.state.queued.get(person, NOTHING),
        Total(rules.max_queued_per_person, rules.max_queued_bytes_per_person),
        spec,
        counted=f"jobs of {person} wait",
        sized=f"jobs of {person} that wait",
        hint=FEWER,
        hint_for_size="are there large values among their variables? Else wait for some of them",
    )


def _check_total(
    total: Total, limit: Total, spec: JobSpec, *, counted: str, sized: str, hint: str, hint_for_size: str = ""
) -> None:
    """Raise LimitReached if the jobs, or their size with this job, reach the limit."""
    if total.jobs >= limit.jobs:
        raise LimitReached(f"{limit.jobs} {counted} already", hint=hint)
    if total.spec_bytes + spec.size_bytes > limit.spec_bytes:
        raise LimitReached(
            f"the {sized} take {total.spec_bytes >> 20} of {limit.spec_bytes >> 20} MiB already",
            hint=hint_for_size or hint,
        )


def _check_size(spec: JobSpec) -> None:
    parts = spec.request.gpu_count if spec.span else spec.nodes
    quoted = spec.body.count('"') + spec.body.count("\\")
    spec_bytes = spec.size_bytes + quoted
    size = spec_bytes + (PART_BYTES * parts if parts > 1 else 0)
    if size <= MAX_JOB_BYTES:
        return
    hint = "are there large values among its variables? Else let it wait for fewer jobs"
    if parts > 1:
        fitting = max(1, (MAX_JOB_BYTES - spec_bytes) // PART_BYTES)
        hint += f", or ask for at most {fitting} {'GPUs' if spec.span else 'nodes'}"
    raise RequestError(
        f"the job takes some {size >> 10} KiB to keep, more than {MAX_JOB_BYTES >> 10}", hint=hint
    )


def no_node(node: NodeName) -> NotFound:
    return NotFound(f"there is no node {shown(node)} in the pool", hint="`gpushare nodes` lists them")


def ask_cancel(event: CancelAsked, draft: PoolDraft) -> None:
    job = draft.state.find(event.job, event.by)
    draft.answer = job.id
    match job.state:
        case Ended():
            pass
        case Queued() if draft.is_old(job.id):
            text = f"{event.by.principal} cancelled it; whether it runs somewhere is being found out"
            state = Cancelling(
                job.attempts, (), draft.now, Then.CANCEL, event.by.principal, None, event.grace_seconds
            )
            draft.put(replace(job, state=state).note(draft.now, text))
        case Queued():
            text = f"cancelled by {event.by.principal} before it ran"
            end(job, Cancelled(event.by.principal), text, draft)
        case Cancelling(then=Then.CANCEL):
            again = replace(job.state, grace_seconds=event.grace_seconds)
            send(draft.put(replace(job, state=again), durable=False), draft)
        case _:
            text = f"{event.by.principal} cancelled it"
            by = event.by.principal
            cancel(job, Then.CANCEL, by, draft, text, grace_seconds=event.grace_seconds)


def client_gone(event: ClientGone, draft: PoolDraft) -> None:
    """Take an interactive job without a client from the queue, or give back its place without a container.

    A job that may run without our knowing is left alone until its state is known.
    """
    job = draft.state.find(event.job, event.by)
    draft.answer = job.id
    if not job.spec.interactive or draft.is_old(job.id):
        return
    if isinstance(job.state, Queued):
        end(job, Cancelled(CLIENT_END), f"cancelled by {CLIENT_END}", draft)
    elif isinstance(job.state, Placing | Running):
        order = GiveBack(AttemptKey(job.id, job.state.attempt), draft.state.epoch)
        for part in job.state.parts:
            if part.state not in BEGUN_STATES and not is_over(part):
                draft.do(Send(part.node, order))


def hold(event: JobHoldAsked, draft: PoolDraft) -> None:
    job = _queued(draft.state.find(event.job, event.by))
    draft.answer = job.id
    if bool(job.held_by) == event.held:
        return
    by = event.by.principal
    text = f"held by {by}" if event.held else f"let go by {by}"
    draft.put(replace(job, held_by=by if event.held else "").note(draft.now, text))


def set_priority(event: JobPriorityAsked, draft: PoolDraft) -> None:
    """Set the priority of a job among the jobs of its project.

    Among a node's own jobs this includes a job that waits in the node's queue, also after it gave way.
    """
    job = draft.state.find(event.job, event.by)
    job = job if draft.rules.here and _may_wait_on_node(job) else _queued(job)
    check_priority(event.priority)
    draft.answer = job.id
    if job.priority != event.priority:
        text = f"{event.by.principal} set its priority to {event.priority}"
        draft.put(replace(job, priority=event.priority).note(draft.now, text))


def _may_wait_on_node(job: Job) -> bool:
    """Return True if the job's lease has not started, or is off its GPUs."""
    off = isinstance(job.state, Running) and job.state.parts[0].state is AttemptState.PAUSED
    return off or isinstance(job.state, Placing)


def _queued(job: Job) -> Job:
    """Raise StateConflict if the job has left the queue, also if its lease waits again on a node."""
    if isinstance(job.state, Queued):
        return job
    hint = f"`gpushare why {job.id}` tells more"
    if not isinstance(job.state, Placing | Running):
        raise StateConflict(f"job {job.id} does not wait any more", hint=hint)
    where = ", ".join(name_of(part.node) for part in job.state.parts)
    raise StateConflict(
        f"job {job.id} has left the queue for {where}, where it starts when it can",
        hint=f"{hint}; to have it wait instead: gpushare cancel {job.id}, and gpushare submit --hold",
    )


# --- dependencies --------------------------------------------------------------------------------------


def after_end(awaited: JobId, draft: PoolDraft) -> None:
    """Check some of the jobs that waited for a finished job, and set an alarm for the others."""
    state = draft.state
    waiting = state.dependents.get(awaited, ())
    now, later = waiting[:DEPENDENTS_AT_ONCE], waiting[DEPENDENTS_AT_ONCE:]
    if later:
        state.dependents = state.dependents.put(awaited, later)
        draft.wake(draft.now + NEXT_SECONDS, Wake.AFTER, awaited)
    else:
        state.dependents = state.dependents.drop(awaited)
    for name in now:
        job = draft.job(name)
        if job is not None:
            look_at_dependencies(job, draft)


def look_at_dependencies(job: Job, draft: PoolDraft, past: Mapping[JobId, Job] | None = None) -> None:
    """Update the list of awaited jobs, and end the job if a required job failed.

    ``past`` holds finished jobs that the state no longer knows. Another person's job counts as an unknown
    job, so that its end gives no information.
    """
    if not isinstance(job.state, Queued):
        return
    past = past or {}
    for after in job.awaits:
        over = _own(job, draft.state.ended.get(after.job))
        failed = _failed(over or past.get(after.job))
        if after.kind is AfterKind.OK and failed:
            reason = f"job {after.job}, which had to succeed before it, {failed}"
            end(job, JobFailed(reason, hint=f"`gpushare why {after.job}` tells more"), reason, draft)
            return
    awaits = tuple(after for after in job.awaits if after.job not in past and _awaited(job, after, draft))
    if awaits == job.awaits:
        return
    job = replace(job, awaits=awaits)
    if awaits:
        draft.put(job, durable=False)  # after a restart the awaited jobs are looked at again
    else:
        draft.put(job.note(draft.now, "what it waited for is over"))


def _awaited(job: Job, after: After, draft: PoolDraft) -> bool:
    """Return True if the awaited job may still end.

    An unknown job counts as over, unless a node may still report it.
    """
    state = draft.state
    if _own(job, state.jobs.get(after.job)) is not None:
        return True
    return not state.settled and _own(job, state.ended.get(after.job)) is None


def _own(job: Job, awaited: Job | None) -> Job | None:
    """Return the awaited job if the waiting job's owner may see it."""
    if awaited is None or not job.spec.owner.may_see_jobs_of(awaited.spec.owner):
        return None
    return awaited


def _failed(job: Job | None) -> str:
    """Say how a finished job failed; return "" if it succeeded or is not over."""
    state: JobState | None = None if job is None else job.state
    if not isinstance(state, Ended) or isinstance(state.outcome, Succeeded):
        return ""
    return "was cancelled" if isinstance(state.outcome, Cancelled) else "failed"
