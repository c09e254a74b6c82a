"""A coordinator's loop on a store in memory, and what its tests say to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_events import (
    JobSubmitted,
    NodeEnrolled,
    NodeRegistered,
    PoolInstruction,
    PoolTick,
    Send,
)
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import Job, JobSpec, NodeName, Owner
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member
from gpushared.domain.jobs.protocol import Place
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.restore import restored
from gpushared.testing import GIB, ManualClock, MemoryStore, StoreWorld, fake_gpu

SECONDS = 10
ADA = Owner("ada@lab", "ada")
NODE = NodeName("n1")
INVENTORY = Inventory(gpus=(fake_gpu(),), cpu_milli=64_000, memory_bytes=256 * GIB, address="10.0.0.1")
REQUEST = Request(
    memory_bytes=None,
    memory_permille=100,
    compute_permille=100,
    lease_class=LeaseClass.TRAIN,
)


def spec(**more: object) -> JobSpec:
    return replace(JobSpec(REQUEST, ADA, image="busybox", body="{}", request_id="r"), **more)  # type: ignore[arg-type]


def job_id(number: int) -> JobId:
    return JobId(f"j{number:09d}")


class Pool:
    """A coordinator on a store, without network."""

    def __init__(self, loop: PoolLoop, store: MemoryStore, troubles: Troubles, clock: ManualClock) -> None:
        self.loop = loop
        self.store = store
        self.troubles = troubles
        self.clock = clock
        self.told: list[PoolInstruction] = []
        loop.subscribe(self.told.append)

    async def submit(self, number: int, **more: object) -> Job:
        job = await self.loop.send(JobSubmitted(job_id(number), spec(**more)))
        assert job is not None
        return job

    async def join(self, node: NodeName = NODE) -> None:
        await self.loop.send(NodeEnrolled(node))
        await self.loop.send(NodeRegistered(node, INVENTORY, HeartbeatReport()))

    async def until_placed(self, number: int) -> Place:
        """The order for a job, once it has been given."""
        async with asyncio.timeout(SECONDS):
            while True:
                said = (one.order for one in self.told if isinstance(one, Send))
                orders = (one for one in said if isinstance(one, Place) and one.key.job == job_id(number))
                if (found := next(orders, None)) is not None:
                    return found
                self.clock.advance(0.1)
                await self.loop.send(PoolTick())

    def kept(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.store.world.records if key.startswith(prefix))


@asynccontextmanager
async def coordinator(
    world: StoreWorld | None = None,
    *,
    rules: PoolRules | None = None,
    enrolled: tuple[Member, ...] = (),
    is_behind: bool | None = None,
) -> AsyncIterator[Pool]:
    store, clock, troubles = MemoryStore(world), ManualClock(1_000_000.0), Troubles()
    epoch = await store.lead()
    rules = rules or PoolRules()
    state = await restored(store, rules, epoch=epoch, now=clock.now(), enrolled=enrolled, is_behind=is_behind)
    loop = PoolLoop(state, store, clock, troubles)
    async with loop.running():
        yield Pool(loop, store, troubles, clock)
    await store.close()
