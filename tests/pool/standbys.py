"""Coordinators on one shared store, without network: one leads, and the others stand by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.member import Member
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.pool.coordinator.succession import Succession
from gpushared.testing import ManualClock, SharedMemoryStore, StoreWorld
from tests.pool.pools import SECONDS, Pool


class StandbyCoordinator(Pool):
    """A coordinator that stands by until it leads. ``run`` is the task that says so."""

    store: SharedMemoryStore

    def __init__(self, store: SharedMemoryStore, *, rules: PoolRules | None = None, now: float = 1e6) -> None:
        rules = rules or PoolRules()
        clock, troubles = ManualClock(now), Troubles()
        loop = PoolLoop(restore(rules, epoch=0, now=now), store, clock, troubles)
        super().__init__(loop, store, troubles, clock)
        self.noticed: list[str] = []
        self.enrolled: tuple[Member, ...] = ()
        self.once_leading: Callable[[], None] = lambda: None
        self.succession = Succession(
            store, loop, clock, lambda: rules, troubles, name=store.name, on_other_change=self.noticed.append
        )
        self.run: asyncio.Task[None]

    async def until_leading(self) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.shield(self.run)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.002)

    async def announce(self) -> None:
        await self.store.announce(self.store.name, b"{}")

    async def members(self, _epoch: int, _ahead: float) -> tuple[Member, ...]:
        self.once_leading()
        return self.enrolled

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StandbyCoordinator]:
        await self.succession.prepare()
        async with self.loop.running():
            self.run = asyncio.create_task(self.succession.run(self.announce, self.members))
            try:
                yield self
            finally:
                self.run.cancel()
                await asyncio.gather(self.run, return_exceptions=True)
                await self.store.close()


def standby_coordinator(
    world: StoreWorld, name: str, *, rules: PoolRules | None = None, now: float = 1e6
) -> StandbyCoordinator:
    return StandbyCoordinator(SharedMemoryStore(world, name=name), rules=rules, now=now)


@asynccontextmanager
async def leading(world: StoreWorld, name: str = "a") -> AsyncIterator[StandbyCoordinator]:
    """One that leads already."""
    async with standby_coordinator(world, name).running() as made:
        await made.until_leading()
        yield made
