"""Keep containers of jobs that are over for their logs, for a while and up to a number for each user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import AttemptKey, ContainerId, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.net.http_client import EngineSocket
from gpushared.net.loopback import LoopbackGate
from gpushared.node.runtime.loop import Loop
from gpushared.ports import LABEL_JOB, ContainerFacts, ContainerStatus, Engine

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
RETRY_SECONDS = 2.0
"""The wait before the next try if a due container could not be removed.

This happens while the engine or the gate is not up yet.
"""
OVER = (ContainerStatus.CREATED, ContainerStatus.EXITED, ContainerStatus.DEAD)
DAEMON = Caller(0, 0, "the daemon", trusted=True)
REMOVED = (204, 404)


@dataclass(frozen=True, slots=True)
class Keeping:
    """Say how long containers stay and how many of each user; the oldest are removed first."""

    seconds: float
    most: int


class KeptContainers:
    """Remove containers when they are due. Users own, and remove, the containers of interactive jobs."""

    def __init__(self, loop: Loop, engine: Engine, insider: LoopbackGate, keeping: Keeping) -> None:
        self.keeping = keeping
        self._loop = loop
        self._engine = engine
        self._insider = insider
        self._gone: set[LeaseId] = set()
        """Leases whose containers are known to be away."""
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Remove due containers, for ever."""
        while True:
            try:
                done = await self.look()
            except GpushareError as error:
                log.debug("containers of ended jobs not looked at: %s", error)
                done = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if done else RETRY_SECONDS):
                    await self._news.wait()
            self._news.clear()

    def told(self, coordinator: str, key: AttemptKey) -> None:
        """Look at once if the attempt that changed is over and its container must not be kept."""
        book = self._loop.state.attempts.get(coordinator)
        record = book.get(key) if book is not None else None
        if record is not None and record.state.is_final and record.spec is not None and record.spec.remove:
            self._news.set()

    async def look(self) -> bool:
        """Remove the due containers, and return True if all are gone. Asks the engine only if one is due."""
        records = {record.lease: record for record in self._over() if record.lease is not None}
        self._gone &= records.keys()
        left = sorted(
            (record for lease, record in records.items() if lease not in self._gone),
            key=lambda record: record.at,
        )
        due = due_of(left, self.keeping, self._loop.now())
        return not due or await self._remove({one.lease for one in due if one.lease is not None})

    def _over(self) -> Iterable[Attempt]:
        for book in self._loop.state.attempts.values():
            for record in book.records.values():
                if record.state.is_final and record.spec is not None and not record.spec.interactive:
                    yield record

    async def _remove(self, due: set[LeaseId]) -> bool:
        gate = self._insider.gate_as(DAEMON)
        here: set[LeaseId] = set()
        for facts in await self._engine.containers():
            lease = LeaseId(facts.device_name)
            # A container that runs has been started again, under its old name but with another lease.
            if lease in due and self._is_over(facts) and not await _removed(facts.id, gate):
                here.add(lease)
        self._gone |= due - here
        return not here

    def _is_over(self, facts: ContainerFacts) -> bool:
        leased = self._loop.state.of_device(facts.device_name) is not None
        return bool(facts.labels.get(LABEL_JOB)) and facts.status in OVER and not leased


def due_of(over: Sequence[Attempt], keeping: Keeping, now: float) -> list[Attempt]:
    """Return the attempts whose containers must go. ``over``: attempts that are over, the oldest first.

    Each user's containers are counted alone, so that nobody pushes out the logs of others.
    """
    left = Counter(_whose(one) for one in over)
    due = []
    for one in over:
        whose = _whose(one)
        if left[whose] > keeping.most or one.at <= now - keeping.seconds or _is_removed(one):
            due.append(one)
            left[whose] -= 1
    return due


def _whose(record: Attempt) -> int | None:
    """Return the uid of the attempt's account, None for an attempt that never ran."""
    return None if record.account is None else record.account.uid


def _is_removed(record: Attempt) -> bool:
    return record.spec is not None and record.spec.remove


async def _removed(container: ContainerId, gate: EngineSocket) -> bool:
    answer = await gate.call("DELETE", f"/containers/{container}?v=1".encode())
    return answer.status in REMOVED
