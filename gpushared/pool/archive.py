"""Jobs that are over: kept in the store, found by id and by time, and in the end forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpushared.domain.jobs.model import Job, JobId
from gpushared.pool.records import ENDED, OVER, job_of_over, read_job, time_of_over
from gpushared.pool.store import MAX_OPERATIONS, Store

PRUNE_STEP = MAX_OPERATIONS // 2

Write = Callable[[dict[str, bytes], tuple[str, ...]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. ``next_token``: where the next page begins; empty where there is none."""

    jobs: tuple[Job, ...]
    next_token: str


class Archive:
    """Reads only; ``prune`` writes by what it is given."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, job: JobId) -> Job | None:
        """The job, if it is over and not yet forgotten."""
        key = ENDED + job
        # The key itself comes first of those that begin so.
        found = [record for name, record in await self._store.page(key, 1) if name == key]
        return read_job(key, found[0]) if found else None

    async def like(self, beginning: str, limit: int, after: str = "") -> tuple[Job, ...]:
        """Those whose ids begin so, in the order of the ids and after one; at most so many."""
        page = await self._store.page(ENDED + beginning, limit, after=ENDED + after if after else "")
        return tuple(read_job(key, record) for key, record in page)

    async def page(self, limit: int, token: str = "") -> Page:
        """The newest, or those before a page's token."""
        index = await self._store.page(OVER, limit, after=OVER + token if token else "", reverse=True)
        found = [await self.get(job_of_over(key)) for key, _ in index]
        more = len(index) == limit > 0
        jobs = tuple(job for job in found if job is not None)
        return Page(jobs, index[-1][0].removeprefix(OVER) if more else "")

    async def prune(self, write: Write, *, keep: int, ended_before: float) -> int:
        """Forget the oldest beyond so many, and all that ended before; how many were forgotten."""
        surplus = await self._store.count(OVER) - keep
        forgotten = 0
        while True:
            oldest = await self._store.page(OVER, PRUNE_STEP)
            gone = [
                key
                for number, (key, _) in enumerate(oldest)
                if forgotten + number < surplus or time_of_over(key) < ended_before
            ]
            if gone:
                await write({}, tuple(one for key in gone for one in (key, ENDED + job_of_over(key))))
            forgotten += len(gone)
            if len(gone) < PRUNE_STEP:
                return forgotten
