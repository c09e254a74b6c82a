"""Jobs that are over: kept in the store, found by id and by time, and in the end forgotten.

Nodes tell of attempts that ended up to a month ago. So that none of a forgotten job's is taken for a new
one, it stays known for longer that the job is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from gpushared.domain.jobs.job import Job
from gpushared.domain.model.lease import JobId
from gpushared.jobs.job_records import ENDED, GONE, OVER, job_of, read_job, time_of
from gpushared.ports.job_store import MAX_OPERATIONS, JobStore, Record

GONE_KEPT_SECONDS = 40 * 24 * 3600.0
"""Longer than nodes keep records of attempts that are over."""
OPERATIONS_EACH = 4
PRUNE_STEP = MAX_OPERATIONS // OPERATIONS_EACH
READS_AT_ONCE = 32

Write = Callable[[dict[str, bytes], tuple[str, ...]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Page:
    """``next_token``: where the next page begins; empty where there is none."""

    jobs: tuple[Job, ...]
    next_token: str


class Archive:
    """Reads only; ``prune`` writes by what it is given."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def get(self, job: JobId) -> Job | None:
        """The job, if it is over and not yet forgotten."""
        body = await self._body(job)
        return read_job(ENDED + job, body) if body else None

    async def over(self, jobs: Collection[JobId]) -> frozenset[JobId]:
        """Return the jobs that are over, forgotten ones too."""
        asked, found = sorted(jobs), []
        for at in range(0, len(asked), READS_AT_ONCE):
            some = asked[at : at + READS_AT_ONCE]
            bodies = await asyncio.gather(*map(self._body, some))
            found += [job for job, body in zip(some, bodies, strict=True) if body is not None]
        return frozenset(found)

    async def like(self, beginning: str, limit: int, token: str = "") -> Page:
        """Return finished jobs whose ids begin like this, in the order of the ids, after the id in the token.

        A page leaves out the jobs that are forgotten. The jobs are read beside the event loop.
        """
        page = await self._store.page(ENDED + beginning, limit, after=ENDED + token if token else "")
        jobs = await asyncio.to_thread(_read, page)
        return Page(jobs, page[-1][0].removeprefix(ENDED) if len(page) == limit > 0 else "")

    async def page(self, limit: int, token: str = "") -> Page:
        """The newest first, or those before a page's token."""
        index = await self._store.page(OVER, limit, after=OVER + token if token else "", reverse=True)
        jobs: list[Job] = []
        for at in range(0, len(index), READS_AT_ONCE):
            some = [job_of(key) for key, _ in index[at : at + READS_AT_ONCE]]
            jobs += [job for job in await asyncio.gather(*map(self.get, some)) if job is not None]
        more = len(index) == limit > 0
        return Page(tuple(jobs), index[-1][0].removeprefix(OVER) if more else "")

    async def prune(self, write: Write, *, keep: int, ended_before: float, now: float) -> int:
        """Forget the oldest beyond so many, and all that ended before; how many were forgotten."""
        await self._prune_gone(write, now - GONE_KEPT_SECONDS)
        surplus, forgotten = await self._store.count(OVER) - keep, 0
        while True:
            oldest = [key for key, _ in await self._store.page(OVER, PRUNE_STEP)]
            gone = [
                key
                for number, key in enumerate(oldest)
                if forgotten + number < surplus or time_of(key) < ended_before
            ]
            if gone:
                await write(*_forgetting(gone))
            forgotten += len(gone)
            if len(gone) < PRUNE_STEP:
                return forgotten

    async def _prune_gone(self, write: Write, before: float) -> None:
        while True:
            oldest = [key for key, _ in await self._store.page(GONE, PRUNE_STEP)]
            gone = [key for key in oldest if time_of(key) < before]
            if gone:
                await write({}, tuple(one for key in gone for one in (key, ENDED + job_of(key))))
            if len(gone) < PRUNE_STEP:
                return

    async def _body(self, job: JobId) -> bytes | None:
        """None where nothing is known of it, empty where it is forgotten."""
        key = ENDED + job
        # The key itself comes first of those that begin so.
        return next((record.value for name, record in await self._store.page(key, 1) if name == key), None)


def _read(page: Sequence[tuple[str, Record]]) -> tuple[Job, ...]:
    return tuple(read_job(key, record.value) for key, record in page if record.value)


def _forgetting(keys: Sequence[str]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    puts = {ENDED + job_of(key): b"" for key in keys}
    return puts | {GONE + key.removeprefix(OVER): b"" for key in keys}, tuple(keys)
