"""The node's own job store, over a store in memory and a node that answers out of the real records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs.attempt_log import AttemptLog
from gpushared.domain.jobs.coordinator_events import JobSubmitted
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import AttemptState, Ended, JobFailed, JobSpec, Owner, Placing, Running
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from gpushared.domain.model.request import Caller, Request
from gpushared.jobs import coordinator_loop as module
from gpushared.node.jobs.local_jobs import LocalJobs
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.ports.job_store import StoreUnavailable
from gpushared.testing.fake_clock import ManualClock
from gpushared.testing.fake_job_store import MemoryStore, StoreWorld

SECONDS = 20.0
"""Only a test that fails waits so long."""
ADA = Caller(1000, 1000, "ada")
TOO_LONG = LeaseId("l" * 300_000)
"""A store takes records of 256 KiB."""


class FakeOrderHandler:
    """A node whose containers do what a test says."""

    def __init__(self) -> None:
        self.attempts = AttemptLog()
        self._tell: Callable[[AttemptKey], None] = lambda _: None

    async def take(self, order: Order, _: str) -> Report | StaleEpoch:
        taken = attempt_log.take(self.attempts, order, ADA, None, 1.0, boot_id="boot")
        self.attempts = taken.attempt_log
        return taken.report

    def reports(self, _: str) -> tuple[Report, ...]:
        return attempt_log.reports(self.attempts)

    def report(self, _: str, key: AttemptKey) -> Report | None:
        return attempt_log.report_of(self.attempts.records[key])

    def newest_contact(self, _: str) -> Contact:
        return Contact()

    def subscribe(self, _: str, callback: Callable[[AttemptKey], None]) -> Callable[[], None]:
        self._tell = callback
        return lambda: None

    def runs(self, job: str, lease: LeaseId) -> None:
        key = AttemptKey(JobId(job), 1)
        self.attempts = attempt_log.changed(self.attempts, key, AttemptState.RUNNING, lease=lease, now=2.0)
        self._tell(key)


class OpenJobs:
    """The local jobs while their store is open."""

    def __init__(self, jobs: LocalJobs, store: MemoryStore) -> None:
        self.loop = jobs.loop
        self.store = store

    async def submit(self, job: str) -> None:
        spec = JobSpec(Request(compute_permille=100), Owner("ada@ws1", "ada@ws1"), image="x")
        await self.loop.send(JobSubmitted(JobId(job), spec))

    async def until(self, job: str, kind: type[Any]) -> Any:
        """Its state, once it is of this kind."""
        async with asyncio.timeout(SECONDS):
            while not isinstance(state := self.loop.state.find(JobId(job)).state, kind):
                await self.loop.job_changed(JobId(job), 0.05)
        return state

    async def until_ordered(self, job: str, order_handler: FakeOrderHandler) -> None:
        await self.until(job, Placing)
        async with asyncio.timeout(SECONDS):
            while AttemptKey(JobId(job), 1) not in order_handler.attempts.records:
                await self.loop.changed(0.05)


@asynccontextmanager
async def opened(order_handler: FakeOrderHandler, world: StoreWorld) -> AsyncIterator[OpenJobs]:
    store = MemoryStore(world)
    rules = PoolRules(here=True, plan_seconds=0.0)
    jobs = LocalJobs(store, rules, cast("OrderHandler", order_handler), ManualClock(1_000.0), Troubles())
    async with jobs.running():
        yield OpenJobs(jobs, store)
    await store.close()


def why(state: Ended) -> str:
    assert isinstance(state.outcome, JobFailed)
    return state.outcome.reason


async def test_a_job_of_which_something_cannot_be_written_down_ends_and_says_so() -> None:
    """Said again and again it would run on, unseen, for ever."""
    order_handler = FakeOrderHandler()
    async with opened(order_handler, StoreWorld()) as jobs:
        await jobs.submit("a")
        await jobs.until_ordered("a", order_handler)
        order_handler.runs("a", TOO_LONG)
        assert "a record is larger" in why(await jobs.until("a", Ended))
        assert order_handler.attempts.records[AttemptKey(JobId("a"), 1)].cancelled_by == "the job store"


async def test_at_the_start_what_cannot_be_written_down_keeps_no_other_job_from_being_known() -> None:
    order_handler, world = FakeOrderHandler(), StoreWorld()
    async with opened(order_handler, world) as jobs:
        for job in ("a", "b"):
            await jobs.submit(job)
            await jobs.until_ordered(job, order_handler)
    order_handler._tell = lambda _: None
    order_handler.runs("a", TOO_LONG)
    order_handler.runs("b", LeaseId("l-1"))
    async with opened(order_handler, world) as jobs:
        await jobs.until("b", Running)
        assert "a record is larger" in why(await jobs.until("a", Ended))


async def test_what_a_store_could_not_write_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.0)
    order_handler = FakeOrderHandler()
    async with opened(order_handler, StoreWorld()) as jobs:
        await jobs.submit("a")
        await jobs.until_ordered("a", order_handler)
        jobs.store.fail_next(StoreUnavailable("the disk is full"), times=3)
        order_handler.runs("a", LeaseId("l-1"))
        await jobs.until("a", Running)
