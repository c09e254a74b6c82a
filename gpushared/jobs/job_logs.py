"""Find the node with the container of an attempt at a job, and read the container's output through its gate."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import h11

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.attempt_history import has_run
from gpushared.domain.jobs.job import Job, NodeName, Part, Try, TryPart
from gpushared.domain.model.errors import EngineUnavailable, RequestError, StateConflict
from gpushared.domain.model.lease import AttemptKey
from gpushared.net.http_client import EngineConnection, EngineSocket
from gpushared.ports import LABEL_ATTEMPT, LABEL_JOB

OK, GONE = 200, 404
STDERR = 2
HEADER = struct.Struct(">BxxxI")
"""The header has the stream's number and the length of the following bytes (Docker Engine API,
ContainerAttach, "Stream format")."""


async def job_logs(
    gate: EngineSocket, key: AttemptKey, *, follow: bool, tail: int
) -> AsyncIterator[jobs_pb2.LogChunk]:
    """Yield the output from its beginning, or its last ``tail`` lines; with ``follow`` until it ends.

    Raises StateConflict if the attempt has no container (yet, or any more), or EngineUnavailable.
    """
    container, terminal = await _container(gate, key)
    lines = str(tail) if tail > 0 else "all"
    target = f"/containers/{container}/logs?stdout=1&stderr=1&follow={int(follow)}&tail={lines}"
    connection = await gate.connect()
    try:
        with suppress(ConnectionError):  # the read of the answer shows if the node hung up
            await connection.send(
                h11.Request(
                    method="GET", target=target, headers=[("Host", "docker"), ("Connection", "close")]
                ),
                h11.EndOfMessage(),
            )
        head = await connection.response()
        if head.status_code != OK:
            raise EngineUnavailable(f"docker does not give the job's output: status {head.status_code}")
        chunks = _plain(connection) if terminal else _demultiplexed(connection)
        async for chunk in chunks:
            yield chunk
    finally:
        connection.close()


async def _container(gate: EngineSocket, key: AttemptKey) -> tuple[str, bool]:
    """Return the container's id, and True if its output is the one stream of a terminal."""
    labels = [f"{LABEL_JOB}={key.job}", f"{LABEL_ATTEMPT}={key.number}"]
    filters = quote(json.dumps({"label": labels}))
    answer = await gate.call("GET", f"/containers/json?all=1&filters={filters}".encode())
    found = answer.json() if answer.status == OK else []
    if not found:
        raise StateConflict(
            "the job has no container here",
            hint="it has not begun yet, or its container was removed and its output with it",
        )
    container = quote(str(_value(found, 0, "Id")), safe="", errors="replace")
    facts = (await gate.call("GET", f"/containers/{container}/json".encode())).json()
    return container, bool(_value(facts, "Config", "Tty"))


def _value(answer: Any, *places: int | str) -> Any:
    """Return a value in a node's answer, which may lack the place. Raises EngineUnavailable."""
    try:
        for place in places:
            answer = answer[place]
    except (LookupError, TypeError) as error:
        raise EngineUnavailable("the node of the job does not answer as Docker does") from error
    return answer


async def _plain(connection: EngineConnection) -> AsyncIterator[jobs_pb2.LogChunk]:
    async for data in connection.chunks():
        yield jobs_pb2.LogChunk(data=data)


async def _demultiplexed(connection: EngineConnection) -> AsyncIterator[jobs_pb2.LogChunk]:
    """Yield each piece as it comes; a header's length is the node's claim, so nothing is buffered for it."""
    waiting, stderr, left = bytearray(), False, 0
    async for data in connection.chunks():
        waiting += data
        while waiting and (left or len(waiting) >= HEADER.size):
            if not left:
                stream, left = HEADER.unpack_from(waiting)
                stderr = stream == STDERR
                del waiting[: HEADER.size]
            if piece := bytes(waiting[:left]):
                yield jobs_pb2.LogChunk(data=piece, stderr=stderr)
            del waiting[:left]
            left -= len(piece)


class JobPlace(NamedTuple):
    """Name a node and the attempt whose container runs there."""

    node: NodeName
    key: AttemptKey


def place_of(job: Job, rank: int, attempt: int = 0) -> JobPlace:
    """Return the place of a part of the job: its lease now, or the node of an earlier attempt.

    Raises StateConflict if there is none (yet), or RequestError for a part that the job does not have.
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
    """Return the place of an attempt's output; the default is the newest attempt that has run.

    Raises the errors of ``place_of``.
    """
    newest = next((part for part in job.parts if part.rank == rank), None)
    if attempt == 0 and job.tries and (newest is None or not has_run(newest)):
        attempt = job.tries[-1].number
    return place_of(job, rank, attempt)


def no_attempt(job: str, attempt: int, known: Sequence[int]) -> StateConflict:
    """Return the error for an unknown attempt; ``known`` are the numbers of the attempts that ran before."""
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
    """Return the part of this rank. Raises RequestError if the job does not have the part."""
    part = next((part for part in parts if part.rank == rank), None)
    if part is None and parts:
        raise RequestError(f"job {job.id} has {len(parts)} parts, counted from 0", hint=f"not {rank}")
    return part
