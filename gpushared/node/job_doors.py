"""``Jobs/Door``: where docker on this machine reaches the gate of a job's node."""

from __future__ import annotations

from collections.abc import Callable

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.errors import RequestError, StateConflict
from gpushared.domain.jobs.model import JobId
from gpushared.domain.request import Caller
from gpushared.node.jobs import NodeJobs
from gpushared.pool.member.tunnel_doors import TunnelDoors
from gpushared.serving.jsonapi import Unary


class JobDoors:
    """``doors`` is asked each time; it is None while the node is in no pool."""

    def __init__(
        self, jobs: NodeJobs, doors: Callable[[], TunnelDoors | None], node_name: str, own_socket: str
    ) -> None:
        self._jobs = jobs
        self._doors = doors
        self._node_name = node_name
        self._own_socket = own_socket

    def calls(self) -> dict[str, Unary]:
        return {"gpushare.v1.Jobs/Door": Unary(jobs_pb2.DoorRequest, self.door)}

    async def door(self, message: jobs_pb2.DoorRequest, caller: Caller) -> jobs_pb2.DoorAnswer:
        """Raises NotFound, StateConflict where the job is nowhere, LimitReached."""
        job = await self._jobs.get(jobs_pb2.JobRef(job_id=message.job_id), caller)
        part = next((part for part in job.parts if part.rank == message.rank), None)
        if part is None and job.parts:
            raise RequestError(f"job {job.id} has {len(job.parts)} parts, counted from 0")
        if part is None or not part.lease_id:
            raise StateConflict(
                f"job {job.id} is {job.state} and on no node", hint=f"its story: gpushare why {job.id}"
            )
        here = not job.pool or part.node == self._node_name
        return jobs_pb2.DoorAnswer(
            host=f"unix://{self._own_socket if here else await self._path(job, message.rank, caller)}",
            lease_id=part.lease_id,
            node=part.node or self._node_name,
            here=here,
        )

    async def _path(self, job: jobs_pb2.Job, rank: int, caller: Caller) -> str:
        doors = self._doors()
        if doors is None:
            raise StateConflict("this node is in no pool any more", hint="ask on the node that has the job")
        return await doors.door(JobId(job.id), rank, caller)
