"""Find the node that holds, or held, the container of an attempt at a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpushared.domain.jobs.attempt_history import has_run
from gpushared.domain.jobs.job import Job, NodeName, Part, Try, TryPart
from gpushared.domain.model.errors import RequestError, StateConflict
from gpushared.domain.model.lease import AttemptKey


class JobPlace(NamedTuple):
    """A node, and which attempt's container is meant there."""

    node: NodeName
    key: AttemptKey


def place_of(job: Job, rank: int, attempt: int = 0) -> JobPlace:
    """Return the place of a part of the job: its lease now, or the node of an earlier attempt.

    Raise StateConflict if there is none (yet), or RequestError for a part that the job does not have.
    """
    tried = next((one for one in job.tries if one.number == attempt), None)
    if tried is not None:
        return _earlier(job, rank, tried)
    if attempt not in {0, job.attempts}:
        raise no_attempt(job.id, attempt, [one.number for one in job.tries])
    part = _ranked(job, job.parts, rank)
    if part is None or part.lease is None:
        raise StateConflict(
            f"job {job.id} has nothing on any node (yet)", hint=f"its story: gpushare why {job.id}"
        )
    return JobPlace(part.node, AttemptKey(job.id, job.attempts))


def output_of(job: Job, rank: int, attempt: int = 0) -> JobPlace:
    """Return the place of an attempt's output; by default that of the newest attempt that has run.

    Raise the errors of ``place_of``.
    """
    newest = next((part for part in job.parts if part.rank == rank), None)
    if attempt == 0 and job.tries and (newest is None or not has_run(newest)):
        attempt = job.tries[-1].number
    return place_of(job, rank, attempt)


def no_attempt(job: str, attempt: int, known: Sequence[int]) -> StateConflict:
    """``known``: the numbers of those that ran before."""
    ran = ", ".join(map(str, known))
    return StateConflict(
        f"job {job} has no attempt {attempt} that ran and is remembered",
        hint=f"attempts that ran before: {ran}" if ran else f"its story: gpushare why {job}",
    )


def _earlier(job: Job, rank: int, tried: Try) -> JobPlace:
    part = _ranked(job, tried.parts, rank)
    if part is None:
        raise StateConflict(f"of attempt {tried.number} of job {job.id} part {rank} did not run")
    return JobPlace(part.node, AttemptKey(job.id, tried.number))


def _ranked(job: Job, parts: Sequence[Part] | Sequence[TryPart], rank: int) -> Part | TryPart | None:
    """Raises RequestError where there is no such part."""
    part = next((part for part in parts if part.rank == rank), None)
    if part is None and parts:
        raise RequestError(f"job {job.id} has {len(parts)} parts, counted from 0", hint=f"not {rank}")
    return part
