"""The fakes that ship with the package do what their tests' authors rely on."""

import asyncio

import pytest

from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpusUnavailable,
    JournalUnavailable,
    NotFound,
    TimedOut,
)
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ComputeCap, Grant, LeaseId, MemoryWall, Reserved, Walls
from gpushared.domain.model.request import Isolation, Request
from gpushared.ports import (
    Clock,
    ContainerFacts,
    ContainerStatus,
    Edits,
    Engine,
    Gpus,
    Journal,
    JournalWrite,
    Sharing,
)
from gpushared.testing import (
    FakeEngine,
    FakeGpus,
    FakeSharing,
    ManualClock,
    MemoryJournal,
    fake_gpu,
    fake_lease,
)

EDITS = Edits(gpus=(GpuId("GPU-1"),), walls=Walls(MemoryWall.NONE, ComputeCap.NONE))

# mypy proves here that each fake is its port.
PORTS: tuple[Engine, Gpus, Sharing, Journal, Clock] = (
    *(FakeEngine(), FakeGpus(), FakeSharing(), MemoryJournal(), ManualClock()),
)


@pytest.mark.parametrize("fake", PORTS, ids=lambda fake: type(fake).__name__)
def test_each_fake_says_that_it_is_one(fake: object) -> None:
    assert "fake ``" in (type(fake).__doc__ or "")


class TestFakeEngine:
    async def test_a_container_does_not_start_before_its_device_is_written(self) -> None:
        engine = FakeEngine()
        container = engine.create("l-1")
        with pytest.raises(NotFound, match="unresolvable CDI device"):
            engine.start(container)
        await engine.write_device("l-1", EDITS)
        engine.start(container)
        assert engine.applied[container] == EDITS
        facts = await engine.inspect(container)
        assert facts is not None
        assert facts.status is ContainerStatus.RUNNING
        assert facts.pid > 0

    async def test_events_are_heard_from_the_call_on_and_tell_what_is_now(self) -> None:
        engine = FakeEngine()
        unheard = engine.create("before")
        events = engine.events()
        container = engine.create("l-1")
        await engine.write_device("l-1", EDITS)
        engine.start(container)
        engine.create()  # none of the daemon's
        heard = [await anext(events), await anext(events)]
        assert {event.status for event in heard if isinstance(event, ContainerFacts)} == {
            ContainerStatus.RUNNING
        }
        engine.remove(container)
        assert await anext(events) == container
        assert unheard in [facts.id for facts in await engine.containers()]

    async def test_it_goes_away_for_every_listener_and_every_call_and_comes_back(self) -> None:
        engine = FakeEngine()
        container = engine.create("l-1")
        events = engine.events()
        listening = asyncio.ensure_future(anext(events))
        engine.go_away("gone fishing")
        for call in (
            listening,
            engine.probe(),
            engine.containers(),
            engine.inspect(container),
            anext(engine.events()),
        ):
            with pytest.raises(EngineUnavailable, match="gone fishing"):
                await call
        await engine.write_device("l-1", EDITS)
        engine.come_back()
        assert len(await engine.containers()) == 1

    async def test_a_restart_policy_restarts_what_exits_by_itself_but_not_what_is_stopped(self) -> None:
        engine = FakeEngine()
        await engine.write_device("l-1", EDITS)
        container = engine.create("l-1", restart_policy="on-failure")
        status = []
        for code in (1, 0):
            engine.start(container)
            engine.exit(container, code)
            facts = engine.facts_of(container)
            assert facts is not None
            status.append((facts.status, facts.exit_code, facts.pid))
        assert status == [(ContainerStatus.RESTARTING, 1, 0), (ContainerStatus.EXITED, 0, 0)]
        engine.start(container)
        await engine.stop(container, 7)
        facts = engine.facts_of(container)
        assert facts is not None
        assert (facts.status, facts.exit_code) == (ContainerStatus.EXITED, 143)
        assert engine.stops == [(container, 7)]

    async def test_after_a_power_cut_policies_act_where_the_device_is_known(self) -> None:
        engine = FakeEngine()
        made = {}
        for name, policy in (("kept", "always"), ("lost", "unless-stopped"), ("plain", "no")):
            made[name] = engine.create(name, restart_policy=policy)
            await engine.write_device(name, EDITS)
            engine.start(made[name])
        engine.cut_power()
        await engine.remove_device("lost")
        engine.come_back()
        running = {facts.device_name for facts in await engine.containers() if facts.pid}
        assert running == {"kept"}

    async def test_a_container_may_refuse_to_die_or_be_gone_already(self) -> None:
        engine = FakeEngine()
        container = engine.create("l-1")
        engine.make_unstoppable(container)
        with pytest.raises(TimedOut):
            await engine.stop(container, 1)
        engine.remove(container)
        engine.make_stoppable(container)
        await engine.stop(container, 1)
        assert await engine.inspect(container) is None


class TestFakeGpus:
    async def test_memory_in_use_is_what_driver_processes_and_leftovers_hold(self) -> None:
        gpus = FakeGpus(2)
        first, second = await gpus.survey()
        gpus.run_process(first.id, 7, 1000)
        gpus.run_process(first.id, 8)
        gpus.leave_behind(first.id, 10)
        busy, idle = await gpus.sample()
        driver = first.memory_total_bytes - first.leasable_bytes
        assert (busy.memory_used_bytes, idle.memory_used_bytes) == (driver + 1010, driver)
        assert [process.pid for process in busy.processes] == [7, 8]
        gpus.end_process(first.id, 7)
        assert [process.pid for process in (await gpus.sample())[0].processes] == [8]
        assert second.trouble is None

    async def test_a_lost_gpu_is_listed_with_its_trouble_and_reads_nothing(self) -> None:
        gpus = FakeGpus([fake_gpu(3)])
        (gpu,) = await gpus.survey()
        gpus.lose(gpu.id, "fell off the bus")
        (reading,) = await gpus.sample()
        assert (reading.trouble, reading.memory_used_bytes) == ("fell off the bus", None)
        gpus.heal(gpu.id)
        assert (await gpus.survey())[0] == gpu

    async def test_it_fails_as_often_as_it_was_told(self) -> None:
        gpus = FakeGpus()
        gpus.fail_next(GpusUnavailable("no driver"), times=2)
        for _ in range(2):
            with pytest.raises(GpusUnavailable):
                await gpus.survey()
        assert len(await gpus.survey()) == 1


async def test_the_fake_sharing_remembers_what_is_open_and_in_which_order() -> None:
    sharing, gpu = FakeSharing(), fake_gpu()
    reserved = Reserved((Grant(gpu.id, 1024, 250),), since=1.0, deadline=61.0)
    shared, whole = (
        fake_lease(1, reserved),
        fake_lease(2, reserved, request=Request(isolation=Isolation.EXCLUSIVE)),
    )
    first = await sharing.open(shared, {gpu.id: gpu})
    second = await sharing.open(whole, {gpu.id: gpu})
    assert (first.walls.memory_wall, second.walls.memory_wall) == (
        MemoryWall.MPS_CLIENT,
        MemoryWall.WHOLE_GPU,
    )
    assert [status.mode for status in await sharing.status()] == ["mps"]
    await sharing.close_lease(shared.id, "l-1")
    assert [status.mode for status in await sharing.status()] == ["none"]
    assert sharing.opened.keys() == {LeaseId("l-2")}
    assert [verb for verb, _, _ in sharing.history] == ["open", "open", "close"]
    await sharing.close(keep_running=True)
    assert sharing.closed_keeping is True


async def test_a_journal_can_be_had_as_it_was_after_each_commit() -> None:
    journal = MemoryJournal()
    for number in (1, 2, 3):
        await journal.commit([JournalWrite((fake_lease(number),), (), number + 1)])
    journal.fail_next(JournalUnavailable("disk full"))
    with pytest.raises(JournalUnavailable, match="disk full"):
        await journal.commit([JournalWrite((fake_lease(4),), (), 5)])
    found = [await journal.snapshot_after(n).load() for n in range(len(journal.commits) + 1)]
    assert [len(snapshot.leases) for snapshot in found] == [0, 1, 2, 3]
    assert [snapshot.next_sequence for snapshot in found] == [1, 2, 3, 4]


def test_the_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(100.0)
    assert clock.now() == clock.now() == 100.0
    clock.advance(-1.5)
    assert clock.now() == 98.5
