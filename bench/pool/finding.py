"""How long others wait while somebody looks for jobs that do not exist, beside many that are over.

The calls themselves on the store's real file, without network: only what they cost the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from quiet import machine

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.errors import NotFound, RequestError
from gpushared.domain.jobs.model import Ended, Job, JobId, JobSpec, Owner, Queued, Succeeded
from gpushared.domain.jobs.rules import PoolRules
from gpushared.domain.request import Request
from gpushared.pool.archive import Archive
from gpushared.pool.job_ids import id_in_array, new_id
from gpushared.pool.job_views import JobViews
from gpushared.pool.jobs_service import JobsService
from gpushared.pool.loop import PoolLoop
from gpushared.pool.records import job_changes
from gpushared.pool.restoring import restored
from gpushared.pool.sqlite_store import SqliteStore
from gpushared.pool.store import MAX_OPERATIONS, Transaction
from gpushared.serving.troubles import Troubles
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
    with tempfile.TemporaryDirectory(prefix="gpushared-bench-") as folder:
        store = SqliteStore(Path(folder) / "pool.db")
        epoch = await store.lead()
        waits = job(0, new_id("", ""), NEIGHBOUR, over=False)
        array = new_id("", "")
        half = ended // 2
        over = [job(1 + at, new_id("", ""), NEIGHBOUR, over=True) for at in range(half)]
        over += [job(1 + at, id_in_array(array, at), NEIGHBOUR, over=True) for at in range(half, ended)]
        await write(store, epoch, [waits, *over])
        state = await restored(store, PoolRules(), epoch=epoch, now=1e9)
        gc.collect()
        gc.freeze()  # as the coordinator sets aside what lives long
        loop = PoolLoop(state, store, ManualClock(1e9), Troubles())
        jobs = JobsService(loop, Archive(store), JobViews(lambda: state, loop.now))
        strangers = [array[:4] for _ in range(calls)]
        for what, words in (
            ("none", []),
            ("missing ids", [new_id("", "") for _ in range(calls)]),
            ("the beginning of somebody else's array", strangers),
        ):
            neighbour = Neighbour(jobs, waits.id)
            began, task = time.perf_counter(), asyncio.create_task(neighbour.look())
            await asyncio.sleep(0.2)
            await asyncio.gather(*(look_for(jobs, word) for word in words))
            took = time.perf_counter() - began - 0.2
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            print(f"{ended} over, {len(words)} calls for {what}: {took:.2f} s in all, ", end="")
            print(f"others waited up to {neighbour.longest * 1000:.0f} ms")
            if what == "missing ids":
                longest = neighbour.longest
        await store.close()
    return longest


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


if __name__ == "__main__":
    main()
