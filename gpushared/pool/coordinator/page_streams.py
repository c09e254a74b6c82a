"""Feed the streams of pages on a coordinator: how often answers are made, and where logs are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.request import Caller
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi
from gpushared.pool.coordinator.running_parts import JobOutput, Service
from gpushared.web.live_answers import FRESH, POLLED, Pace, usual_pace
from gpushared.web.log_feed import LogSource
from gpushared.web.stream import EventStreams
from gpushared.web.watches import CallWatch, LogWatch

FROM_NODES = frozenset({"gpushare.v1.Gpus/List", "gpushare.v1.Leases/List"})
NODES = "gpushare.v1.Jobs/Nodes"


def pool_pace(watch: CallWatch) -> Pace:
    """Return the pace of a coordinator's call: nodes are asked for their leases and GPUs, not for themselves."""
    if watch.call in FROM_NODES:
        return POLLED
    return FRESH if watch.call == NODES else usual_pace(watch)


def pool_streams(calls: JsonApi, revisions: Revisions, services: Sequence[Service]) -> EventStreams:
    """Return the streams of pages over a coordinator's calls."""
    output = next((service.output for service in services if service.output is not None), None)
    return EventStreams(calls, revisions, pool_pace, None if output is None else _logs(output))


def _logs(output: JobOutput) -> LogSource:
    """Return how a page's logs are followed: leases' logs are read on their nodes only."""

    async def follow(watch: LogWatch, caller: Caller, tail: int) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        if not watch.job_id:
            raise RequestError("a pool has logs of jobs only", hint="a lease's log is on its node")
        message = jobs_pb2.LogsRequest(job_id=watch.job_id, follow=True, tail=tail)
        async for chunk in output(message, caller):
            yield chunk

    return follow
