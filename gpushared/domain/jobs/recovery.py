"""Find out the true state of the pool, after a coordinator's start and after a loss of memory.

Nothing *old* is placed before all members have reported. A job is old if it was in the store at the start, if
a node resent it, or if a node reported it: the job may run somewhere without our knowing. After an ordinary
start the store knows all old jobs, and the coordinator waits for silent members for only a minute. If a node
has seen more of this pool than we remember, the coordinator waits for each member, until the member reports
or an admin waives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpushared.domain.jobs import staleness_claims
from gpushared.domain.jobs.coordinator_events import (
    AttemptReported,
    NodeEnrolled,
    NodeForgotten,
    NodeRegistered,
    Send,
)
from gpushared.domain.jobs.coordinator_state import (
    NOTHING,
    PoolDraft,
    Wake,
    is_gang,
    is_incomplete,
    shape_of,
)
from gpushared.domain.jobs.job import (
    HERE,
    Cancelling,
    Ended,
    EndKind,
    Job,
    JobFailed,
    JobSpec,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Then,
)
from gpushared.domain.jobs.job_commands import enter, is_same_request, look_at_dependencies
from gpushared.domain.jobs.job_progress import (
    advance,
    apply,
    cancel,
    end,
    lost,
    replace_part,
    watch_silence,
)
from gpushared.domain.jobs.member import Member
from gpushared.domain.jobs.orders import name_of, order_for, send_end, send_ends
from gpushared.domain.jobs.pending_jobs import JobShape, PendingJobs
from gpushared.domain.jobs.protocol import Place, Query, Report, StaleEpoch, moved
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.projects import project_of

MAX_AHEAD = 1000
"""An old memory lacks fewer attempts of one job than this. A higher claim is false, and would use up the
job's numbers."""

# --- reports of nodes ----------------------------------------------------------------------------------


def register(event: NodeRegistered, draft: PoolDraft) -> None:
    """Register a node with its reports.

    The node has already taken our epoch (and takes no orders of lower ones any more), unless our epoch was
    below the highest that the node has seen. Raises ClaimRefused.
    """
    state = draft.state
    member = state.members.get(event.node) or Member(event.node, draft.now, (event.node,))
    is_known = event.node in state.members
    claims_news = staleness_claims.is_news(event, member, state)
    outranked = staleness_claims.is_outranked(event, state)
    news = member.inventory != event.inventory or member.forgotten_at is not None or not is_known
    member = replace(
        member,
        inventory=event.inventory,
        free=event.free,
        connected=True,
        heard_at=draft.now,
        silent_since=None,
        forgotten_at=None,
    )
    draft.put_member(member, durable=news)
    state.waived -= {event.node}
    state.stale = True
    if claims_news or outranked:
        state.claimants |= {event.node}
    if not is_known or claims_news:
        _remember_less(draft)
    if outranked:
        state.epoch = event.seen_epoch + 1
        state.reported = frozenset()
        return
    reported_keys = {report.key for report in event.reports}
    for report in sorted(event.reports, key=lambda report: report.revision):
        reported(AttemptReported(event.node, report), draft)
    state.reported |= {event.node}
    if member.excused:
        draft.put_member(replace(draft.state.members[event.node], excused=False))
    _ask_of_the_rest(event.node, reported_keys, draft)
    settle_if_due(draft)


def _remember_less(draft: PoolDraft) -> None:
    """Begin a recovery: a node knows more of this pool than we do, so our memory is an old one, or gone."""
    state = draft.state
    if state.recovering_since is None:
        state.recovering_since = draft.now
        draft.wake(draft.now + draft.rules.recover_seconds, Wake.SETTLE)
    if state.settled:
        unsettle(draft)


def unsettle(draft: PoolDraft) -> None:
    """Treat all unfinished jobs as old: each of them may run somewhere."""
    state = draft.state
    state.settled = False
    state.waiting, state.gangs, state.throttles = PendingJobs(), PendingJobs(), PersistentMap()
    state.old = PersistentMap((name, None) for name in state.jobs)


def _ask_of_the_rest(node: NodeName, reported_keys: set[AttemptKey], draft: PoolDraft) -> None:
    """Send orders again for parts that the node did not report, or ask for the state of these parts."""
    for name in sorted(draft.state.by_node.get(node) or ()):
        job = draft.state.jobs[name]
        part = next(part for part in job.parts if part.node == node)
        key = AttemptKey(job.id, _attempt(job))
        order = order_for(job, part, draft)
        doubtful = not draft.state.settled and isinstance(order, Place)
        if key not in reported_keys and (order is None or doubtful):
            order = Query(key, draft.state.epoch)
        if order is not None:
            draft.do(Send(node, order))
            draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


def reported(event: AttemptReported, draft: PoolDraft) -> None:
    """Apply a node's report on one attempt.

    A report before the node's registration is repeated there and is ignored.
    """
    node, report = event.node, event.report
    member = draft.state.members.get(node)
    if member is None or not member.connected:
        return
    if isinstance(report, StaleEpoch):
        _outranked(node, report, draft)
        return
    job = draft.state.jobs.get(report.key.job)
    if job is None:
        _apply_to_unknown(node, report, draft)
    elif report.key.number > job.attempts and _may_have_it(job, node, report, draft):
        _adopt(job, node, report, draft)
    elif not isinstance(job.state, Queued) and report.key.number == _attempt(job):
        _apply_to_current(_as_it_was(job, node, report, draft), node, report, draft)
    elif job.presumed is not None and _is_of_presumed(job, job.presumed, node, report):
        _apply_to_presumed(job, job.presumed, report, draft)
    else:
        _keep_clear(job, node, report, draft)
        if not report.state.is_final:
            send_end(node, report.key, draft)


def _is_of_presumed(job: Job, part: Part, node: NodeName, report: Report) -> bool:
    """Return True if the report is on an attempt that was presumed over, and no other was begun since."""
    return isinstance(job.state, Queued) and (node, report.key.number) == (part.node, job.attempts)


def _as_it_was(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> Job:
    """Replace a presumed end by the attempt's own reported end, while the job is in doubt."""
    part = job.presumed
    if part is None or part.node != node or not _is_its_own_end(part, report):
        return job
    assert not isinstance(job.state, Queued), "then it is not under way"
    text = f"{name_of(node)} tells how it ended before it was to be ended"
    job = replace(job, state=replace(job.state, parts=(part,)), presumed=None)
    return draft.put(job.note(draft.now, text))


def _is_its_own_end(part: Part, report: Report) -> bool:
    ending = report.ending
    newer = report.state.is_final and report.revision > part.revision
    return newer and ending is not None and ending.kind is EndKind.EXITED


def _apply_to_presumed(job: Job, part: Part, report: Report, draft: PoolDraft) -> None:
    if not report.state.is_final:
        send_end(part.node, report.key, draft)
    elif _is_its_own_end(part, report):
        _take_late_end(job, part, report, draft)
    else:
        draft.put(replace(job, presumed=None))


def _take_late_end(job: Job, part: Part, report: Report, draft: PoolDraft) -> None:
    """Count an attempt's late report of its own end, as long as the job was not placed anew."""
    tries = job.tries[:-1] if job.tries and job.tries[-1].number == job.attempts else job.tries
    state = Running(job.attempts, (part,), draft.now)
    job = replace(job, state=state, tries=tries, presumed=None)
    text = f"{name_of(part.node)} tells how attempt {job.attempts} ended before it was to be ended"
    job = draft.put(job.note(draft.now, text))
    apply(job, part.node, report, draft)


def _may_have_it(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> bool:
    """Return True if an unknown attempt on the node can be one of ours.

    We began no attempt while another one was under way, nor, once all nodes have reported, any attempt that
    we do not know. Without this check a node could take over a job meant for other nodes. A node that guesses
    the id of a job does not know the job's spec; but some honest nodes do not know the spec of a finished
    attempt either.
    """
    is_it = report.state.is_final if report.spec is None else is_same_request(report.spec, job.spec)
    if not is_it:
        return False
    if draft.is_old(job.id):
        # A job's binding to one node may come from that node's own report alone.
        return job.spec.target in {HERE, node} or job.told_by != HERE
    if job.spec.target not in {HERE, node} or not isinstance(job.state, Queued):
        return False
    return _is_believed(node, draft)


def _is_believed(node: NodeName, draft: PoolDraft) -> bool:
    """Return True if a node may have attempts that we do not know.

    That is so until all nodes have reported, and for a node without which a recovery went on. At all other
    times each attempt is in the store before its node receives the order.
    """
    state = draft.state
    return draft.rules.here or not state.settled or state.members[node].excused


def _keep_clear(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> None:
    """Skip the number of an unknown attempt.

    If our next attempt had the same number, its node would answer with the end of the unknown one.
    """
    if not _is_believed(node, draft):
        return
    if job.attempts < report.key.number <= job.attempts + MAX_AHEAD:
        draft.put(replace(job, attempts=report.key.number))


def _outranked(node: NodeName, report: StaleEpoch, draft: PoolDraft) -> None:
    state = draft.state
    if report.epoch > state.epoch and node not in state.claimants:
        state.claimants |= {node}
        state.epoch = report.epoch + 1


def _apply_to_current(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> None:
    """Apply a report on the current attempt. The nodes of an adopted gang report its parts one by one."""
    if any(part.node == node for part in job.parts):
        apply(job, node, report, draft)
    elif is_gang(job.spec) and draft.is_old(job.id) and report.request is not None:
        _add_part(job, node, report, draft)
    elif not report.state.is_final:
        send_end(node, report.key, draft)


def _apply_to_unknown(node: NodeName, report: Report, draft: PoolDraft) -> None:
    """Apply a report on a job that is over, or that we do not remember."""
    if report.key.job in draft.state.ended or not _is_believed(node, draft):
        if not report.state.is_final:
            send_end(node, report.key, draft)
    elif report.spec is not None:
        _learn(node, report, report.spec, draft)
    elif report.state.is_final:
        _note_number(node, report.key, draft)


def _note_number(node: NodeName, key: AttemptKey, draft: PoolDraft) -> None:
    """Remember the number of an attempt of a job that may still be reported, up to a limit for each node."""
    state = draft.state
    number = state.numbers.get(key.job)
    if number is None:
        numbers = state.reported_numbers.get(node, 0) + 1
        if numbers > draft.rules.max_numbers_per_node:
            return
        state.reported_numbers = state.reported_numbers.put(node, numbers)
    state.numbers = state.numbers.put(key.job, max(key.number, number or 0))


def _learn(node: NodeName, report: Report, spec: JobSpec, draft: PoolDraft) -> None:
    """Make a job our own again, unless the node reports more jobs than it can have."""
    state, rules = draft.state, draft.rules
    total = state.reported_jobs.get(node, NOTHING).changed(spec, 1)
    most = rules.max_queued if rules.here else min(rules.max_reported_jobs_per_node, rules.max_queued)
    if total.jobs > most or (total.spec_bytes > rules.max_reported_bytes_per_node and not rules.here):
        return
    state.reported_jobs = state.reported_jobs.put(node, total)
    try:
        project = project_of(spec.owner.person, spec.request.project, state.policy)
    except GpushareError:
        project = spec.owner.person
    vouched = _speaks_for(node, spec, draft)
    job = Job(
        id=report.key.job,
        sequence=state.next_sequence,
        spec=spec if vouched else replace(spec, target=node),
        submitted_at=draft.now,
        state=Queued(draft.now),
        project=project,
        attempts=report.key.number - 1,
        priority=spec.request.priority,
        awaits=(),
        told_by=HERE if vouched else node,
        kept_since=_known_since(node, report, draft),
    )
    enter(job, draft, old=True)
    if state.settled:
        state.settled = False
        draft.wake(draft.now + draft.rules.settle_seconds, Wake.SETTLE)
    _adopt(job, node, report, draft)


def _known_since(node: NodeName, report: Report, draft: PoolDraft) -> float | None:
    """Return the earliest time of the attempt on its node: its owner must have submitted the job by then.

    The time cannot be before the node joined the pool. Return None if the attempt has not begun.
    """
    report = moved(report, draft.state.moment)
    moments = [at for at in (report.started_at, report.ended_at) if at is not None and at < draft.now]
    return max(draft.state.members[node].enrolled_at, min(moments)) if moments else None


def _speaks_for(node: NodeName, spec: JobSpec, draft: PoolDraft) -> bool:
    """Return True if a node's report is enough to run a job for the owner, also on other nodes."""
    return draft.rules.here or spec.owner.realm in {node, *draft.state.members[node].realms}


def _adopt(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> None:
    """Adopt an attempt that is newer than all attempts that we remember."""
    part = Part(node, _request_of(job, report), address=draft.address_of(node))
    state = job.state
    send_ends(job, draft, spared=node)  # the attempt on this node goes on
    if job.told_by not in {HERE, node}:
        job = replace(job, told_by=node, spec=replace(job.spec, target=node))
    if isinstance(state, Cancelling):
        adopted = replace(state, attempt=report.key.number, parts=(part,))
        job = replace(job, state=adopted, attempts=report.key.number)
    else:
        placing = Placing(report.key.number, (part,), draft.now, committed=report.committed)
        job = replace(job, state=placing, attempts=report.key.number)
    job = job.note(draft.now, f"{name_of(node)} tells of attempt {report.key.number}, which is taken over")
    draft.state.old = draft.state.old.put(job.id, None)
    draft.put(job)
    watch_silence(job, draft)
    apply(draft.state.jobs[job.id], node, report, draft)
    _cancel_again(job.id, node, draft)


def _request_of(job: Job, report: Report) -> Request:
    """Return a node's part of the job's request, without anything that the job does not ask for."""
    request, part = job.spec.request, report.request
    if part is None:
        return request
    return replace(request, gpu_count=min(part.gpu_count, request.gpu_count), models=part.models)


def _add_part(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> None:
    assert isinstance(job.state, Placing | Running | Cancelling)
    rank = len(job.parts)
    part = Part(node, _request_of(job, report), rank, address=draft.address_of(node))
    state = replace(job.state, parts=(*job.state.parts, part))
    if isinstance(state, Placing) and report.committed:
        state = replace(state, committed=True)
    draft.put(replace(job, state=state))
    apply(draft.state.jobs[job.id], node, report, draft)
    _cancel_again(job.id, node, draft)


def _cancel_again(name: JobId, node: NodeName, draft: PoolDraft) -> None:
    """Send the cancel order for a job that was cancelled before the node reported it."""
    job = draft.state.jobs.get(name)
    if job is None or not isinstance(job.state, Cancelling):
        return
    part = next(part for part in job.parts if part.node == node)
    order = order_for(job, part, draft)
    if order is not None:
        draft.do(Send(node, order))
        draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


def _attempt(job: Job) -> int:
    return 0 if isinstance(job.state, Queued | Ended) else job.state.attempt


# --- waived members ------------------------------------------------------------------------------------


def enroll(event: NodeEnrolled, draft: PoolDraft) -> None:
    member = draft.state.members.get(event.node)
    realms = event.realms or (event.node,)
    if member is None:
        # During a recovery, the node may have been a member before we lost our memory, and may remember that.
        excused = draft.state.recovering_since is not None
        draft.put_member(Member(event.node, draft.now, realms, excused=excused))
        draft.state.waived |= {event.node}
    else:
        draft.put_member(replace(member, realms=realms, forgotten_at=None))


def forget(event: NodeForgotten, draft: PoolDraft) -> None:
    """Record an admin's statement that a node is off, or that the recovery need not wait for the node."""
    state = draft.state
    member = state.members.get(event.node)
    if member is not None and state.recovering_since is not None and event.node in state.missing():
        member = draft.put_member(replace(member, excused=True))
    state.waived |= {event.node}
    if not event.only_waive and member is not None:
        member = replace(member, connected=False, forgotten_at=draft.now)
        draft.put_member(member)
        reason = f"{event.by.principal} said that {name_of(event.node)} is off"
        for name in sorted(state.by_node.get(event.node) or ()):
            lose_part(draft.state.jobs[name], event.node, EndKind.LOST, reason, draft)
    settle_if_due(draft)
    if state.settled:
        _end_orphans(list(state.jobs.values()), draft)


def _end_orphans(jobs: Iterable[Job], draft: PoolDraft) -> None:
    """End the waiting jobs whose only source is a node that was forgotten: nobody else vouches for them."""
    for job in jobs:
        member = draft.state.members.get(job.told_by)
        gone = member is None or member.forgotten_at is not None
        if job.told_by != HERE and gone and isinstance(job.state, Queued):
            reason = f"only {name_of(job.told_by)} told of it, and that was forgotten"
            end(job, JobFailed(reason, hint="is it still wanted? then submit it again"), reason, draft)


def lose_part(job: Job, node: NodeName, kind: EndKind, reason: str, draft: PoolDraft) -> None:
    """Record that a part of a job is over, though its node did not report the end."""
    part = next(part for part in job.parts if part.node == node)
    if len(job.parts) == 1:
        job = replace(job, presumed=part)
        draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)
    replace_part(job.note(draft.now, reason), lost(part, kind, reason), draft)


# --- settling ------------------------------------------------------------------------------------------


def settle_if_due(draft: PoolDraft) -> None:
    """Let old jobs be placed, once all members have reported or have had their time."""
    state, rules = draft.state, draft.rules
    if state.settled:
        return
    missing = state.missing()
    if state.recovering_since is not None:
        due = state.recovering_since + rules.recover_seconds
        if missing or draft.now < due:
            if not missing:
                draft.wake(due, Wake.SETTLE)
            return
    elif missing and draft.now < state.started_at + rules.settle_seconds:
        return
    settle(draft)


def settle(draft: PoolDraft) -> None:
    """Treat old jobs as all others from now on; many jobs enter the queue in one piece of work."""
    state = draft.state
    old, state.old = state.old, PersistentMap()
    state.settled, state.recovering_since, state.numbers = True, None, PersistentMap()
    state.stale = True
    jobs = sorted((state.jobs[name] for name in old if name in state.jobs), key=lambda job: job.sequence)
    for job in jobs:
        if job.spec.array_limit is not None and not isinstance(job.state, Queued):
            draft.line_up(job)  # running jobs of an array count before other jobs of the array are admitted
    line_up_all([job for job in jobs if isinstance(job.state, Queued) and not job.awaits], draft)
    for job in jobs:
        if not isinstance(job.state, Queued) or job.awaits:
            _resume(job, draft)
    _end_orphans((state.jobs[job.id] for job in jobs if job.id in state.jobs), draft)


def line_up_all(jobs: Sequence[Job], draft: PoolDraft) -> None:
    """Put many waiting jobs into the queue, as ``PoolDraft.line_up`` does for one job."""
    state = draft.state
    entries: dict[bool, list[tuple[JobId, int, JobShape]]] = {False: [], True: []}
    policy = state.policy
    # An array with a limit lets its jobs in one after the other, so the highest priority comes first.
    for job in sorted(jobs, key=lambda job: -job.priority):
        if job.held_by or job.spec.array_limit is not None or state.ready_at(job) > draft.now:
            draft.line_up(job)
        else:
            entries[is_gang(job.spec)].append((job.id, job.sequence, shape_of(job, policy)))
    state.waiting = state.waiting.joined(entries[False])
    state.gangs = state.gangs.joined(entries[True])


def _resume(job: Job, draft: PoolDraft) -> None:
    """Advance a job that is no longer in doubt."""
    match job.state:
        case Queued():
            look_at_dependencies(job, draft)
        case Placing() | Running() if is_incomplete(job):
            text = "not all of its parts were told of, so it is ended and waits again"
            cancel(job, Then.REQUEUE, "the coordinator", draft, text)
        case _:
            advance(job, draft)
