"""Measure how long others wait for somebody who looks for missing jobs, or lists, beside many that are over.

The calls work on the store's real file, without network: only their cost to the event loop is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quiet import machine

from gpushared.api.v1 import jobs_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    Ended,
    Job,
    JobSpec,
    Owner,
    Queued,
    Succeeded,
)
from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Request
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_records import job_changes
from gpushared.jobs.job_requests import id_in_array, id_of, new_request_id
from gpushared.jobs.job_search import Archive
from gpushared.jobs.job_views import JobViews
from gpushared.jobs.jobs_service import JobsService
from gpushared.jobs.restore import restored
from gpushared.ports.job_store import MAX_OPERATIONS, Transaction
from gpushared.storage.job_store import SqliteStore
from gpushared.testing import ManualClock

ASKER, NEIGHBOUR = Owner("ada@lab", "ada"), Owner("bob@lab", "bob")
RECORDS_EACH = 3
"""So many a job that is over takes."""


class Neighbour:
    """Looks at a job of their own, again and again. ``longest``: what they waited for it."""

    def __init__(self, jobs: JobsService, mine: JobId) -> None:
        self.longest = 0.0
        self._jobs = jobs
        self._mine = jobs_pb2.JobRef(job_id=mine)

    async def look(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            await self._jobs.get(self._mine, NEIGHBOUR)
            self.longest = max(self.longest, time.perf_counter() - began - 0.001)


async def measure(ended: int, calls: int) -> float:
    """The longest that a neighbour waited, for missing ids; seconds."""
    array = id_of("", new_request_id())
    half = ended // 2
    over = [job(1 + at, id_of("", new_request_id()), NEIGHBOUR, over=True) for at in range(half)]
    over += [job(1 + at, id_in_array(array, at), NEIGHBOUR, over=True) for at in range(half, ended)]
    async with service(over) as (jobs, mine):
        beside = f"{ended} over, {calls} calls for"
        await waited(jobs, mine, f"{ended} over, no calls", [])
        missing = [look_for(jobs, id_of("", new_request_id())) for _ in range(calls)]
        longest = await waited(jobs, mine, f"{beside} missing ids", missing)
        strangers = [look_for(jobs, array[:4]) for _ in range(calls)]
        await waited(jobs, mine, f"{beside} the beginning of somebody else's array", strangers)
    return longest


async def measure_lists(queued: int, calls: int) -> None:
    """The same while somebody lists their own jobs, half of which are over."""
    own = [job(1 + at, id_of("", new_request_id()), ASKER, over=at % 2 == 0) for at in range(queued * 2)]
    async with service(own) as (jobs, mine):
        for limit, ended in ((100, False), (1000, False), (1000, True)):
            asked = jobs_pb2.ListJobsRequest(limit=limit, ended=ended, page_token="o" if ended else "")
            what = f"{queued} queued, {calls} lists of {limit}" + (" that are over" if ended else "")
            await waited(jobs, mine, what, [jobs.list_jobs(asked, ASKER) for _ in range(calls)])


@asynccontextmanager
async def service(others: Sequence[Job]) -> AsyncIterator[tuple[JobsService, JobId]]:
    """One beside which these jobs are, and a job of the neighbour's that waits."""
    with tempfile.TemporaryDirectory(prefix="gpushared-bench-") as folder:
        store = SqliteStore(Path(folder) / "pool.db")
        epoch = await store.lead()
        waits = job(0, id_of("", new_request_id()), NEIGHBOUR, over=False)
        await write(store, epoch, [waits, *others])
        state = await restored(store, PoolRules(), epoch=epoch, now=1e9)
        gc.collect()
        gc.freeze()  # as the coordinator sets aside what lives long
        loop = PoolLoop(state, store, ManualClock(1e9), Troubles())
        yield JobsService(loop, Archive(store), JobViews(lambda: state, loop.now)), waits.id
        await store.close()


async def waited(
    jobs: JobsService, mine: JobId, what: str, calls: Sequence[Coroutine[Any, Any, object]]
) -> float:
    """Print and return the longest that a neighbour waited while all these calls went on; seconds."""
    neighbour = Neighbour(jobs, mine)
    task = asyncio.create_task(neighbour.look())
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    await asyncio.gather(*calls)
    took = time.perf_counter() - began
    await asyncio.sleep(0.1)  # until the neighbour has what they waited for
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print(f"{what}: {took:.2f} s in all, others waited up to {neighbour.longest * 1000:.0f} ms")
    return neighbour.longest


async def look_for(jobs: JobsService, word: str) -> None:
    try:
        await jobs.get(jobs_pb2.JobRef(job_id=word), ASKER)
    except NotFound:
        return
    raise RequestError(f"{word} is there")


def job(sequence: int, name: JobId, owner: Owner, *, over: bool) -> Job:
    spec = JobSpec(Request(), owner, image="busybox", body='{"Image": "busybox"}')
    state = Ended(1e6 + sequence, Succeeded()) if over else Queued(0.0)
    return Job(name, sequence, spec, 0.0, state)


async def write(store: SqliteStore, epoch: int, jobs: Sequence[Job]) -> None:
    for at in range(0, len(jobs), MAX_OPERATIONS // RECORDS_EACH):
        some = jobs[at : at + MAX_OPERATIONS // RECORDS_EACH]
        changes = {key: value for one in some for key, value in job_changes(one).items()}
        puts = {key: value for key, value in changes.items() if value is not None}
        await store.commit(Transaction(epoch, puts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, nargs=2, default=[1000, 100_000])
    parser.add_argument("--calls", type=int, default=96, help="at once")
    words = parser.parse_args()
    print(machine())
    few, many = (asyncio.run(measure(ended, words.calls)) for ended in words.ended)
    print(f"for missing ids others waited {many / few:.1f} times as long beside {words.ended[1]}")
    asyncio.run(measure_lists(words.ended[1], words.calls))


if __name__ == "__main__":
    main()
