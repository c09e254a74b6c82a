"""The streams of ``Jobs`` on a coordinator: tunnels to where a job is, and what it writes there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.jobs.job import Job, Owner
from gpushared.jobs.job_logs import job_logs
from gpushared.jobs.job_nodes import JobPlace, output_of, place_of
from gpushared.pool.tunnels.coordinator_tunnels import Pipe, Tunnels
from gpushared.pool.tunnels.tunnel_calls import UserContext, gate_through, splice


class JobStreams:
    """Whoever calls has found the job, which means that its caller may see it."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels

    async def tunnel(self, job: Job, first: jobs_pb2.TunnelChunk, owner: Owner, context: UserContext) -> None:
        """Pass bytes between the caller and the gate of the job's node until either ends."""
        place = place_of(job, first.rank, first.attempt)
        wanted = _wanted(place, owner)
        wanted.stream_id = first.stream_id
        if first.HasField("received"):
            wanted.received = first.received
        async with self._tunnels.open(place.node, wanted) as pipe:
            await splice(context, pipe, outlives_calls=bool(first.stream_id))

    async def logs(
        self, job: Job, message: jobs_pb2.LogsRequest, owner: Owner
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Yield the logs from the beginning, or the last ``tail`` lines.

        Raise StateConflict or Unavailable.
        """
        place = output_of(job, message.rank, message.attempt)
        async with gate_through(lambda: self._open(place, owner), f"node {place.node}") as gate:
            async for chunk in job_logs(gate, place.key, follow=message.follow, tail=message.tail):
                yield chunk

    def _open(self, place: JobPlace, owner: Owner) -> AbstractAsyncContextManager[Pipe]:
        return self._tunnels.open(place.node, _wanted(place, owner))


def _wanted(place: JobPlace, owner: Owner) -> link_pb2.OpenTunnel:
    return link_pb2.OpenTunnel(
        job_id=place.key.job,
        attempt=place.key.number,
        kind="docker",
        principal=owner.principal,
        person=owner.person,
        admin=owner.admin,
    )
