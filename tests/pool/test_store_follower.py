"""What was followed is what the store has, whatever a leader writes and whenever one looks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_events import (
    AttemptReported,
    CancelAsked,
    NodeForgotten,
    NodeHeartbeat,
    NodeRegistered,
    PoolTick,
    Send,
)
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import After, AfterKind, AttemptState, Ending, EndKind, Job, NodeName
from gpushared.domain.jobs.member import HeartbeatReport
from gpushared.domain.jobs.protocol import Place, Report
from gpushared.domain.model.errors import NotFound, RequestError, StateConflict, TimedOut
from gpushared.domain.model.lease import JobId, LeaseId
from gpushared.jobs import store_follower
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_records import ENDED, JOB, RECOVERING, job_changes
from gpushared.jobs.restore import StoredState, load, restored
from gpushared.jobs.store_follower import StoreFollower
from gpushared.ports.job_store import SharedStore, StoreUnavailable, Transaction
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.store import EtcdStore
from gpushared.testing import ManualClock, SharedMemoryStore, StoreWorld
from tests.bed.etcd import EtcdCluster
from tests.pool.pools import ADA, INVENTORY, NODE, REQUEST, SECONDS, Pool, job_id

NODES = (NODE, NodeName("n2"))
FEW = PoolRules(ended_kept=3)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_follower, "LONGEST_SECONDS", 0.002)


@asynccontextmanager
async def leading(store: SharedStore) -> AsyncIterator[Pool]:
    clock = ManualClock(1_000_000.0)
    state = await restored(store, FEW, epoch=await store.lead(), now=clock.now())
    loop = PoolLoop(state, store, clock, Troubles())
    async with loop.running():
        yield Pool(loop, store, Troubles(), clock)  # type: ignore[arg-type]  # its world is not asked for


@dataclass
class Follower:
    """Follows while it is open."""

    parts: StoreFollower
    store: SharedStore
    noticed: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Follower]:
        await self.parts.load()
        following = asyncio.create_task(self.parts.follow())
        try:
            yield self
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def has_all(self, pool: Pool) -> None:
        """It is as the store is, and so is what a coordinator would make of it."""
        await self.parts.until_reached(pool.loop.revision, SECONDS)
        followed, there = await self.parts.stored(), await load(self.store, FEW.ended_kept)
        assert followed.recovering == there.recovering
        assert by_name(followed.members) == by_name(there.members)
        assert followed.accounts == there.accounts
        assert facts(followed, pool) == facts(there, pool)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.002)


def by_name(members: tuple[object, ...]) -> dict[str, object]:
    return {one.name: one for one in members}  # type: ignore[attr-defined]


def facts(stored: StoredState, pool: Pool) -> tuple[dict[JobId, Job], dict[JobId, Job]]:
    """The jobs that a coordinator remembers."""
    state = restore(
        FEW,
        epoch=pool.loop.epoch,
        jobs=stored.jobs,
        members=stored.members,
        accounts=stored.accounts,
        now=pool.clock.now(),
    )
    return dict(state.jobs), dict(state.ended)


def follower(store: SharedStore, ended_kept: int = FEW.ended_kept) -> Follower:
    made = Follower(None, store)  # type: ignore[arg-type]  # follows
    made.parts = StoreFollower(store, ended_kept, made.noticed.append)
    return made


# --- whatever is written -----------------------------------------------------------------------------------


async def join(pool: Pool, number: int) -> None:
    await pool.join(NODES[number % 2])


async def submit(pool: Pool, number: int) -> None:
    await pool.submit(number, request=replace(REQUEST, project=("", "vision")[number % 2]))


async def cancel(pool: Pool, number: int) -> None:
    await pool.loop.send(CancelAsked(job_id(number), ADA))


async def tick(pool: Pool, number: int) -> None:
    pool.clock.advance(float(number))
    await pool.loop.send(NodeHeartbeat(NODE, free=HeartbeatReport()))
    await pool.loop.send(PoolTick())


def orders(pool: Pool) -> list[tuple[NodeName, Place]]:
    sent = [one for one in pool.told if isinstance(one, Send)]
    return [(one.node, one.order) for one in sent if isinstance(one.order, Place)]


async def report(pool: Pool, number: int) -> None:
    """An attempt runs, or is over."""
    placed = orders(pool)
    if not placed:
        return
    node, order = placed[number % len(placed)]
    is_over = number % 3 > 0
    state = AttemptState.ENDED if is_over else AttemptState.RUNNING
    ending = Ending(EndKind.EXITED, exit_code=number % 2) if is_over else None
    await pool.loop.send(
        AttemptReported(node, Report(order.key, state, 2 + is_over, lease=LeaseId("l-1"), ending=ending))
    )


async def prune(pool: Pool, number: int) -> None:
    await pool.loop.archive.prune(pool.loop.write, keep=number % 4, ended_before=0.0, now=pool.clock.now())


async def forget(pool: Pool, number: int) -> None:
    await pool.loop.send(NodeForgotten(NODES[number % 2], ADA))


async def lose(pool: Pool, number: int) -> None:
    """A node has seen a newer pool: the epoch rises, and a recovery begins."""
    seen = pool.loop.epoch + number
    await pool.loop.send(
        NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_epoch=seen, seen_revision=10**9)
    )


async def other(pool: Pool, number: int) -> None:
    await pool.loop.write({f"token/api/{number}": b"{}"})


STEPS: dict[str, Callable[[Pool, int], Awaitable[None]]] = {
    one.__name__: one for one in (join, submit, cancel, tick, report, prune, forget, lose, other)
}
LIKELY = ["join", "submit", "submit", "submit", "tick", "tick", "report", "report", "report"]
SEQUENCES = st.lists(
    st.tuples(st.sampled_from([*LIKELY, *STEPS]), st.integers(0, 9), st.booleans()), min_size=5, max_size=40
)


async def follows(stores: Callable[[str], SharedStore], sequence: list[tuple[str, int, bool]]) -> None:
    first, second = stores("a"), stores("b")
    try:
        async with leading(first) as pool, follower(second).following() as watched:
            for step, number, looks in sequence:
                with suppress(NotFound, RequestError, StateConflict):  # a step may make no sense here
                    await STEPS[step](pool, number)
                if looks:
                    await watched.has_all(pool)
            await watched.has_all(pool)
            newer = follower(second)
            await newer.parts.load()
            await newer.has_all(pool)
    finally:
        await first.close()
        await second.close()


@settings(max_examples=60, deadline=None)
@given(SEQUENCES)
def test_what_was_followed_is_what_the_store_has(sequence: list[tuple[str, int, bool]]) -> None:
    world = StoreWorld()
    asyncio.run(follows(lambda name: SharedMemoryStore(world, name=name), sequence))


@settings(max_examples=20, deadline=None)
@given(SEQUENCES)
def test_who_is_often_too_far_behind_has_it_too(sequence: list[tuple[str, int, bool]]) -> None:
    world = StoreWorld()
    asyncio.run(follows(lambda name: SharedMemoryStore(world, name=name, max_changes=2), sequence))


FULL_LIFE = [
    *[("join", 0, False), ("join", 1, True)],
    *[("submit", n, n % 3 == 0) for n in range(8)],
    *[("tick", 3, True) for _ in range(3)],
    *[("report", 0, True), ("tick", 90, True), ("tick", 90, True), ("report", 8, True)],
    *[("report", n, n % 4 == 0) for n in range(12)],
    *[("tick", 3, True), ("cancel", 5, True), ("prune", 2, True), ("other", 1, False)],
    *[("lose", 1, True), ("forget", 1, True), ("prune", 0, True), ("submit", 9, True)],
]


def test_what_was_followed_in_etcd_is_what_the_store_has(etcd_member: EtcdCluster) -> None:
    access, prefix = EtcdAccess(etcd_member.endpoints), f"/gpushare/{secrets.token_hex(8)}/"
    asyncio.run(follows(lambda name: EtcdStore(access, prefix, name=name), FULL_LIFE))


async def test_the_sequence_for_etcd_comes_to_every_kind_of_record() -> None:
    world = StoreWorld()
    await follows(lambda name: SharedMemoryStore(world, name=name), FULL_LIFE)
    written = {key.partition("/")[0] for one in world.transactions for key in one.puts}
    assert written >= {"job", "ended", "over", "gone", "member", "usage", "pool", "token"}


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld()


async def test_who_was_too_far_behind_loads_again_and_says_that_it_missed_changes(world: StoreWorld) -> None:
    behind = SharedMemoryStore(world, name="b", max_changes=3)
    async with leading(SharedMemoryStore(world)) as pool, follower(behind).following() as watched:
        await pool.loop.write({f"trust/{n}": b"" for n in range(4)})
        await pool.submit(1)
        await watched.until(lambda: "" in watched.noticed)
        await watched.has_all(pool)
        assert watched.parts.problem is None
        await pool.submit(2)
        await watched.has_all(pool)


@pytest.mark.parametrize("failures", [1, 2, 3, 7, 12])
async def test_a_store_that_fails_meanwhile_is_asked_until_it_answers(
    world: StoreWorld, failures: int
) -> None:
    store = SharedMemoryStore(world, name="b", max_changes=2)
    async with leading(SharedMemoryStore(world)) as pool, follower(store).following() as watched:
        await watched.until(lambda: watched.parts.revision == world.revision)
        await pool.submit(1)
        await pool.loop.write({f"trust/{n}": b"" for n in range(4)})  # too many: it must load again
        store.fail_next(StoreUnavailable("no member of etcd answers"), times=failures)
        await watched.until(lambda: not store._failures and watched.parts.problem is None)
        await watched.has_all(pool)


async def test_why_the_store_is_not_followed_is_known_as_long_as_it_lasts(world: StoreWorld) -> None:
    watched = follower(SharedMemoryStore(world, name="b"))
    async with leading(SharedMemoryStore(world)) as pool, watched.following():
        await pool.submit(1)
        good = world.records[JOB + job_id(1)].value
        world.apply(Transaction(1, {JOB + job_id(1): b"{}"}))
        await watched.until(lambda: watched.parts.problem)
        assert "job/j000000001 is not one that this version can read" in str(watched.parts.problem)
        reads = world.revision
        world.apply(Transaction(1, {JOB + job_id(1): good}))
        await watched.until(lambda: watched.parts.problem is None)
        assert watched.parts.revision > reads
        assert [job.id for job in (await watched.parts.stored()).jobs] == [job_id(1)]


@pytest.mark.parametrize("key", [JOB + "x", ENDED + "x", "member/x"])
async def test_a_store_with_a_record_of_a_newer_version_is_not_loaded(world: StoreWorld, key: str) -> None:
    world.apply(Transaction(1, {key: b'{"newer": 1}', "over/00000000000000001-x": b""}))
    with pytest.raises(StoreUnavailable, match=f"{key} is not one that this version can read") as raised:
        await follower(SharedMemoryStore(world)).parts.load()
    assert raised.value.hint == "install the version that wrote it"


async def test_accounts_that_cannot_be_read_are_told_when_they_are_needed(world: StoreWorld) -> None:
    world.apply(Transaction(1, {"usage/vision/1": b"many"}))
    watched = follower(SharedMemoryStore(world))
    await watched.parts.load()
    with pytest.raises(StoreUnavailable, match="usage/vision/1"):
        await watched.parts.stored()


async def test_waiting_for_a_revision_ends_with_its_time(world: StoreWorld) -> None:
    async with follower(SharedMemoryStore(world)).following() as watched:
        await watched.parts.until_reached(0, 0.0)
        with pytest.raises(TimedOut, match="not followed up to revision 7"):
            await watched.parts.until_reached(7, 0.01)


async def test_a_forgotten_job_and_the_mark_of_a_recovery_come_and_go(world: StoreWorld) -> None:
    async with leading(SharedMemoryStore(world)) as pool:
        watched = follower(SharedMemoryStore(world, name="b"))
        async with watched.following():
            await pool.submit(1)
            over = await pool.loop.send(CancelAsked(job_id(1), ADA))
            await watched.has_all(pool)
            assert [job.id for job in (await watched.parts.stored()).jobs] == [job_id(1)]
            assert over is not None
            await pool.loop.write({ENDED + job_id(1): b"", RECOVERING: b""}, deletes=[])
            await watched.parts.until_reached(pool.loop.revision, SECONDS)
            stored = await watched.parts.stored()
            assert (stored.jobs, stored.recovering) == ((), True)
            await pool.loop.write({}, deletes=[RECOVERING])
            await watched.parts.until_reached(pool.loop.revision, SECONDS)
            assert not (await watched.parts.stored()).recovering


@pytest.mark.parametrize("kept", [0, 1, 5])
async def test_of_very_many_ended_jobs_only_the_newest_are_held(world: StoreWorld, kept: int) -> None:
    async with leading(SharedMemoryStore(world)) as pool:
        watched = follower(SharedMemoryStore(world, name="b"), kept)
        async with watched.following():
            for number in range(2 * kept + 101):
                await pool.submit(number)
                await pool.loop.send(CancelAsked(job_id(number), ADA))
                pool.clock.advance(1.0)
            await watched.parts.until_reached(pool.loop.revision, SECONDS)
            held = {job.id for job in (await watched.parts.stored()).jobs}
            assert held == {job_id(2 * kept + 100 - n) for n in range(kept)}


async def test_an_ended_job_that_another_one_awaits_is_read_however_old(world: StoreWorld) -> None:
    async with leading(SharedMemoryStore(world)) as pool:
        for number in range(1, 8):
            pool.clock.advance(1.0)
            await pool.submit(number)
            await pool.loop.send(CancelAsked(job_id(number), ADA))
        awaiting = replace(await pool.submit(9), awaits=(After(job_id(1), AfterKind.ANY),))
        await pool.loop.write({key: value or b"" for key, value in job_changes(awaiting).items()})
        watched = follower(SharedMemoryStore(world, name="b"), 2)
        async with watched.following():
            await watched.parts.until_reached(pool.loop.revision, SECONDS)
            assert {job.id for job in (await watched.parts.stored()).jobs} == {
                job_id(n) for n in (9, 1, 6, 7)
            }
