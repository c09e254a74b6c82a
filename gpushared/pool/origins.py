"""Jobs, as the nodes through which they came in are told of them."""

from __future__ import annotations

from collections.abc import Callable

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    HERE,
    Ended,
    Job,
    NodeName,
)
from gpushared.domain.model.lease import JobId


class JobOrigins:
    """Out of the newest state; ``view``: a job as users see it."""

    def __init__(self, state: Callable[[], PoolState], view: Callable[[Job], jobs_pb2.Job]) -> None:
        self._state = state
        self._view = view

    def origin_of(self, job: JobId) -> NodeName:
        found = self._find(job)
        return HERE if found is None else found.spec.origin

    def update_of(self, job: JobId) -> link_pb2.JobUpdate | None:
        found = self._find(job)
        if found is None:
            return None
        view = self._view(found).SerializeToString()
        return link_pb2.JobUpdate(job=view, over=isinstance(found.state, Ended))

    def _find(self, job: JobId) -> Job | None:
        state = self._state()
        return state.jobs.get(job) or state.ended.get(job)
