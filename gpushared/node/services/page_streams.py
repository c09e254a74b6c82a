"""Feed the streams of pages on a node: when answers change, how often they are made, and where logs are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.domain.model.errors import PermissionRefused, StateConflict
from gpushared.domain.model.request import Caller
from gpushared.net.container_output import container_output
from gpushared.net.loopback import LoopbackGate
from gpushared.net.revisions import Revisions
from gpushared.node.runtime.sampler import Sample
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.node_service import Api
from gpushared.web.live_answers import PARTLY_LOCAL, POLLED, Pace, usual_pace
from gpushared.web.watches import CallWatch, LogWatch


class SampleRevisions:
    """Count the samples with other figures than the sample before."""

    def __init__(self, revisions: Revisions) -> None:
        self._revisions = revisions
        self._newest = Sample()

    def observe(self, sample: Sample) -> None:
        """Take a new sample; its time alone makes no difference."""
        figures = replace(sample, at=0.0)
        if figures != self._newest:
            self._newest = figures
            self._revisions.sampled()


class NodeLogs:
    """Open the logs that pages watch, each with the rights of its reader."""

    def __init__(self, api: Api, jobs: NodeJobs, gate: LoopbackGate) -> None:
        self._api = api
        self._jobs = jobs
        self._gate = gate

    def follow(self, watch: LogWatch, caller: Caller, tail: int) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield a log's last lines, then what follows. Raises errors of the tree."""
        if watch.lease_id:
            return self._of_lease(watch.lease_id, caller, tail)
        message = jobs_pb2.LogsRequest(job_id=watch.job_id, follow=True, tail=tail)
        return cast("AsyncGenerator[jobs_pb2.LogChunk, None]", self._jobs.logs(message, caller))

    async def _of_lease(
        self, lease_id: str, caller: Caller, tail: int
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        lease = await self._api.get(leases_pb2.LeaseRef(lease_id=lease_id), caller)
        if not (caller.trusted or caller.uid == lease.owner_uid):
            raise PermissionRefused(
                f"lease {lease.id} belongs to {lease.owner}", hint="its owner and administrators see its log"
            )
        if not lease.container_id:
            if lease.state == "ended":
                raise StateConflict(f"lease {lease.id} is ended", hint="its log is gone with its container")
            raise StateConflict(f"lease {lease.id} has no container yet", hint="the log begins with it")
        output = container_output(self._gate.gate_as(caller), lease.container_id, follow=True, tail=tail)
        async with aclosing(output) as chunks:
            async for chunk in chunks:
                yield chunk


def node_pace(is_in_pool: Callable[[], bool]) -> Callable[[CallWatch], Pace]:
    """Return the paces of a node's calls; in a pool each call about jobs may ask the coordinator."""

    def pace_of(watch: CallWatch) -> Pace:
        pace = usual_pace(watch)
        is_of_jobs = watch.call.startswith("gpushare.v1.Jobs/")
        return PARTLY_LOCAL if is_of_jobs and pace is not POLLED and is_in_pool() else pace

    return pace_of
