"""Explain from the coordinator's state why a job does not run: a code for programs, words for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator_state import PoolState, array_key, shape_of
from gpushared.domain.jobs.job import (
    AttemptState,
    Cancelled,
    Cancelling,
    Ended,
    Job,
    JobFailed,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Succeeded,
    Then,
)
from gpushared.domain.jobs.liveness import has_client, presence, silent_since
from gpushared.domain.jobs.member import Presence
from gpushared.domain.jobs.placement_reasons import lack_of_room
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.units import first_few
from gpushared.domain.scheduling.pass_records import PassDecision, WaitReason
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.domain.scheduling.scheduling_pass import NO_ROOM

NAMED = 3


class JobReason(StrEnum):
    """Name reasons beside the reasons of waiting leases; docs/reference/reasons.md explains each."""

    HELD = "held"
    AFTER_JOB = "after_job"
    BEGIN_TIME = "begin_time"
    TRIED_AGAIN = "tried_again"
    ARRAY_LIMIT = "array_limit"
    RECOVERING = "recovering"
    REFUSED = "refused"
    PLACING = "placing"
    PREPARING = "preparing"
    STARTING = "starting"
    NODE_SILENT = "node_silent"
    CANCELLING = "cancelling"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Why:
    """Explain why a job waits: a code, a sentence, a hint, and its place in its queue (0 = not known)."""

    code: str
    sentence: str
    hint: str = ""
    position: int = 0


def why(job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None = None) -> Why | None:
    """Return why the job does not run, or None if it runs, succeeded, or is about to be placed."""
    match job.state:
        case Ended():
            return _why_over(job.state)
        case Queued():
            return _why_queued(job, state, now, snapshot)
        case Cancelling():
            return _why_silent(job.parts, state, now) or _why_cancelling(job.state)
        case Placing(parts=parts):
            return _why_silent(parts, state, now) or _why_placing(parts)
        case Running(parts=parts):
            return _why_silent(parts, state, now)


def why_in_full(
    job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None = None
) -> Why | None:
    """Explain one job alone. If the job waits for free GPUs, explain what prevents it on each node."""
    reason = why(job, state, now, snapshot)
    waits = isinstance(job.state, Queued) and not state.rules.here
    if not waits or (reason is not None and reason.code != Reason.RESOURCES):
        return reason
    return _why_no_room(job, state, now, snapshot)


def is_silent(part: Part, state: PoolState, now: float) -> bool:
    """Return True if a part's state is uncertain, because its node sends nothing."""
    member = state.members.get(part.node)
    if state.rules.here or member is None or (part.state is not None and part.state.is_final):
        return False
    return presence(member, state, now) in {Presence.UNKNOWN, Presence.NEVER}


def quiet_since(node: NodeName, state: PoolState, now: float) -> float | None:
    """Return when a node last sent a message, or None if that is not too long ago."""
    member = state.members.get(node)
    return None if state.rules.here or member is None else silent_since(member, state, now)


def wait_code(job: Job, state: PoolState, now: float) -> str:
    """Return the code of ``why`` for a job in the queue, without the work for a sentence; empty if unknown."""
    assert isinstance(job.state, Queued), "the caller passes waiting jobs only"
    begin_at = job.spec.request.begin_at
    if job.held_by:
        return JobReason.HELD
    if job.awaits:
        return JobReason.AFTER_JOB
    if job.id in state.old:
        return JobReason.RECOVERING
    if begin_at is not None and state.moment(begin_at) > now:
        return JobReason.BEGIN_TIME
    if job.state.not_before > now:
        return JobReason.TRIED_AGAIN
    if _waits_for_its_array(job, state):
        return JobReason.ARRAY_LIMIT
    if state.rules.here:
        return Reason.QUEUE_ORDER
    decision = _newest_decision(job, state)
    return "" if decision is None else str(decision.reason or "")


def _newest_decision(job: Job, state: PoolState) -> PassDecision | None:
    """Return what the newest scheduling pass decided on the job, or on the jobs of its shape."""
    return state.decisions.get(LeaseId(job.id)) or state.decisions.get(shape_of(job, state.policy))


# --- it waits ------------------------------------------------------------------------------------------


def _why_queued(job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None) -> Why | None:
    assert isinstance(job.state, Queued), "the caller passes waiting jobs only"
    if job.held_by:
        return Why(JobReason.HELD, f"it is held by {job.held_by}", f"gpushare unhold {job.id}")
    if job.awaits:
        more = "" if len(job.awaits) == 1 else "s"
        return Why(
            JobReason.AFTER_JOB,
            f"it waits for {len(job.awaits)} job{more}: {first_few([after.job for after in job.awaits], NAMED)}",
        )
    if job.id in state.old:
        return _why_old(state)
    begin_at = job.spec.request.begin_at
    if begin_at is not None and state.moment(begin_at) > now:
        return Why(JobReason.BEGIN_TIME, f"it is not to start before {_clock(begin_at, exactly=True)}")
    if job.state.not_before > now and job.story:
        return Why(JobReason.TRIED_AGAIN, job.story[-1].text)
    if _waits_for_its_array(job, state):
        return Why(JobReason.ARRAY_LIMIT, f"its array runs {job.spec.array_limit} at a time")
    if state.rules.here:
        return Why(Reason.QUEUE_ORDER, "it waits behind others of its owner, which are in the node's queue")
    if not has_client(job, state, now):
        return Why(
            JobReason.NODE_SILENT,
            f"its client waits on node {job.spec.origin}, which is not heard of",
            "it may have a place as soon as that node is heard of",
        )
    return _why_passed_over(job, state, now, snapshot)


def _why_passed_over(job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None) -> Why | None:
    """Return why the newest scheduling pass did not place the job; None before the first pass."""
    decision = _newest_decision(job, state)
    if decision is None:
        return None
    if decision.reason is not WaitReason.RESOURCES:
        return Why(decision.reason, decision.text)
    no_room = _why_no_room(job, state, now, snapshot)
    return no_room if decision.text == NO_ROOM.text else replace(no_room, sentence=decision.text)


def _waits_for_its_array(job: Job, state: PoolState) -> bool:
    array = array_key(job.spec)
    throttle = None if array is None else state.throttles.get(array)
    return throttle is not None and job.id in throttle.places


def _why_no_room(job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None) -> Why:
    lack = lack_of_room(job, state, now, snapshot)
    return Why(JobReason.REFUSED if lack.refused else lack.reason, lack.sentence, lack.hint)


def _why_old(state: PoolState) -> Why:
    missing = state.missing()
    waits = f"{first_few(missing, NAMED)} to report" if missing else "a moment, lest a node reports late"
    return Why(
        JobReason.RECOVERING,
        f"the pool began anew and waits for {waits}, because the job may run there",
        f"one that is off for good: gpushare node forget {missing[0]} --is-off" if missing else "",
    )


def _why_placing(parts: Sequence[Part]) -> Why | None:
    for state, code, sentence in (
        (None, JobReason.PLACING, "it was sent to {}, which has not answered yet"),
        (AttemptState.PREPARING, JobReason.PREPARING, "its image is being made ready on {}"),
        (AttemptState.RESERVED, JobReason.STARTING, "its container is being started on {}"),
    ):
        there = [part.node for part in parts if part.state is state]
        if there:
            return Why(code, sentence.format(first_few([node or "this node" for node in there], NAMED)))
    return None


def _why_silent(parts: Sequence[Part], state: PoolState, now: float) -> Why | None:
    silent = [part.node for part in parts if is_silent(part, state, now)]
    if not silent:
        return None
    since = quiet_since(silent[0], state, now)
    when = f" since {_clock(state.day(since))}" if since is not None else ""
    return Why(
        JobReason.NODE_SILENT,
        f"{first_few(silent, NAMED)}: silent{when}; the job is kept there",
        f"is it off for good? An admin says so: gpushare node forget {silent[0]} --is-off",
    )


# --- it ends, or is over -------------------------------------------------------------------------------


def _why_cancelling(state: Cancelling) -> Why:
    sentence = {
        Then.CANCEL: "it is being ended",
        Then.REQUEUE: "what runs of it is being ended, then it waits again",
        Then.FAIL: "what still runs of it is being ended",
    }[state.then]
    ending = state.ending
    cause = f": {ending.reason or ending.kind}" if ending is not None else ""
    return Why(JobReason.CANCELLING, sentence + cause)


def _why_over(state: Ended) -> Why | None:
    match state.outcome:
        case Succeeded():
            return None
        case JobFailed(reason=reason, hint=hint):
            return Why(JobReason.FAILED, reason, hint)
        case Cancelled(by=by, reason=reason):
            return Why(JobReason.CANCELLED, f"ended: {reason}" if reason else f"cancelled by {by}")


def _clock(at: float, *, exactly: bool = False) -> str:
    """Return the time in this machine's zone, ``exactly`` with the seconds unless they are zero."""
    form = "%H:%M" if abs(at - time.time()) < 12 * 3600 else "%Y-%m-%d %H:%M"
    form += ":%S" if exactly and int(at) % 60 else ""
    return time.strftime(form, time.localtime(at))
