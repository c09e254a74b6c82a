"""A node's end of links, with the real attempt log in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from gpushared.api.v1 import link_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs.attempt_log import AttemptLog
from gpushared.domain.jobs.job import AttemptState, Ending, JobSpec, NodeName, Owner
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.coordinator_addresses import divided
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.pool.member.coordinator_link import MemberLink
from gpushared.pool.member.dial import Dial, Retry
from gpushared.pool.member.link_session import Identity, Timing
from gpushared.pool.member.node_ports import OutboxJob
from gpushared.pool.trust.assertions import Asserter
from tests.pool.link.coordinator import Credentials

GIB = 1 << 30
ADA = Caller(1000, 1000, "ada")


def spec(owner: str = "ada@n1", **other: object) -> JobSpec:
    return JobSpec(Request(), Owner(owner, owner), image="busybox", body="{}", **other)  # type: ignore[arg-type]


class FakeOrderHandler:
    """A node's records of attempts, which forget nothing and are written at once."""

    def __init__(self) -> None:
        self.attempt_log = AttemptLog()
        self.seen = Contact()
        self.orders: list[Order] = []
        self.looks = 0
        self.refusal: GpushareError | None = None
        self.asked = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def take(self, order: Order) -> Report | StaleEpoch:
        """As with the daemon's loop: who stops waiting for the answer does not take the order back."""
        self.asked.set()
        return await asyncio.shield(self._written(order))

    async def _written(self, order: Order) -> Report | StaleEpoch:
        await self.may_write.wait()
        if self.refusal is not None:
            raise self.refusal
        self.orders.append(order)
        taken = attempt_log.take(self.attempt_log, order, ADA, None, time.time())
        self.attempt_log = taken.attempt_log
        return taken.report

    def change(self, key: AttemptKey, state: AttemptState, ending: Ending | None = None) -> None:
        self.attempt_log = attempt_log.changed(self.attempt_log, key, state, ending=ending, now=time.time())

    def reports(self) -> tuple[Report, ...]:
        return attempt_log.reports(self.attempt_log)

    def report(self, key: AttemptKey) -> Report | None:
        record = self.attempt_log.get(key)
        return None if record is None else attempt_log.report_of(record)

    def contact(self) -> Contact:
        return self.seen

    async def contact_made(self, sent_at: float, epoch: int, revision: int) -> None:
        self.attempt_log = attempt_log.heard(self.attempt_log, epoch)
        highest = Contact(max(epoch, self.seen.epoch), max(revision, self.seen.revision), "boot", sent_at)
        self.seen = highest

    async def look(self) -> None:
        self.looks += 1


class Facts:
    """One GPU; what is free may be set."""

    def __init__(self) -> None:
        gpu = Gpu(GpuId("GPU-1"), 0, "H100", 80 * GIB, 79 * GIB)
        self._inventory = Inventory((gpu,), cpu_milli=8000, memory_bytes=64 * GIB, version="0.1.0")
        self._free = HeartbeatReport()
        self._changed = asyncio.Event()

    def inventory(self) -> Inventory:
        return self._inventory

    def free(self) -> HeartbeatReport:
        return self._free

    def set_free(self, free: HeartbeatReport) -> None:
        self._free = free
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


@dataclass
class Outbox:
    """Jobs in memory; ``acks`` and ``updates`` are what came back."""

    asserter: Asserter
    node: NodeName
    kept: dict[JobId, OutboxJob] = field(default_factory=dict)
    wanted: dict[JobId, int] = field(default_factory=dict)
    acks: list[tuple[JobId, GpushareError | None]] = field(default_factory=list)
    updates: list[link_pb2.JobUpdate] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def jobs(self) -> tuple[JobId, ...]:
        return tuple(self.kept)

    def job(self, job: JobId) -> OutboxJob | None:
        return self.kept.get(job)

    def cancels(self) -> Mapping[JobId, int]:
        return self.wanted

    def vouch(self, job: JobId, digest: bytes) -> bytes:
        principal = self.kept[job].spec.owner.principal
        return self.asserter.sign(principal, (), digest, time.time())

    def vouch_cancel(self, job: JobId, digest: bytes) -> bytes:
        return self.asserter.sign(f"ada@{self.node}", (), digest, time.time())

    async def taken(self, job: JobId, refusal: GpushareError | None) -> None:
        async with self.changed:
            self.acks.append((job, refusal))
            self.changed.notify_all()

    async def cancelled(self, job: JobId, refusal: GpushareError | None) -> None:
        async with self.changed:
            self.wanted.pop(job, None)
            self.changed.notify_all()

    async def updated(self, update: link_pb2.JobUpdate) -> None:
        async with self.changed:
            self.updates.append(update)
            self.changed.notify_all()

    async def until(self, so: Callable[[Outbox], bool]) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: so(self))


class Node:
    """A member that dials ``address``; runs while ``running`` lasts."""

    def __init__(
        self,
        credentials: Credentials,
        address: Callable[[], str],
        *,
        retry: Retry | None = None,
        timing: Timing | None = None,
        name: str | None = None,
    ) -> None:
        self.name = NodeName(name or credentials.node)
        self.order_handler = FakeOrderHandler()
        self.facts = Facts()
        self.outbox = Outbox(Asserter(credentials.assertion_key, credentials.pool), self.name)
        self.troubles = Troubles()
        self.link = MemberLink(
            Identity(credentials.pool, self.name, "boot-1", "0.1.0"),
            Dial(lambda: divided(address()), credentials.channel, credentials.server_name),
            self.order_handler,
            self.facts,
            self.outbox,
            self.troubles,
            retry=retry or Retry(first=0.01, last=0.05, patient=0.05),
            timing=timing or Timing(answer=10.0),
            random=Random(str(self.name)),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        task = asyncio.create_task(self.link.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, so: Callable[[MemberLink], bool]) -> None:
        """Wait until the link is so."""
        async with asyncio.timeout(20):
            while not so(self.link):
                await self.link.changed(20)

    async def connected(self) -> None:
        await self.until(lambda link: link.connected)
