"""Keep a record of finished attempts at a job: when they ran, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpushared.domain.jobs.job import AttemptState, Job, Part, Queued, Try, TryPart
from gpushared.domain.jobs.protocol import Report

TRIES_KEPT = 10
TRY_PARTS_KEPT = 128
"""The bound counts all tries of a job together, because they are a part of the job's record. The newest try
is always kept."""
MAX_REASON = 100
BEGUN_STATES = {AttemptState.RUNNING, AttemptState.PAUSED}


def timed(part: Part, report: Report, asked_at: float, now: float) -> Part:
    """Return the part with the times of a report, which are wrong by as much as the node's clock is."""
    if part.started_at is None and (report.started_at is not None or report.state in BEGUN_STATES):
        began = now if report.started_at is None else report.started_at
        part = replace(part, started_at=min(max(began, asked_at), now))
    if report.state.is_final and part.ended_at is None:
        over = now if report.ended_at is None else report.ended_at
        part = replace(part, ended_at=min(max(over, part.started_at or asked_at), now))
    return part


def has_run(part: Part) -> bool:
    """Return True if the part ever had a container that began."""
    return part.started_at is not None or part.state in BEGUN_STATES


def span(parts: Iterable[Part]) -> tuple[float | None, float | None]:
    """Return when the last part began and when the last part ended; the end is None while a part goes on."""
    ran = [part for part in parts if has_run(part)]
    began = max((part.started_at for part in ran if part.started_at is not None), default=None)
    ends = [part.ended_at for part in ran if part.ended_at is not None]
    return began, max(ends) if ends and len(ends) == len(ran) else None


def tried(job: Job, now: float) -> Job:
    """Return the job with its finished attempt among its tries, if that attempt ever ran."""
    began, over = span(job.parts)
    if isinstance(job.state, Queued) or began is None:
        return job
    parts = tuple(_short(part) for part in job.parts if has_run(part))
    return replace(job, tries=_newest((*job.tries, Try(job.attempts, parts, began, over or now))))


def _short(part: Part) -> TryPart:
    if part.ending is None:
        return TryPart(part.node, part.lease, part.rank)
    reason = part.ending.reason[:MAX_REASON]
    return TryPart(part.node, part.lease, part.rank, part.ending.exit_code, reason)


def _newest(tries: tuple[Try, ...]) -> tuple[Try, ...]:
    count, parts = 0, 0
    for attempt in reversed(tries[-TRIES_KEPT:]):
        parts += len(attempt.parts)
        if count and parts > TRY_PARTS_KEPT:
            break
        count += 1
    return tries[-count:] if count else ()
