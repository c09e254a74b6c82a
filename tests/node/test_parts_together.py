"""Loop, sampler and executor over fakes: orders of events that real parts show too seldom."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases import events as m
from gpushared.domain.leases.instructions import HoldContainer
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import JournalUnavailable, SharingUnavailable, TimedOut, Unavailable
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import ContainerId, Lease, LeaseId, Reserved
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import NewSize
from gpushared.node.runtime.client_presence_checks import ClientPresence
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.executor import Executor
from gpushared.node.runtime.loop import CALM_SECONDS, Loop
from gpushared.node.runtime.sampler import Sampler
from gpushared.node.services.lease_service import WRITE_AGAIN_SECONDS, LeaseService
from gpushared.ports import ContainerStatus, Edits, EngineFacts
from gpushared.testing import (
    FakeCheckpoints,
    FakeEngine,
    FakeGpus,
    FakeSharing,
    ManualClock,
    MemoryJournal,
    fake_gpu,
)
from tests.sharing.cgroups import process_in, real_root

ALICE = Caller(1000, 1000, "alice")
QUARTER = Request(compute_permille=250, memory_permille=250)
GPU = fake_gpu(0)


@dataclass
class World:
    """A node's parts, wired as the daemon wires them."""

    loop: Loop
    journal: MemoryJournal
    gpus: FakeGpus
    sharing: FakeSharing
    engine: FakeEngine
    troubles: Troubles
    sampler: Sampler
    executor: Executor
    reconciler: ContainerReconciler
    lease_service: LeaseService
    clock: ManualClock

    async def ask(self, request: Request = QUARTER) -> Lease:
        lease = await self.loop.send(m.RequestSubmitted(request, ALICE))
        assert lease is not None
        return lease

    async def hold(self) -> Lease:
        """A lease whose container runs."""
        await self.reconciler.connect()
        lease = await self.ask()
        await until(lambda: lease.device_name in self.engine.devices)
        box = self.engine.create(lease.device_name, owner_uid=ALICE.uid)
        self.engine.start(box)
        await self.loop.send(m.ContainerSeen(box, m.Condition.RUNNING, lease.device_name))
        return self.loop.state.find(lease.id)

    def state_of(self, lease: Lease) -> str:
        return type(self.loop.state.find(lease.id).state).__name__


@asynccontextmanager
async def world(gpus: FakeGpus | None = None, sharing: FakeSharing | None = None) -> AsyncIterator[World]:
    journal, engine, troubles = MemoryJournal(), FakeEngine(), Troubles()
    gpus, sharing = gpus or FakeGpus(), sharing or FakeSharing()
    clock = ManualClock()
    loop = Loop(NodeState(), journal, clock, troubles)
    reconciler = ContainerReconciler(loop, engine, FakeCheckpoints(), troubles, simulated=True)
    sampler = Sampler(loop, gpus, sharing, troubles, 3600.0)
    executor = Executor(loop, sharing, engine, FakeCheckpoints(), reconciler, sampler)
    loop.perform = executor.perform
    async with asyncio.timeout(20), loop.running():
        lease_service = LeaseService(loop, executor, reconciler, engine, journal, ClientPresence(loop.now()))
        yield World(
            loop,
            journal,
            gpus,
            sharing,
            engine,
            troubles,
            sampler,
            executor,
            reconciler,
            lease_service,
            clock,
        )
        await executor.close()


class SlowSharing(FakeSharing):
    """Opens and closes leases only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.opening = asyncio.Event()
        self.may_open = asyncio.Event()
        self.may_close = asyncio.Event()

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        self.opening.set()
        await self.may_open.wait()
        return await super().open(lease, gpus, engine)

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        await self.may_close.wait()
        await super().close_lease(lease, device_name)


async def until(done: Callable[[], bool], pause_seconds: float = 0) -> None:
    while not done():  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(pause_seconds)


async def until_idle(executor: Executor) -> None:
    while executor._tasks:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)


async def test_an_error_of_the_driver_has_the_mps_servers_of_its_gpu_looked_at_at_once() -> None:
    """The fault of a server whose clients end at once lasts for milliseconds."""
    async with world() as node:
        await node.sampler.sample_and_report()
        (gpu,) = node.loop.state.gpus
        assert node.sharing.looks == []
        node.gpus.err(gpu, 31)
        await node.sampler.sample_and_report()
        assert node.sharing.looks == [gpu]


async def test_settings_under_way_when_the_lease_ends_are_taken_down_afterwards() -> None:
    sharing = SlowSharing()
    async with world(sharing=sharing) as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await sharing.opening.wait()
        await node.loop.send(m.ReleaseAsked(lease.id, ALICE))
        for _ in range(10):
            await asyncio.sleep(0)
        sharing.may_close.set()
        sharing.may_open.set()
        await until_idle(node.executor)
        assert sharing.opened == {}
        assert [word for word, *_ in sharing.history] == ["open", "close"]
        assert node.engine.devices == {}


class SizedSharing(SlowSharing):
    """Its settings tell the size for which they were made."""

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        edits = await super().open(lease, gpus, engine)
        return replace(edits, env={"SIZE": str(lease.grants[0].compute_permille)})


async def test_settings_under_way_when_the_lease_is_resized_are_made_for_the_new_size() -> None:
    """Whoever waits for settings gets those of the size that the lease has when they come."""
    sharing = SizedSharing()
    async with world(sharing=sharing) as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await sharing.opening.wait()
        waiting = asyncio.create_task(node.executor.edits_of(lease.id))
        await node.loop.send(m.ResizeAsked(lease.id, ALICE, NewSize(1, 500, None, 500)))
        sharing.may_open.set()
        assert (await waiting).env == {"SIZE": "500"}
        await until_idle(node.executor)
        assert (await node.executor.edits_of(lease.id)).env == {"SIZE": "500"}
        assert set(node.engine.devices[lease.device_name].env.values()) == {"500"}


async def test_what_is_dropped_of_a_lease_is_not_dropped_of_its_devices_next_one() -> None:
    sharing = SlowSharing()
    sharing.may_open.set()
    async with world(sharing=sharing) as node:
        await node.sampler.sample_and_report()
        first = await node.loop.send(m.RequestSubmitted(QUARTER, ALICE, device_name="c-1"))
        assert first is not None
        await node.executor.edits_of(first.id)
        await node.loop.send(m.ReleaseAsked(first.id, ALICE))
        second = await node.loop.send(m.RequestSubmitted(QUARTER, ALICE, device_name="c-1"))
        assert second is not None
        for _ in range(10):
            await asyncio.sleep(0)
        sharing.may_close.set()
        await node.executor.edits_of(second.id)
        await until_idle(node.executor)
        assert sharing.history[-1] == ("open", second.id, "c-1")
        assert "c-1" in node.engine.devices


async def test_settings_wait_for_the_gpus_to_be_known() -> None:
    """After a start with a driver that hangs, reservations are not given up."""
    async with world() as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await node.executor.edits_of(lease.id)
        node.loop.state = replace(node.loop.state, gpus={})
        node.executor.remake_all()
        await asyncio.sleep(0.05)
        assert node.state_of(lease) == "Reserved"
        await node.sampler.sample_and_report()
        await node.executor.edits_of(lease.id)
        assert node.state_of(lease) == "Reserved"


async def test_settings_that_cannot_be_made_end_a_reservation_and_say_why() -> None:
    async with world() as node:
        await node.sampler.sample_and_report()
        node.sharing.fail_next(SharingUnavailable("MPS does not start", hint="see its log"))
        lease = await node.ask()
        with pytest.raises(SharingUnavailable):
            await node.executor.edits_of(lease.id)
        story = await node.journal.story(lease.id)
        assert (node.state_of(lease), "MPS does not start" in story[-1].text) == ("Ended", True)


async def test_a_gpu_that_was_lost_at_the_start_is_surveyed_again_when_it_answers() -> None:
    """Its memory was not known, so nothing could be granted on it."""
    unread = replace(GPU, memory_total_bytes=0, leasable_bytes=0, trouble="the GPU is lost")
    gpus = FakeGpus([unread])
    async with world(gpus) as node:
        await node.sampler.sample_and_report()
        assert node.loop.state.gpus[GPU.id].leasable_bytes == 0
        gpus._gpus[GPU.id] = GPU
        await node.sampler.sample_and_report()
        assert node.loop.state.gpus[GPU.id] == GPU
        await node.loop.send(m.GpuDrainAsked(GPU.id, Caller(0, 0, "root", trusted=True), None))
        assert (await node.ask()).grants


async def test_a_container_that_ended_unheard_is_started_again_with_another_lease() -> None:
    """The engine answers a stop before it tells of the end, and whoever stopped it starts it at once."""
    async with world() as node:
        await node.sampler.sample_and_report()
        first = await node.hold()
        container = first.container
        assert container is not None
        node.clock.advance(1)
        await node.engine.stop(container, 0)  # nobody listens to the engine's events here
        assert node.state_of(first) == "Active"
        starting = asyncio.create_task(node.lease_service.before_start(container, ALICE))
        await until(lambda: node.state_of(first) == "Draining")
        node.clock.advance(1)
        await node.sampler.sample_and_report()
        await starting
        second = node.loop.state.of_container(container)
        assert second is not None
        assert second.id != first.id


async def test_an_end_of_before_its_newest_start_is_not_taken_for_news() -> None:
    """Two start it at once, and the one who looked first hears of it last."""
    async with world() as node:
        await node.sampler.sample_and_report()
        lease = await node.hold()
        assert lease.container is not None
        facts = node.engine.facts_of(lease.container)
        assert facts is not None
        ended = replace(facts, status=ContainerStatus.EXITED, pid=0)
        await node.reconciler.note_end(ended, node.clock.now())
        assert node.state_of(lease) == "Active"


async def test_a_container_is_started_again_under_its_lease_after_a_fault() -> None:
    """With its settings in place, and the core told."""
    async with world(FakeGpus(1)) as node:
        await node.sampler.sample_and_report()
        victim, other = await node.ask(replace(QUARTER, restart_on_fault=1)), await node.ask()
        box = node.engine.create(victim.device_name)
        await until(lambda: victim.device_name in node.engine.devices)
        node.engine.start(box)
        await node.loop.send(m.ContainerSeen(box, m.Condition.RUNNING, victim.device_name))
        await node.loop.send(m.ServerFaulted((GPU.id,), frozenset((victim.id, other.id)), other.id))
        node.engine.exit(box, 1)
        await node.loop.send(m.ContainerSeen(box, m.Condition.EXITED, exit_code=1))
        node.clock.advance(4.0)
        await node.loop.send(m.Tick())
        await until(lambda: node.state_of(victim) == "Active")
        facts = await node.engine.inspect(box)
        assert facts is not None
        assert facts.status is ContainerStatus.RUNNING


async def test_errors_that_could_not_be_written_are_told_to_the_core_later() -> None:
    """The driver tells of each only once."""
    gpus = FakeGpus(1)
    async with world(gpus) as node:
        await node.sampler.sample_and_report()
        gpus.err(GPU.id, 79)
        node.journal.fail_next(JournalUnavailable("the disk is full"))
        await node.sampler.sample_and_report()
        assert not node.loop.state.drained
        await node.sampler.sample_and_report()
        assert node.loop.state.drained[GPU.id].reason == "fell off the bus (XID 79)"


async def test_a_lease_that_begins_while_all_is_idle_is_watched_at_once() -> None:
    """The next look at an idle node may be hours away; the first container brings it forward."""
    gpus = FakeGpus(1)
    async with world(gpus) as node:
        watching = asyncio.create_task(node.sampler.run())
        await until(lambda: bool(node.loop.state.gpus))
        lease = await node.ask()
        gpus.run_process(GPU.id, os.getpid(), 2**30)
        seen = m.ContainerSeen(ContainerId("a" * 64), m.Condition.RUNNING, lease.device_name)
        await node.loop.send(seen)
        await until(lambda: bool(node.sampler.newest.strangers), pause_seconds=0.01)
        watching.cancel()


async def test_a_gpu_that_came_is_surveyed() -> None:
    gpus = FakeGpus(1)
    async with world(gpus) as node:
        await node.sampler.sample_and_report()
        new = fake_gpu(1)
        gpus._gpus[new.id], gpus._processes[new.id], gpus._left_behind[new.id] = new, [], 0
        await node.sampler.sample_and_report()
        assert list(node.loop.state.gpus) == [GPU.id, new.id]


async def test_a_journal_that_is_away_grants_nothing_and_is_tried_until_it_is_back() -> None:
    """Also on a node where nothing happens that would have to be written."""
    async with world() as node:
        await node.sampler.sample_and_report()
        recovered = asyncio.Event()
        node.loop.after_recovery = recovered.set
        node.journal.fail_next(JournalUnavailable("the disk is full"), times=2)
        with pytest.raises(JournalUnavailable):
            await node.ask()
        assert node.loop.state.leases == {}
        await node.loop.send(m.Tick())
        assert node.troubles.of("journal") == "the disk is full"
        node.clock.advance(CALM_SECONDS)
        await node.loop.send(m.Tick())
        assert (node.troubles.of("journal"), recovered.is_set()) == ("", True)
        assert isinstance((await node.ask()).state, Reserved)


async def test_a_journal_of_which_some_writes_fail_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk the small writes between the large ones succeed."""
    async with world() as node:
        await node.sampler.sample_and_report()
        for _ in range(9):
            node.journal.fail_next(JournalUnavailable("the disk is full"))
            with pytest.raises(JournalUnavailable):
                await node.ask()
            await node.loop.send(m.Tick())
            node.clock.advance(1.0)
    assert [line for line in caplog.messages if "part=journal" in line] == [
        "trouble part=journal text='the disk is full'"
    ]


async def test_a_pass_that_fails_grants_nothing_but_leases_end_and_requests_are_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bug is told once, lists and records go on, and what waited is granted when the pass works again."""

    def fails(*_: object) -> None:
        raise KeyError("GPU-0")

    async with world() as node:
        await node.sampler.sample_and_report()
        ends, waits = await node.ask(), await node.ask(Request(memory_permille=1000))
        with monkeypatch.context() as patched:
            patched.setattr("gpushared.domain.leases.granting.pass_over", fails)
            asked = await node.ask()
            await node.loop.send(m.ReleaseAsked(ends.id, ALICE))
            states = [node.state_of(lease) for lease in (ends, waits, asked)]
            assert states == ["Ended", "Queued", "Queued"]
            assert node.loop.outlook().decisions == {}
            assert node.loop.waiting_of(asked) is None
            assert "KeyError('GPU-0')" in node.troubles.of("queue")
        assert caplog.messages.count("the pass over the queue failed") == 1
        await node.loop.send(m.Tick())
        assert node.troubles.of("queue") == ""
        assert [node.state_of(lease) for lease in (waits, asked)] == ["Reserved", "Queued"]


async def created_on_a_full_disk(node: World) -> Lease:
    """A lease that is claimed still: neither its container nor the end of the claim could be noted."""
    await node.sampler.sample_and_report()
    lease = await node.ask()
    await node.executor.edits_of(lease.id)
    await node.lease_service.claim(lease.id, ALICE)
    node.journal.fail_next(JournalUnavailable("the disk is full"), times=3)
    with pytest.raises(JournalUnavailable):
        await node.lease_service.created(lease.id, ContainerId("b" * 64), "box", "image", stays=True)
    return lease


async def test_a_create_that_cannot_be_noted_lets_go_of_its_lease_once_there_is_a_journal() -> None:
    async with world() as node:
        lease = await created_on_a_full_disk(node)
        while node.loop.state.leases[lease.id].state.claimed:  # type: ignore[union-attr]
            await node.loop.changed(10)
        assert (await node.lease_service.claim(lease.id, ALICE)).lease == lease.id


async def test_a_create_that_is_tried_again_once_there_is_a_journal_gets_its_lease() -> None:
    """At once, and it keeps the lease: what gave back the earlier claim comes too late for the new one."""
    async with world() as node:
        lease = await created_on_a_full_disk(node)
        with pytest.raises(JournalUnavailable):
            await node.lease_service.claim(lease.id, ALICE)
        assert (await node.lease_service.claim(lease.id, ALICE)).lease == lease.id
        await asyncio.sleep(2 * WRITE_AGAIN_SECONDS)
        assert node.loop.state.leases[lease.id].state.claimed  # type: ignore[union-attr]


async def test_a_caller_who_goes_away_in_the_middle_of_a_claim_leaves_it_to_the_next() -> None:
    """Else the reservation would be held for ten minutes for a create that never comes."""
    async with world() as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await node.executor.edits_of(lease.id)
        claiming = asyncio.create_task(node.lease_service.claim(lease.id, ALICE))
        await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await until(lambda: len(node.journal.commits) > 3)
        assert (await node.lease_service.claim(lease.id, ALICE)).lease == lease.id


async def test_whoever_asks_a_loop_that_has_ended_is_told_instead_of_left_waiting() -> None:
    """A write whose outcome nobody knows ends the daemon; no caller may hang for it."""
    async with world() as node:
        await node.sampler.sample_and_report()
        node.journal.fail_next(TimedOut("the disk hangs"))
        asked = [asyncio.create_task(node.ask()) for _ in range(3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, TimedOut | Unavailable) for answer in answers)
        with pytest.raises(TimedOut):
            await node.loop.ended()
        with pytest.raises(Unavailable):
            await node.ask()


async def test_rules_that_are_reloaded_during_a_write_hold_afterwards() -> None:
    async with world() as node:
        await node.sampler.sample_and_report()
        writing, may_go_on = asyncio.Event(), asyncio.Event()
        commit = node.journal.commit

        async def slowly(writes: object) -> None:
            writing.set()
            await may_go_on.wait()
            await commit(writes)  # type: ignore[arg-type]

        node.journal.commit = slowly  # type: ignore[method-assign]
        asking = asyncio.create_task(node.ask())
        await writing.wait()
        node.loop.take_rules(Rules(max_queued=7))
        may_go_on.set()
        await asking
        assert node.loop.state.rules.max_queued == 7


async def test_a_running_container_is_held_by_its_own_cgroup() -> None:
    """Found by its process, and only where there is anything that could be done with it."""
    async with world() as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await node.executor.edits_of(lease.id)
        container = node.engine.create(lease.id)
        with process_in(real_root() / container) as pid:
            node.engine.start(container)
            node.engine._set(container, status=ContainerStatus.RUNNING, pid=pid)
            for node.sharing.holding in (False, True):
                node.executor.perform(HoldContainer(lease.id, container))
                await until_idle(node.executor)
                assert node.sharing.held == ({lease.id: f"/{container}"} if node.sharing.holding else {})


async def test_a_container_that_is_gone_when_it_is_to_be_held_is_no_error() -> None:
    async with world() as node:
        await node.sampler.sample_and_report()
        lease = await node.ask()
        await node.executor.edits_of(lease.id)
        node.sharing.holding = True
        node.executor.perform(HoldContainer(lease.id, ContainerId("b" * 64)))
        await until_idle(node.executor)
        assert node.sharing.held == {}


async def test_those_who_wait_are_woken_by_what_they_could_be_shown_and_by_nothing_else() -> None:
    async with world() as node:
        await node.sampler.sample_and_report()
        waiting = asyncio.create_task(node.loop.changed(10))
        await asyncio.sleep(0)
        await node.loop.send(m.Tick())
        await node.sampler.sample_and_report()
        assert not waiting.done()
        await node.ask()
        assert await waiting
        assert LeaseId("l-none") not in node.loop.state.leases
