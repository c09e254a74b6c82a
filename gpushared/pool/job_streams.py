"""The streams of ``Jobs`` on a coordinator: tunnels to where a job is, and what it writes there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.errors import RequestError, StateConflict
from gpushared.domain.jobs.model import AttemptKey, Job, Owner, Part
from gpushared.pool.job_logs import job_logs
from gpushared.pool.tunnel_calls import UserContext, gate_through, splice
from gpushared.pool.tunnels import Pipe, Tunnels


class JobStreams:
    """Whoever calls has found the job, which means that its caller may see it."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels

    async def tunnel(self, job: Job, rank: int, owner: Owner, context: UserContext) -> None:
        """Pass bytes between the caller and the gate of the job's node until either ends."""
        async with self._open(job, part_of(job, rank), owner) as pipe:
            await splice(context, pipe)

    async def logs(
        self, job: Job, message: jobs_pb2.LogsRequest, owner: Owner
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """From the beginning, or the last ``tail`` lines. Raises StateConflict, Unavailable."""
        part = part_of(job, message.rank)
        key = AttemptKey(job.id, job.attempts)
        async with gate_through(lambda: self._open(job, part, owner), f"node {part.node}") as gate:
            async for chunk in job_logs(gate, key, follow=message.follow, tail=message.tail):
                yield chunk

    def _open(self, job: Job, part: Part, owner: Owner) -> AbstractAsyncContextManager[Pipe]:
        wanted = link_pb2.OpenTunnel(
            job_id=job.id,
            attempt=job.attempts,
            kind="docker",
            principal=owner.principal,
            person=owner.person,
            admin=owner.admin,
        )
        return self._tunnels.open(part.node, wanted)


def part_of(job: Job, rank: int) -> Part:
    """The part that has a lease on its node. Raises StateConflict, RequestError."""
    part = next((part for part in job.parts if part.rank == rank), None)
    if part is None and job.parts:
        raise RequestError(f"job {job.id} has {len(job.parts)} parts, counted from 0", hint=f"not {rank}")
    if part is None or part.lease is None:
        raise StateConflict(
            f"job {job.id} has nothing on any node (yet)", hint=f"its story: gpushare why {job.id}"
        )
    return part
