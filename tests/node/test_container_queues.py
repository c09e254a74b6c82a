"""The order in which a container's instructions are performed, whatever hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gpushared.domain.leases.instructions import ResumeContainer, StartContainer, SuspendContainer
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Grant,
    Lease,
    LeaseId,
    LeaseState,
    Resuming,
    Starting,
    Suspending,
)
from gpushared.domain.model.request import Request
from gpushared.node.runtime.executor import ContainerQueues, InTurn

LEASE, BOX = LeaseId("l-1"), ContainerId("box")
GRANTS = (Grant(GpuId("GPU-1"), 1, 1),)
SUSPEND, RESUME, START = (
    SuspendContainer(LEASE, BOX),
    ResumeContainer(LEASE, BOX),
    StartContainer(LEASE, BOX),
)
STATES: dict[InTurn, LeaseState] = {
    SUSPEND: Suspending(GRANTS, BOX, 0.0, 1.0, wanted=True),
    RESUME: Resuming(GRANTS, BOX, 0.0, 1.0),
    START: Starting(GRANTS, BOX, 0.0, 1.0, held=True, by_node=True),
}


class Work:
    """Performs instructions as slowly as the test wants: each is under way until ``finish``."""

    def __init__(self) -> None:
        self.state: LeaseState = Active(GRANTS, BOX, 0.0)
        self.begun: list[InTurn] = []
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.queues = ContainerQueues(self._leases, self._perform, self.begin)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(self, instruction: InTurn) -> None:
        """As the core does: with the state in which the lease is to be brought on by this."""
        self.state = STATES[instruction]
        self.queues.put(instruction)

    async def finish(self) -> None:
        """The one that is under way."""
        self._end.set()
        await settled()

    def _leases(self) -> dict[LeaseId, Lease]:
        return {LEASE: Lease(LEASE, 1, Request(1), 0, "root", 0.0, self.state, LEASE)}

    async def _perform(self, instruction: InTurn) -> None:
        self.begun.append(instruction)
        self._end.clear()
        await self._end.wait()


async def settled() -> None:
    """Let all that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_arrives_while_another_is_under_way_is_done_after_it() -> None:
    work = Work()
    work.ask(SUSPEND)
    await settled()
    for instruction in (RESUME, SUSPEND, RESUME):
        work.ask(instruction)
        done = list(work.begun)
        await settled()
        assert work.begun == done
        await work.finish()
        assert work.begun == [*done, instruction]


async def test_repeats_are_done_once_more_at_most_and_only_where_that_is_still_wanted() -> None:
    work = Work()
    for _ in range(1000):
        work.ask(SUSPEND)
    await settled()
    assert work.begun == [SUSPEND]
    await work.finish()
    assert work.begun == [SUSPEND, SUSPEND], "its answer may have been lost"
    work.ask(SUSPEND)
    work.state = Active(GRANTS, BOX, 0.0)
    await work.finish()
    assert work.begun == [SUSPEND, SUSPEND]


async def test_the_newest_of_those_that_wait_is_done(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.ask(SUSPEND)
    await settled()
    with caplog.at_level("INFO"):
        for instruction in (RESUME, SUSPEND, START):
            work.ask(instruction)
    await work.finish()
    assert work.begun == [SUSPEND, START]
    assert caplog.text.count("superseded by") == 2


async def test_containers_do_not_wait_for_each_other() -> None:
    work = Work()
    work.ask(SUSPEND)
    other = SuspendContainer(LEASE, ContainerId("other"))
    await settled()
    work.state = Suspending(GRANTS, other.container, 0.0, 1.0, wanted=True)
    work.queues.put(other)
    await settled()
    assert work.begun == [SUSPEND, other]


async def test_what_comes_after_a_stop_waits_for_it() -> None:
    work = Work()
    stopped = asyncio.Event()

    async def stop() -> None:
        with work.queues.stop(BOX):
            await stopped.wait()

    work.begin(stop())
    work.ask(START)
    await settled()
    assert work.begun == []
    stopped.set()
    await settled()
    assert work.begun == [START]
