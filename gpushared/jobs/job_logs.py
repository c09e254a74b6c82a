"""Find the node with the container of an attempt at a job, and read the container's output through its gate."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.attempt_history import has_run
from gpushared.domain.jobs.job import Job, NodeName, Part, Try, TryPart
from gpushared.domain.model.errors import RequestError, StateConflict
from gpushared.domain.model.lease import AttemptKey
from gpushared.net.container_output import container_output, value_in
from gpushared.net.http_client import EngineSocket
from gpushared.ports import LABEL_ATTEMPT, LABEL_JOB


async def job_logs(
    gate: EngineSocket, key: AttemptKey, *, follow: bool, tail: int
) -> AsyncIterator[jobs_pb2.LogChunk]:
    """Yield the output from its beginning, or its last ``tail`` lines; with ``follow`` until it ends.

    Raises StateConflict if the attempt has no container (yet, or any more), or EngineUnavailable.
    """
    output = container_output(gate, await _container(gate, key), follow=follow, tail=tail)
    async with aclosing(output) as chunks:
        async for chunk in chunks:
            yield chunk


async def _container(gate: EngineSocket, key: AttemptKey) -> str:
    labels = [f"{LABEL_JOB}={key.job}", f"{LABEL_ATTEMPT}={key.number}"]
    filters = quote(json.dumps({"label": labels}))
    answer = await gate.call("GET", f"/containers/json?all=1&filters={filters}".encode())
    containers = answer.json() if answer.status == HTTPStatus.OK else []
    if not containers:
        raise StateConflict(
            "the job has no container here",
            hint="it has not begun yet, or its container was removed and its output with it",
        )
    return str(value_in(containers, 0, "Id"))


class JobPlace(NamedTuple):
    """Name a node and the attempt whose container runs there."""

    node: NodeName
    key: AttemptKey


def place_of(job: Job, rank: int, attempt: int = 0) -> JobPlace:
    """Return the place of a part of the job: its lease now, or the node of an earlier attempt.

    Raises StateConflict if there is none (yet), or RequestError for a part that the job does not have.
    """
    tried = next((tried for tried in job.tries if tried.number == attempt), None)
    if tried is not None:
        return _earlier(job, rank, tried)
    if attempt not in {0, job.attempts}:
        raise no_attempt(job.id, attempt, [tried.number for tried in job.tries], newest=job.attempts)
    part = _ranked(job, job.parts, rank)
    if part is None or part.lease is None:
        raise StateConflict(
            f"job {job.id} has nothing on any node (yet)", hint=f"its story: gpushare why {job.id}"
        )
    return JobPlace(part.node, AttemptKey(job.id, job.attempts))


def output_of(job: Job, rank: int, attempt: int = 0) -> JobPlace:
    """Return the place of an attempt's output; the default is the newest attempt that has run.

    Raises the errors of ``place_of``.
    """
    newest = next((part for part in job.parts if part.rank == rank), None)
    if attempt == 0 and job.tries and (newest is None or not has_run(newest)):
        attempt = job.tries[-1].number
    return place_of(job, rank, attempt)


def no_attempt(job: str, attempt: int, earlier_attempts: Sequence[int], *, newest: int) -> StateConflict:
    """Return the error for an unknown attempt; ``earlier_attempts`` are the numbers of those that ran."""
    ran = ", ".join(map(str, earlier_attempts))
    hint = f"attempts that ran before: {ran}" if ran else f"its story: gpushare why {job}"
    if 1 <= attempt < newest:
        hint = f"an attempt that its node refused, such as for lack of room, has no container; {hint}"
    return StateConflict(f"job {job} has no attempt {attempt} that ran and is remembered", hint=hint)


def _earlier(job: Job, rank: int, tried: Try) -> JobPlace:
    part = _ranked(job, tried.parts, rank)
    if part is None:
        raise StateConflict(
            f"of attempt {tried.number} of job {job.id} part {rank} did not run",
            hint=f"its story: gpushare why {job.id}",
        )
    return JobPlace(part.node, AttemptKey(job.id, tried.number))


def _ranked(job: Job, parts: Sequence[Part] | Sequence[TryPart], rank: int) -> Part | TryPart | None:
    """Return the part of this rank. Raises RequestError if the job does not have the part."""
    part = next((part for part in parts if part.rank == rank), None)
    if part is None and parts:
        raise RequestError(f"job {job.id} has {len(parts)} parts, counted from 0", hint=f"not {rank}")
    return part
