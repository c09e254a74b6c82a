"""Simulated nodes that do what they are told: an order becomes a record and a lease, and ends after a while.

Run by ``pool.py``. On SIGUSR1 they tell what happened since the last time, in one line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from members import AT_ONCE, Node, link_of, tell

from gpushared.daemon.process import allow_many_files
from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs.attempt_log import OrderWork
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind
from gpushared.domain.jobs.member import HeartbeatReport, Holding
from gpushared.domain.jobs.protocol import Order, Place, Report, StaleEpoch
from gpushared.domain.model.lease import AttemptKey, Grant, LeaseId
from gpushared.pool.member.coordinator_link import MemberLink

NO_ROOM = Ending(EndKind.NO_ROOM, "no GPU is free")
EXITED = Ending(EndKind.EXITED, "it ended", 0)


class Told:
    """What happened since it was last asked."""

    def __init__(self) -> None:
        self.placed = self.refused = self.ended = 0
        self.idle: list[float] = []
        """Seconds from a GPU's becoming free to the next order for its node."""


class Worker(Node):
    """Each job has a GPU for itself, for ``seconds`` give or take a half."""

    def __init__(self, name: str, seconds: float, told: list[Told]) -> None:
        super().__init__(name)
        self.link: MemberLink | None = None
        self._seconds = seconds
        self._told = told
        self._gpus = deque((gpu, 0.0) for gpu in self._inventory.gpus)
        self._held: dict[AttemptKey, Holding] = {}
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, order: Order) -> Report | StaleEpoch:
        refusal = NO_ROOM if isinstance(order, Place) and not self._gpus else None
        known = self._book.get(order.key) is not None
        taken = attempt_log.take(self._book, order, None, refusal, time.time())
        self._book = taken.attempt_log
        if isinstance(order, Place) and not known:
            if refusal is None:
                self._begin(order)
            else:
                self._told[0].refused += 1
        if taken.work is OrderWork.END and order.key in self._held:
            self._end(order.key, Ending(EndKind.CANCELLED, "cancelled"))
        return taken.report

    def _begin(self, order: Place) -> None:
        gpu, free_since = self._gpus.popleft()
        self._told[0].placed += 1
        if free_since:
            self._told[0].idle.append(time.perf_counter() - free_since)
        grant = Grant(gpu.id, gpu.leasable_bytes, 1000)
        lease, owner = LeaseId(f"l-{order.key.job}-{order.key.number}"), order.spec.owner.person
        self._held[order.key] = Holding(lease, (grant,), owner, owner, True, order.key)
        self._changed()
        task = asyncio.create_task(self._run(order.key, lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: AttemptKey, lease: LeaseId) -> None:
        await asyncio.sleep(0)  # the order is answered first, as by a node that gets an image
        now = time.time()
        self._note(
            attempt_log.changed(self._book, key, AttemptState.RUNNING, lease=lease, started_at=now, now=now),
            key,
        )
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.5))
        if key in self._held:
            self._end(key, EXITED)

    def _end(self, key: AttemptKey, ending: Ending) -> None:
        grant = self._held.pop(key).grants[0]
        gpu = next(gpu for gpu in self._inventory.gpus if gpu.id == grant.gpu)
        self._gpus.append((gpu, time.perf_counter()))
        self._told[0].ended += 1
        self._changed()
        self._note(
            attempt_log.changed(self._book, key, AttemptState.ENDED, ending=ending, now=time.time()), key
        )

    def _note(self, book: attempt_log.AttemptLog, key: AttemptKey) -> None:
        self._book = book
        if self.link is not None:
            self.link.report(key)

    def _changed(self) -> None:
        self._free = replace(self._free, holdings=tuple(self._held.values()))
        self._news.set()

    def free(self) -> HeartbeatReport:
        return self._free

    async def changed(self, timeout_seconds: float) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def running(self) -> int:
        return len(self._held)


async def main() -> None:
    """Until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("credentials", type=Path)
    parser.add_argument("address")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seconds", type=float, required=True)
    words = parser.parse_args()
    facts, told, tasks = json.loads(words.credentials.read_text()), [Told()], []
    workers = [Worker(name, words.seconds, told) for name in words.names]
    stop = asyncio.Event()

    def tell_all() -> None:
        total = sum(worker.running() for worker in workers)
        print(json.dumps({**vars(told[0]), "running": total}), flush=True)
        told[0] = Told()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell_all)
    for number, worker in enumerate(workers):
        worker.link = link_of(words.names[number], worker, words.address, facts)
        tasks += [asyncio.create_task(worker.link.run()), asyncio.create_task(tell(worker.link))]
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0.1)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(main())
