"""Carry a job on when a part of its attempt reports: apply the report and decide what becomes of the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import zip_longest
from zlib import crc32

from gpushared.domain.jobs.attempt_history import BEGUN_STATES, timed, tried
from gpushared.domain.jobs.coordinator_state import (
    GrantsByNode,
    PoolDraft,
    Wake,
    is_gang,
    is_incomplete,
    is_over,
)
from gpushared.domain.jobs.job import (
    HERE,
    AttemptState,
    Cancelled,
    Cancelling,
    Ended,
    Ending,
    EndKind,
    Job,
    JobFailed,
    JobOutcome,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Succeeded,
    Then,
    cut_short,
)
from gpushared.domain.jobs.member import HeartbeatReport, Member, RefusalPause
from gpushared.domain.jobs.orders import knows_ranks, name_of, send
from gpushared.domain.jobs.protocol import Report, moved
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.units import first_few, format_wait

NAMED = 3
MAX_REFUSERS = 16
"""The job fails after this many nodes have refused it."""
MOST_DOUBLINGS = 4
"""The pause of a node that goes on refusing with the same report is doubled at most this many times."""
MAX_GPU_LOSSES = 1
"""If a GPU fails under a job once more, that counts as the job's failure. Its program may be the cause, and
would put one GPU after the other out of use."""
FORGOTTEN = Ending(EndKind.LOST, "its node has no record of it any more")


class Fate(StrEnum):
    """Name the meaning of an attempt's end for its job."""

    DONE = "done"
    AGAIN = "again"
    """The end was not the job's own doing: the job may run again, and the end does not count as a failure."""
    FAILED = "failed"
    CANCELLED = "cancelled"


_FATES = {
    EndKind.CANCELLED: Fate.CANCELLED,
    EndKind.STOPPED: Fate.CANCELLED,
    EndKind.EXPIRED: Fate.FAILED,
    EndKind.FAILED: Fate.FAILED,
    EndKind.PREEMPTED: Fate.AGAIN,
    EndKind.FENCED: Fate.AGAIN,
    EndKind.LOST: Fate.AGAIN,
    EndKind.NO_ROOM: Fate.AGAIN,
}


def begin(job: Job, parts: tuple[Part, ...], booked: GrantsByNode, draft: PoolDraft) -> None:
    """Begin the next attempt: the store has the attempt before its nodes receive the order."""
    number = job.attempts + 1
    state = Placing(number, parts, draft.now)
    nodes = ", ".join(name_of(part.node) for part in parts)
    job = replace(job, state=state, attempts=number, presumed=None)
    job = job.note(draft.now, f"attempt {number} goes to {nodes}")
    draft.put(job)
    draft.state.booked = draft.state.booked.put(job.id, booked)
    send(job, draft)
    watch_silence(job, draft)


def watch_silence(job: Job, draft: PoolDraft) -> None:
    """Set the alarms for the nodes that end the job for want of contact, also if no connection breaks."""
    if job.spec.stop_after_seconds is not None:
        for part in job.parts:
            draft.wake(draft.now + job.spec.stop_after_seconds, Wake.SILENCE, part.node)


def apply(job: Job, node: NodeName, report: Report, draft: PoolDraft) -> None:
    """Apply a node's report on its part of the current attempt.

    A report no newer than the last one came late and changes nothing; a final state stays final.
    """
    part = next((part for part in job.parts if part.node == node), None)
    if part is None or is_over(part) or _is_late(part, report):
        return
    if part.state is not None and _is_tombstone(report):
        # A log that had taken the order would still have its record.
        report = replace(report, state=AttemptState.ENDED, ending=FORGOTTEN)
    new = replace(
        part,
        state=report.state,
        lease=report.lease or part.lease,
        ending=report.ending and report.ending.cut_short(),
        revision=report.revision,
        guarded=report.guarded,
    )
    new = timed(new, moved(report, draft.state.moment), job.asked_at, draft.now)
    could_not_begin = new.ending is not None and new.ending.passing and not new.ending.is_gpu_loss
    if report.state is AttemptState.REFUSED or could_not_begin:
        _count_refusal(new, 0.0 if isinstance(job.state, Ended) else job.state.since, draft)
    elif report.state is not AttemptState.PREPARING:
        _forgive(node, draft)
    if new.guarded and not part.guarded:
        watch_silence(job, draft)
    replace_part(job, new, draft)


def _is_late(part: Part, report: Report) -> bool:
    """Return True if the report is no newer than the last one.

    A final report is the last one of its log. If its revision is lower all the same, it comes from a new or
    older log, which counts revisions anew: the node was reinstalled, or its state folder was put back.
    """
    if report.state.is_final or report.revision > part.revision:
        return False
    # A coordinator of an older version noted the revision, but not the guard.
    return report.revision < part.revision or report.guarded == part.guarded


def _is_tombstone(report: Report) -> bool:
    """Return True if the node had no record of the attempt when it was asked about it, or was to end it."""
    kinds = {EndKind.LOST, EndKind.CANCELLED}
    return report.state is AttemptState.REFUSED and report.ending is not None and report.ending.kind in kinds


def replace_part(job: Job, new: Part, draft: PoolDraft) -> None:
    """Replace a part of the job, and advance the job."""
    assert not isinstance(job.state, Queued)
    before = next(part for part in job.parts if part.node == new.node)
    parts = tuple(new if part.node == new.node else part for part in job.parts)
    job = replace(job, state=replace(job.state, parts=parts))
    # After a restart the guard must be known too, while the part's node is silent.
    draft.put(job, durable=is_over(new) or new.guarded != before.guarded)
    advance(job, draft)


def advance(job: Job, draft: PoolDraft) -> None:
    """Advance a job as far as its parts allow.

    With an old memory, a reported end may belong to an attempt before the one that runs now.
    """
    if draft.is_in_doubt(job.id) and any(map(is_over, job.parts)):
        return
    match job.state:
        case Placing(committed=False) if is_gang(job.spec):
            _gather(job, job.state, draft)
        case Placing() | Running():
            _go_on(job, job.state, draft)
        case Cancelling() if all(map(is_over, job.state.parts)) and not draft.is_old(job.id):
            _taken_down(job, job.state, draft)


def _gather(job: Job, state: Placing, draft: PoolDraft) -> None:
    """Commit a gang once all of its parts are reserved; if one part is over, take all of them down."""
    if is_incomplete(job) or draft.is_in_doubt(job.id):
        return
    over = [part for part in state.parts if is_over(part)]
    if over:
        take_down(job, over[0], draft)
    elif all(part.state is AttemptState.RESERVED for part in state.parts) and not knows_ranks(job):
        text = "who was to be which part of it is not known any more, so it is begun anew"
        cancel(job, Then.REQUEUE, "the coordinator", draft, text)
    elif all(part.state is AttemptState.RESERVED for part in state.parts):
        committed = replace(job, state=replace(state, committed=True))
        committed = committed.note(draft.now, "all of its nodes have its room; it starts on all of them")
        draft.put(committed)
        send(committed, draft)


def _go_on(job: Job, state: Placing | Running, draft: PoolDraft) -> None:
    """Advance an attempt that may run: record that it runs, conclude it, or take its other parts down."""
    bad = [part for part in state.parts if is_over(part) and not _went_well(part)]
    if bad and len(state.parts) > 1:
        take_down(job, bad[0], draft)
    elif bad:
        _conclude(job, bad[0], draft)
    elif all(map(_went_well, state.parts)):
        end(job, Succeeded(), "it ended with exit code 0", draft)
    elif isinstance(state, Placing) and all(_has_started(part) or _went_well(part) for part in state.parts):
        nodes = ", ".join(name_of(part.node) for part in state.parts)
        running = Running(state.attempt, state.parts, draft.now, granted_at=state.since)
        draft.put(replace(job, state=running, troubles=0).note(draft.now, f"it runs on {nodes}"))


def _has_started(part: Part) -> bool:
    return part.state in BEGUN_STATES


def _went_well(part: Part) -> bool:
    ending = part.ending
    return (
        part.state is AttemptState.ENDED
        and ending is not None
        and ending.kind is EndKind.EXITED
        and ending.exit_code == 0
    )


# --- taking down ---------------------------------------------------------------------------------------


def take_down(job: Job, part: Part, draft: PoolDraft) -> None:
    """End the rest of a gang when one part of it is over."""
    ending = _ending(part)
    then = {Fate.FAILED: Then.FAIL, Fate.CANCELLED: Then.CANCEL}.get(_fate(part), Then.REQUEUE)
    if _is_refused_for_good(part):
        job = refused(job, part.node, ending)
        then = Then.FAIL if _too_few_nodes_left(job, draft) else Then.REQUEUE
    elif _passes(job, ending, draft):
        then = Then.REQUEUE
    elif then is Then.REQUEUE and not _comes_back(job, part):
        then = Then.FAIL
    text = f"its part on {name_of(part.node)} {_ended_how(part)}, so the rest of it is ended"
    cancel(job, then, f"its part on {name_of(part.node)}", draft, text, ending=ending)


def cancel(
    job: Job,
    then: Then,
    by: str,
    draft: PoolDraft,
    text: str,
    *,
    ending: Ending | None = None,
    grace_seconds: int | None = None,
) -> None:
    """Order all nodes to end an attempt; ``then`` takes effect when all of them have confirmed the end."""
    assert isinstance(job.state, Placing | Running | Cancelling)
    grace = draft.rules.stop_grace_seconds if grace_seconds is None else grace_seconds
    state = Cancelling(job.state.attempt, job.state.parts, draft.now, then, by, ending, grace)
    job = draft.put(replace(job, state=state).note(draft.now, text))
    send(job, draft)
    advance(job, draft)


def _taken_down(job: Job, state: Cancelling, draft: PoolDraft) -> None:
    if state.parts and all(map(_went_well, state.parts)):
        end(job, Succeeded(), "it ended with exit code 0 before it could be stopped", draft)
    elif state.then is Then.CANCEL and state.ending is not None:
        reason = _reason_of(state.ending)
        end(job, Cancelled(reason=reason), f"ended: {reason}", draft)
    elif state.then is Then.CANCEL:
        end(job, Cancelled(state.by), f"cancelled by {state.by}", draft)
    elif (
        state.then is Then.FAIL
        and any(map(_is_refused_for_good, state.parts))
        and _too_few_nodes_left(job, draft)
    ):
        refusal = _ending(next(filter(_is_refused_for_good, state.parts)))
        end(job, _refused_by_all(job, refusal), "too few nodes are left that might have it", draft)
    elif state.then is Then.FAIL:
        _fail(job, _ending_of_all(state), draft)
    elif state.ending is not None and _passes(job, state.ending, draft):
        _try_later(job, _ending_of_all(state), draft)
    else:
        refused = any(part.state is AttemptState.REFUSED for part in state.parts)
        wait = _backoff(job, _refusals(state.parts, draft), draft) if refused else 0.0
        requeue(job, "it waits again", draft, wait_seconds=wait)


# --- after the attempt -----------------------------------------------------------------------------------


def _conclude(job: Job, part: Part, draft: PoolDraft) -> None:
    """Decide what follows when the only part of an attempt is over without success."""
    ending = _ending(part)
    if part.state is AttemptState.REFUSED:
        _refused(job, part, ending, draft)
        return
    if ending.is_gpu_loss:
        job = replace(job, gpu_losses=job.gpu_losses + 1)
        if job.gpu_losses > MAX_GPU_LOSSES:
            reason = cut_short(f"{_reason_of(ending)}; another GPU had failed under the job before")
            _fail(job, replace(ending, reason=reason), draft)
            return
    elif _passes(job, ending, draft):
        _try_later(job, _named(ending, (part.node,)), draft)
        return
    match _fate(part):
        case Fate.CANCELLED:
            end(job, Cancelled(reason=_reason_of(ending)), f"ended: {_reason_of(ending)}", draft)
        case Fate.AGAIN if _comes_back(job, part):
            how = f"{_ended_how(part)} on {name_of(part.node)}"
            requeue(job, f"{how if job.presumed is None else 'it counts as ended'}; it waits again", draft)
        case _:
            _fail(job, _named(ending, (part.node,)) if ending.passing else ending, draft)


def _refused(job: Job, part: Part, ending: Ending, draft: PoolDraft) -> None:
    where = name_of(part.node)
    if ending.kind is EndKind.FAILED:
        job = refused(job, part.node, ending)
        if _too_few_nodes_left(job, draft) and not draft.is_old(job.id):
            end(job, _refused_by_all(job, ending), f"{where} will not have it: {_reason_of(ending)}", draft)
            return
        requeue(job, f"{where} will not have it: {_reason_of(ending)}; another one is sought", draft)
    elif ending.kind is not EndKind.NO_ROOM:
        requeue(job, f"{where}: {_reason_of(ending)}; it waits again", draft)
    elif job.spec.immediate:
        reason = f"{where} had no room for it at once: {_reason_of(ending)}"
        end(job, JobFailed(reason, hint=ending.hint), reason, draft)
    else:
        wait = _backoff(job, _refusals((part,), draft), draft)
        requeue(job, f"{where} had no room for it: {_reason_of(ending)}", draft, wait_seconds=wait)


def _refused_by_all(job: Job, last: Ending) -> JobFailed:
    if len(job.refused_by) == 1:
        return JobFailed(_reason_of(last), hint=last.hint)
    return JobFailed(refusal_reasons(job), hint=refusal_hint(job))


def _passes(job: Job, ending: Ending, draft: PoolDraft) -> bool:
    """Return True if the attempt could not begin for a passing reason and the job is tried again for that."""
    return ending.passing and job.troubles < draft.rules.troubles_borne and not job.spec.immediate


def _try_later(job: Job, ending: Ending, draft: PoolDraft) -> None:
    """Try the job later.

    The attempt did not even begin, so it does not count as the job's own failure.
    """
    rules, troubles = draft.rules, job.troubles + 1
    wait = backoff_seconds(troubles, first=rules.retry_seconds, longest=rules.trouble_most_seconds)
    again = f"tried again in {format_wait(wait)} ({troubles} of {rules.troubles_borne})"
    requeue(replace(job, troubles=troubles), f"{again}: {_reason_of(ending)}", draft, wait_seconds=wait)


def _ending_of_all(state: Cancelling) -> Ending:
    """Return the ending of an attempt on several nodes, and name all nodes that gave the same reason."""
    ending = state.ending or Ending(EndKind.FAILED, state.by)
    nodes = [part.node for part in state.parts if part.ending is not None and _alike(part.ending, ending)]
    return _named(ending, nodes)


def _alike(ending: Ending, other: Ending) -> bool:
    """Return True if both reasons begin alike. Engines quote ports and addresses, so the rest may differ."""
    head, _, _ = other.reason.partition(":")
    return bool(head) and ending.kind is other.kind and ending.reason.partition(":")[0] == head


def _named(ending: Ending, nodes: Sequence[NodeName]) -> Ending:
    """Add the nodes' names to the reason of an attempt that could not begin."""
    if ending.kind is not EndKind.FAILED or not nodes or HERE in nodes:
        return ending
    where = f"node{'' if len(nodes) == 1 else 's'} {first_few(nodes, NAMED)}"
    return replace(ending, reason=cut_short(f"{where}: {_reason_of(ending)}"))


def _fail(job: Job, ending: Ending, draft: PoolDraft) -> None:
    """Count a failure of the job's own: run the job again, or end it if no retry is left."""
    reason = _reason_of(ending)
    failures = job.failures + 1
    if failures > job.spec.retries or job.spec.interactive:
        end(job, JobFailed(reason, ending.exit_code, ending.hint), f"failed: {reason}", draft)
        return
    rules = draft.rules
    wait = backoff_seconds(failures, first=rules.retry_seconds, longest=rules.retry_most_seconds)
    text = f"failed: {reason}; retry {failures} of {job.spec.retries} in {format_wait(wait)}"
    requeue(replace(job, failures=failures), text, draft, wait_seconds=wait)


def requeue(job: Job, text: str, draft: PoolDraft, *, wait_seconds: float = 0.0) -> None:
    """Return the job to the queue, at its old place."""
    not_before = draft.now + wait_seconds if wait_seconds else 0.0
    job = tried(job, draft.now)
    draft.put(replace(job, state=Queued(draft.now, not_before)).note(draft.now, text))


def end(job: Job, outcome: JobOutcome, text: str, draft: PoolDraft) -> None:
    """End the job for good with this outcome."""
    draft.put(replace(job, state=Ended(draft.now, outcome, job.parts)).note(draft.now, text))


def lost(part: Part, kind: EndKind, reason: str) -> Part:
    """Return the part as over, although its node did not report the end."""
    return replace(part, state=AttemptState.ENDED, ending=Ending(kind, reason))


def _ending(part: Part) -> Ending:
    return part.ending or Ending(EndKind.FAILED, "its node did not say why")


def _fate(part: Part) -> Fate:
    """Return the meaning of a part's end for its job. A refusal is an end before the beginning."""
    ending = _ending(part)
    if ending.kind is EndKind.EXITED:
        return Fate.DONE if ending.exit_code == 0 else Fate.FAILED
    if part.state is AttemptState.REFUSED:
        return Fate.AGAIN
    return _FATES[ending.kind]


def _comes_back(job: Job, part: Part) -> bool:
    """Return True if the job runs again after an end that was not its own doing."""
    if part.state is AttemptState.REFUSED:
        return not _is_refused_for_good(part)
    return job.starts_again


def _is_refused_for_good(part: Part) -> bool:
    """Return True if the part's node refuses the job whatever is free there."""
    return part.state is AttemptState.REFUSED and _ending(part).kind is EndKind.FAILED


def _too_few_nodes_left(job: Job, draft: PoolDraft) -> bool:
    """Return True if the members that might take the job are too few, or have too few GPUs for a span."""
    if job.spec.target in job.refused_by or len(job.refused_by) >= MAX_REFUSERS:
        return True
    members = draft.state.members.values()
    willing = [each for each in members if each.name not in job.refused_by and each.forgotten_at is None]
    return len(willing) < max(1, job.spec.nodes) or (job.spec.span and _have_too_few_gpus(willing, job))


def _have_too_few_gpus(members: Iterable[Member], job: Job) -> bool:
    """Return True if these members together do not have the GPUs of the job, even when they are empty."""
    request, count = job.spec.request, 0
    for member in members:
        if member.inventory is None:
            return False  # a node that has not connected yet may have any number
        count += sum(not request.models or gpu.name in request.models for gpu in member.inventory.gpus)
    return count < request.gpu_count


def _reason_of(ending: Ending) -> str:
    if ending.kind is EndKind.EXITED:
        code = "unknown" if ending.exit_code is None else str(ending.exit_code)
        return ending.reason or f"exit code {code}"
    return ending.reason or _DEFAULT_REASONS[ending.kind]


_DEFAULT_REASONS = {
    EndKind.CANCELLED: "it was cancelled",
    EndKind.STOPPED: "somebody stopped it on its node",
    EndKind.EXPIRED: "its time limit was reached",
    EndKind.FAILED: "it could not be started",
    EndKind.PREEMPTED: "it gave way to others",
    EndKind.FENCED: "its node had not heard from the coordinator for too long",
    EndKind.LOST: "its node lost it",
    EndKind.NO_ROOM: "there was no room",
}


def _ended_how(part: Part) -> str:
    verb = "was refused" if part.state is AttemptState.REFUSED else "ended"
    return f"{verb} ({_reason_of(_ending(part))})"


# --- refusals ------------------------------------------------------------------------------------------


def _count_refusal(part: Part, placed_at: float, draft: PoolDraft) -> None:
    """Count a node's refusals, and try a node that refuses again and again last. Tombstones do not count.

    If the node had reported before that its own users wait, it may keep its room for them, and is tried last
    as long as they wait. If it had not, the room may have been taken meanwhile, and the node's next reports
    show that: the pause grows only if the node refuses with the same report as the last time.
    """
    member, ending = draft.state.members.get(part.node), _ending(part)
    if member is None or ending.kind not in {EndKind.NO_ROOM, EndKind.FAILED}:
        return
    member = draft.put_member(replace(member, refusals=member.refusals + 1), durable=False)
    if member.refusals < draft.rules.refusals_before_rest:
        return
    no_room, before = ending.kind is EndKind.NO_ROOM, draft.state.resting.get(part.node)
    if no_room and member.queue_since is not None and member.queue_since < placed_at:
        rest = RefusalPause(before.until if before else draft.now, 0, member.free)
    else:
        same = before is not None and (not no_room or _is_same_report(before.report, member.free))
        doublings = min(before.doublings + 1, MOST_DOUBLINGS) if before and same else 0
        rest = RefusalPause(draft.now + draft.rules.rest_seconds * 2.0**doublings, doublings, member.free)
    draft.state.resting = {**draft.state.resting, part.node: rest}


def _is_same_report(before: HeartbeatReport, now: HeartbeatReport) -> bool:
    """Return True if the reports are equal apart from stray memory.

    Stray memory varies all the time, and takes room from nobody for long.
    """
    return replace(before, stray_bytes=()) == replace(now, stray_bytes=())


def _forgive(node: NodeName, draft: PoolDraft) -> None:
    member = draft.state.members.get(node)
    if member is not None and member.refusals:
        draft.put_member(replace(member, refusals=0), durable=False)
        resting = draft.state.resting
        draft.state.resting = {name: rest for name, rest in resting.items() if name != node}


def _refusals(parts: Iterable[Part], draft: PoolDraft) -> int:
    refusals = [
        member.refusals
        for part in parts
        if part.state is AttemptState.REFUSED and (member := draft.state.members.get(part.node)) is not None
    ]
    return max(refusals, default=1)


def _backoff(job: Job, refusals: int, draft: PoolDraft) -> float:
    """Return the wait before the next attempt, which grows with the refusals.

    The wait differs from attempt to attempt, so that two gangs do not meet again and again.
    """
    rules = draft.rules
    most = backoff_seconds(max(1, refusals), first=rules.refused_seconds, longest=rules.refused_most_seconds)
    share = crc32(f"{job.id}/{job.attempts}".encode()) % 1000 / 1000
    return most * (0.5 + share)


MAX_KEPT = 500
"""At most this many characters of a node's reason and hint are kept with the job."""


def refused(job: Job, node: NodeName, ending: Ending) -> Job:
    """Return the job with the node's refusal, so that the job is not offered to that node again."""
    refusal = replace(ending, reason=ending.reason[:MAX_KEPT], hint=ending.hint[:MAX_KEPT])
    return replace(job, refused_by=(*job.refused_by, node), refusals=(*job.refusals, refusal))


def refusal_reasons(job: Job) -> str:
    """Return the nodes' reasons for refusing the job, as a part of a sentence; return "" if none gave one."""
    pairs = list(zip_longest(job.refused_by, job.refusals))
    texts = [
        f"{name_of(node)} will not have it" + (f": {ending.reason}" if ending and ending.reason else "")
        for node, ending in pairs[:NAMED]
    ]
    more = f"; nor will {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    return "; ".join(texts) + more


def refusal_hint(job: Job) -> str:
    """Return the hint for the first refusal that has one."""
    return next((ending.hint for ending in job.refusals if ending.hint), "")
