"""A coordinator that stands by shows what the leader wrote, and takes over with all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gpushared.domain.jobs.coordinator_events import JobSubmitted
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import NodeName, Placing
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import GpushareError, NotLeader, TimedOut
from gpushared.domain.model.lease import JobId
from gpushared.jobs import store_follower
from gpushared.jobs.job_records import JOB, MEMBER, RECOVERING
from gpushared.jobs.leader_clock import CLOCK, clock_record
from gpushared.pool.coordinator import succession
from gpushared.ports.job_store import Deposed, StoreChange, StoreUnavailable, Transaction
from gpushared.testing import SharedMemoryStore, StoreWorld
from tests.pool.pools import ADA, NODE, SECONDS, job_id, spec
from tests.pool.standbys import StandbyCoordinator, leading, standby_coordinator


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "LOOK_SECONDS", 0.002)
    monkeypatch.setattr(succession, "SHOW_SECONDS", 0.002)
    monkeypatch.setattr(store_follower, "LONGEST_SECONDS", 0.002)


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld()


def jobs_in(world: StoreWorld) -> set[str]:
    return {key.removeprefix(JOB) for key in world.records if key.startswith(JOB)}


# --- standing by -----------------------------------------------------------------------------------------


async def test_the_first_of_all_leads_at_once(world: StoreWorld) -> None:
    async with leading(world) as first:
        assert first.loop.standby is None
        assert first.loop.epoch == world.epoch == 1
        await first.join()
        await first.submit(1)
        assert jobs_in(world) == {job_id(1)}


async def test_what_the_leader_writes_is_shown_by_one_that_stands_by(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.join()
        await first.submit(1)
        await first.until_placed(1)
        await second.until(lambda: second.loop.revision >= first.loop.revision)
        assert dict(second.loop.state.jobs) == dict(first.loop.state.jobs)
        assert isinstance(second.loop.state.jobs[job_id(1)].state, Placing)
        assert set(second.loop.state.members) == {NODE}
        assert second.loop.state.epoch == first.loop.epoch
        assert second.succession.standby.leader == "a"


async def test_who_waits_for_a_job_at_one_that_stands_by_hears_of_its_change(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.submit(1)
        await second.until(lambda: job_id(1) in second.loop.state.jobs)
        waiting = asyncio.create_task(second.loop.job_changed(job_id(1), SECONDS))
        await asyncio.sleep(0)
        await first.join()
        await first.until_placed(1)
        assert await waiting


async def test_the_age_of_what_is_shown_is_the_time_since_the_store_was_heard(world: StoreWorld) -> None:
    async with leading(world), standby_coordinator(world, "b").running() as second:
        clock = asyncio.get_running_loop().time
        second.store.heard_at = clock() - 100.0
        assert 100.0 <= second.succession.standby.age_seconds() < 100.0 + SECONDS
        second.store.heard_at = clock() + 5.0
        assert second.succession.standby.age_seconds() == 0.0


async def test_one_that_stands_by_writes_nothing_and_names_the_leader(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.submit(1)
        await second.until(lambda: job_id(1) in second.loop.state.jobs)
        before = world.revision
        for refused in (second.submit(2), second.loop.write({"token/api/x": b"{}"})):
            with pytest.raises(NotLeader, match="the coordinator b stands by, and a leads"):
                await refused
        assert world.revision == before


async def test_keys_of_other_parts_are_passed_on(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.loop.write({"token/api/x": b"{}", "trust/anchors": b"sealed"})
        await second.until(lambda: {"token/api/x", "trust/anchors"} <= set(second.noticed))


# --- taking over -----------------------------------------------------------------------------------------


async def test_a_leader_that_ends_is_followed_by_one_that_has_all_of_it(world: StoreWorld) -> None:
    async with standby_coordinator(world, "b").running() as third:
        await third.until_leading()
    async with leading(world) as first:
        await first.join()
        for number in range(3):
            await first.submit(number)
        await first.until_placed(0)
        async with standby_coordinator(world, "b").running() as second:
            await first.store.close()
            await second.until_leading()
            assert second.loop.standby is None
            assert dict(second.loop.state.jobs) == dict(first.loop.state.jobs)
            assert second.loop.state.epoch == second.loop.epoch > first.loop.epoch
            assert second.loop.state.settled
            await second.submit(7)
            assert jobs_in(world) == {job_id(n) for n in (0, 1, 2, 7)}


@pytest.mark.parametrize("after", range(0, 40, 5))
async def test_nothing_that_was_acknowledged_is_lost_whenever_the_leader_falls(
    world: StoreWorld, after: int
) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        acknowledged: set[JobId] = set()

        async def submit(number: int) -> None:
            job = await first.submit(number)
            acknowledged.add(job.id)
            if len(acknowledged) == after:
                first.store.depose()

        if not after:
            first.store.depose()
        results = await asyncio.gather(*(submit(n) for n in range(20)), return_exceptions=True)
        results += await asyncio.gather(*(submit(n) for n in range(20, 40)), return_exceptions=True)
        await second.until_leading()
        assert acknowledged <= set(second.loop.state.jobs)
        assert set(second.loop.state.jobs) == jobs_in(world)
        assert all(one is None or isinstance(one, GpushareError) for one in results)
        with pytest.raises(GpushareError):
            await first.submit(99)
        assert jobs_in(world) == set(second.loop.state.jobs)


async def test_who_waits_for_a_leader_goes_on_when_this_coordinator_leads(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.submit(1)
        await second.until(lambda: job_id(1) in second.loop.state.jobs)
        held = asyncio.create_task(second.succession.standby.until_leading(SECONDS, 1))
        looks = asyncio.create_task(second.loop.job_changed(job_id(1), SECONDS))
        lists = asyncio.create_task(second.loop.changed(SECONDS))
        await asyncio.sleep(0)
        first.store.depose()
        await second.until_leading()
        await held
        assert await looks
        assert await lists


async def test_of_two_that_stand_by_one_leads_and_the_other_follows_it(world: StoreWorld) -> None:
    async with (
        leading(world) as first,
        standby_coordinator(world, "b").running() as second,
        standby_coordinator(world, "c").running() as third,
    ):
        first.store.depose()
        both = (second, third)
        await second.until(lambda: any(one.run.done() for one in both))
        leads, follows = sorted(both, key=lambda one: not one.run.done())
        assert follows.loop.standby is not None
        await leads.submit(1)
        await follows.until(lambda: job_id(1) in follows.loop.state.jobs)
        assert follows.succession.standby.leader == leads.store.name
        await leads.store.close()
        await follows.until_leading()
        assert job_id(1) in follows.loop.state.jobs


async def test_a_leader_that_was_deposed_before_it_began_does_not_begin(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.submit(1)
        second.once_leading = second.store.depose
        first.store.depose()
        with pytest.raises(Deposed):
            await second.until_leading()
        with pytest.raises(NotLeader):
            await second.submit(2)
        assert jobs_in(world) == {job_id(1)}


class StoreThatFailsOnce(SharedMemoryStore):
    """Fails the call of that number, counted from when it leads."""

    def __init__(self, world: StoreWorld, number: int) -> None:
        super().__init__(world, name="b")
        self.left = number
        self.failed = False

    def _may_fail(self) -> None:
        super()._may_fail()
        if self.world.leader is self:
            self.left -= 1
            if self.left == 0:
                self.failed = True
                raise StoreUnavailable("the disk is slow")


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_store_that_fails_at_the_beginning_leaves_no_leader_with_half_of_it(
    world: StoreWorld, number: int
) -> None:
    second = StandbyCoordinator(StoreThatFailsOnce(world, number))
    second.enrolled = (Member(NodeName("n9"), 5.0, ("n9",)),)
    async with leading(world) as first, second.running():
        await first.join()
        await first.submit(1)
        first.store.depose()
        try:
            await second.until_leading()
        except StoreUnavailable:
            assert second.loop.standby is not None
        else:
            assert set(second.loop.state.jobs) == {job_id(1)}
            assert set(second.loop.state.members) == {NODE, "n9"}
        assert jobs_in(world) == {job_id(1)}


async def test_the_first_call_of_a_leader_that_fails_ends_it(world: StoreWorld) -> None:
    store = StoreThatFailsOnce(world, 1)
    async with (
        standby_coordinator(world, "a").running() as first,
        StandbyCoordinator(store).running() as second,
    ):
        await first.until_leading()
        first.store.depose()
        with pytest.raises(StoreUnavailable, match="the disk is slow"):
            await second.until_leading()
        assert store.failed


class StoreThatLosesAnAnswer(SharedMemoryStore):
    """Becomes the leader at the first try, and does not say so."""

    tries = 0

    async def lead(self, above: int = 0) -> int:
        epoch = await super().lead(above)
        self.tries += 1
        if self.tries == 1:
            raise TimedOut("etcd did not say if this coordinator leads")
        return epoch


async def test_one_that_leads_without_knowing_it_asks_again(world: StoreWorld) -> None:
    """Nobody else can lead until it ends."""
    store = StoreThatLosesAnAnswer(world, name="b")
    async with StandbyCoordinator(store).running() as second:
        await second.until_leading()
        assert (second.loop.epoch, store.tries) == (2, 2)
        await second.submit(1)


async def test_a_node_that_was_signed_last_is_a_member_and_no_sign_of_a_loss(world: StoreWorld) -> None:
    """The old leader had signed its certificate and ended; nothing else can be missing."""
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.join()
        second.enrolled = (Member(NODE, 5.0, ("n1",)), Member(NodeName("n2"), 6.0, ("n2",)))
        first.store.depose()
        await second.until_leading()
        assert MEMBER + "n2" in world.records
        assert second.loop.state.settled
        assert RECOVERING not in world.records


async def test_a_recovery_that_was_under_way_goes_on(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.join()
        await first.loop.write({RECOVERING: b""})
        first.store.depose()
        await second.until_leading()
        assert second.loop.state.recovering_since is not None


class DeafStore(SharedMemoryStore):
    """Follows, and hears nothing."""

    async def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        await asyncio.Event().wait()
        yield StoreChange(prefix, None, after)


async def test_what_was_not_heard_in_time_is_read(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "CATCH_UP_SECONDS", 0.01)
    async with leading(world) as first, StandbyCoordinator(DeafStore(world, name="b")).running() as second:
        await first.join()
        await first.submit(1)
        first.store.depose()
        await second.until_leading()
        assert set(second.loop.state.jobs) == {job_id(1)}
        assert set(second.loop.state.members) == {NODE}


async def test_a_record_that_cannot_be_read_is_told_and_keeps_it_from_leading(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        await first.submit(1)
        world.apply(Transaction(1, {JOB + "j2": b'{"newer": 1}'}))
        await second.until(
            lambda: "job/j2 is not one that this version can read" in second.troubles.of("store")
        )
        first.store.depose()
        for _ in range(20):
            await asyncio.sleep(0.002)
            assert not second.run.done()
        assert second.loop.standby is not None
        world.apply(Transaction(1, {}, deletes=(JOB + "j2",)))
        await second.until_leading()
        assert set(second.loop.state.jobs) == {job_id(1)}
        assert second.troubles.of("store") == ""


async def test_a_store_that_does_not_answer_is_told_until_it_answers(world: StoreWorld) -> None:
    async with leading(world) as first, standby_coordinator(world, "b").running() as second:
        second.store.fail_next(StoreUnavailable("no member of etcd answers"), times=5)
        await second.until(lambda: "no member of etcd answers" in second.troubles.of("store"))
        await second.until(lambda: second.troubles.of("store") == "")
        await first.submit(1)
        await second.until(lambda: job_id(1) in second.loop.state.jobs)


# --- the time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1])
async def test_times_go_on_where_the_leaders_clock_was(world: StoreWorld, hours: int) -> None:
    """The machines agree on the time of day, and their clocks that nobody sets began at different times."""
    second = standby_coordinator(world, "b", now=1e6 + hours * 3600.0)
    second.clock.set_day(-hours * 3600.0)
    async with leading(world) as first, second.running():
        place = json.loads(clock_record(first.loop.clock)) | {"boot": "another machine's"}
        await first.loop.write({CLOCK: json.dumps(place).encode()})
        await first.loop.send(JobSubmitted(job_id(1), spec()))
        first.clock.advance(30.0)
        second.clock.advance(30.0)
        first.store.depose()
        await second.until_leading()
        assert second.loop.now() == first.loop.now()
        assert second.loop.state.started_at == first.loop.now()
        assert second.loop.state.jobs[job_id(1)].submitted_at <= second.loop.now()


async def test_rules_are_those_of_the_one_that_leads(world: StoreWorld) -> None:
    rules = PoolRules(ended_kept=1)
    async with leading(world) as first, standby_coordinator(world, "b", rules=rules).running() as second:
        await first.submit(1)
        first.store.depose()
        await second.until_leading()
        assert second.loop.state.rules == rules
        assert second.loop.state.jobs[job_id(1)].spec.owner == ADA
