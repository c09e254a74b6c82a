"""All coordinators of a pool are known: those that run, and those that ran when nodes were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpushared.api.v1 import pool_pb2
from gpushared.domain.model.errors import GpushareError, NotFound, StateConflict
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.pool.coordinator import coordinator_registry as module
from gpushared.pool.coordinator.coordinator_registry import COORDINATOR, CoordinatorRegistry
from gpushared.ports.job_store import StoreUnavailable
from gpushared.testing import SharedMemoryStore, StoreWorld
from tests.pool.standbys import StandbyCoordinator, leading


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.002)


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld()


def facts(name: str, port: int = 7440) -> pool_pb2.PoolCoordinator:
    return pool_pb2.PoolCoordinator(
        name=name,
        address=f"{name}:{port}",
        node_address=f"{name}:{port + 1}",
        version="1",
        started_at=1.0,
    )


def registry(store: SharedMemoryStore, own: pool_pb2.PoolCoordinator) -> CoordinatorRegistry:
    return CoordinatorRegistry(store, lambda: own)


@asynccontextmanager
async def keeping(one: CoordinatorRegistry, loop: PoolLoop) -> AsyncIterator[None]:
    task = asyncio.create_task(one.keep(loop))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def both_kept(first: StandbyCoordinator) -> CoordinatorRegistry:
    """The leader a knows b."""
    b = SharedMemoryStore(first.store.world, name="b")
    await registry(b, facts("b")).announce()
    known = registry(first.store, facts("a"))
    async with keeping(known, first.loop):
        await first.until(lambda: len(known.addresses()[0]) == 2)
    await b.close()
    return known


async def test_the_leader_keeps_the_addresses_of_all_in_the_same_order(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        assert known.addresses() == (["a:7440", "b:7440"], ["a:7441", "b:7441"])
        assert first.kept(COORDINATOR) == ["coordinator/a", "coordinator/b"]


async def test_what_is_known_already_is_not_written_again(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        before = world.revision
        async with keeping(known, first.loop):
            await asyncio.sleep(0.02)
        assert world.revision == before


async def test_a_coordinator_with_a_new_address_replaces_the_old_one(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        moved = SharedMemoryStore(world, name="b")
        await registry(moved, facts("b", 9000)).announce()
        async with keeping(known, first.loop):
            await first.until(lambda: "b:9000" in known.addresses()[0])
        assert known.addresses()[0] == ["a:7440", "b:9000"]


async def test_one_that_stands_by_knows_the_addresses_before_it_leads(world: StoreWorld) -> None:
    """The nodes that wait for a leader are told them at once."""
    async with leading(world) as first:
        await both_kept(first)
        third = registry(SharedMemoryStore(world, name="c"), facts("c"))
        await third.announce()
        assert third.addresses()[0] == ["a:7440", "b:7440"]


async def test_all_are_listed_with_what_each_does(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        third = SharedMemoryStore(world, name="c")
        await registry(third, facts("c")).announce()
        listed = [(one.name, one.runs, one.leads) for one in await known.all()]
        assert listed == [("a", True, True), ("b", False, False), ("c", True, False)]


async def test_a_retired_coordinator_is_forgotten_and_nodes_are_told_of_it_no_more(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        await known.forget("b", first.loop.write)
        assert first.kept(COORDINATOR) == ["coordinator/a"]
        assert known.addresses() == (["a:7440"], ["a:7441"])


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [("a", StateConflict, "a runs"), ("z", NotFound, "there is no coordinator 'z'")],
)
async def test_neither_one_that_runs_nor_an_unknown_one_is_forgotten(
    world: StoreWorld, name: str, error: type[GpushareError], told: str
) -> None:
    async with leading(world) as first:
        known = await both_kept(first)
        with pytest.raises(error, match=told):
            await known.forget(name, first.loop.write)
        assert first.kept(COORDINATOR) == ["coordinator/a", "coordinator/b"]


async def test_facts_of_a_newer_version_are_left_out_and_told(
    world: StoreWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(world) as first:
        await first.store.announce("z", b'{"newer": 1}')
        listed = {one.name: one for one in await registry(first.store, facts("a")).all()}
        assert (listed["z"].runs, listed["z"].address) == (True, "")
    assert "the record of coordinator z cannot be read" in caplog.text


async def test_a_store_that_fails_is_asked_again(world: StoreWorld) -> None:
    async with leading(world) as first:
        known = registry(first.store, facts("a"))
        first.store.fail_next(StoreUnavailable("etcd is slow"), times=5)
        async with keeping(known, first.loop):
            await first.until(lambda: known.addresses()[0] == ["a:7440"])
