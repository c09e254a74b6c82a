"""A real coordinator's daemon and the real machine of a node, joined by a real link: what jobs become."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushared.config.history_settings import PrivacyConfig
from gpushared.config.job_settings import PoolConfig
from gpushared.config.model import Config
from gpushared.config.pool_settings import CoordinatorConfig, CoordinatorSection
from gpushared.config.queue_rules import UserConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import Ended, Job, Owner, Placing, Running, Succeeded
from gpushared.domain.jobs.node_messages import (
    AttemptInstruction,
    AttemptPrepared,
    LaunchAttempt,
    PrepareAttempt,
    TellCoordinator,
)
from gpushared.domain.leases import events as n
from gpushared.domain.leases.instructions import Instruction
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import AttemptKey, ContainerId, JobId
from gpushared.domain.model.request import Caller
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.node.pool.order_audit import OrderAudit
from gpushared.node.pool.pool_link import PoolLink
from gpushared.node.runtime.loop import Loop
from gpushared.pool.coordinator.app import SERVICE_FACTORIES, PoolDaemon, real_pool_parts
from gpushared.pool.coordinator.running_parts import CoordinatorParts, Service
from gpushared.pool.member.coordinator_link import MemberLink
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.membership_file import Membership
from gpushared.pool.member.node_ports import Answerer
from gpushared.pool.trust.pool_init import found_pool
from gpushared.storage.audit.line import AuditLine
from gpushared.testing.fake_gpus import fake_gpu
from gpushared.testing.fake_journal import MemoryJournal
from tests.pool.link.member import Outbox, spec
from tests.pool.link.proxy import Proxy
from tests.pool.ready import ReadyNotifier, until_ready

JOB = JobId("0123456789")
POOL = "lab"
WAIT_SECONDS = 30.0


class _Clock:
    """Nobody sets the time of day here."""

    def now(self) -> float:
        return time.time()

    def ahead(self) -> float:
        return 0.0

    def keep(self) -> None:
        """Nothing of it lasts."""


class Machine:
    """A node's core with one GPU. Containers are words: they run as soon as they are launched."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.loop = Loop(NodeState(boot_id="boot-1"), MemoryJournal(), _Clock(), Troubles())
        self.order_handler = OrderHandler(self.loop, _account, "boot-1")
        self.enrolment = Enrolment(folder / name, time.time)
        self.troubles = Troubles()
        self.coordinator = ""
        self.answerers: dict[str, Answerer] = {}
        self.lines: list[AuditLine] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop.perform = self._perform

    def serve(self) -> PoolLink:
        outbox = Outbox(self.enrolment.asserter(), self.name)  # type: ignore[arg-type]
        config = Config(pool=PoolConfig(coordinator=self.coordinator))
        orders = OrderAudit(self.lines.append, lambda: POOL)
        return PoolLink(
            lambda: config,
            self.enrolment,
            self.order_handler,
            self.loop,
            outbox,
            self.troubles,
            orders,
            simulated=True,
            answerers=self.answerers,
        )

    def record(self, key: AttemptKey) -> Attempt | None:
        log = self.loop.state.attempts.get(POOL)
        return None if log is None else log.get(key)

    def _perform(self, instruction: Instruction | AttemptInstruction) -> None:
        match instruction:
            case TellCoordinator(key, coordinator):
                self.order_handler.notify_subscribers(coordinator, key)
            case PrepareAttempt(key, coordinator):
                self._begin([AttemptPrepared(key, coordinator)])
            case LaunchAttempt(key, coordinator):
                record = self.record(key)
                assert record is not None
                assert record.lease is not None
                container = ContainerId(f"c-{key.job}")
                self._begin(
                    [
                        n.ClaimAsked(record.lease, Caller(1000, 1000, "ada")),
                        n.ContainerCreated(record.lease, container, "c", "busybox"),
                        n.ContainerSeen(container, n.Condition.RUNNING),
                    ]
                )

    def _begin(self, events: Sequence[n.Event]) -> None:
        task = asyncio.create_task(self.send(*events))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, *events: n.Event) -> None:
        for event in events:
            await self.loop.send(event)

    async def finish(self, key: AttemptKey) -> None:
        """Its container ends with 0, and the GPU shows nobody any more."""
        container = ContainerId(f"c-{key.job}")
        await self.send(n.ContainerSeen(container, n.Condition.EXITED, exit_code=0))
        gpus = frozenset(self.loop.state.gpus)
        await self.send(n.GpusSampled(time.time() + 1, frozenset(), {}, gpus))


async def _account(owner: Owner, _: str) -> Caller:
    return Caller(1000, 1000, owner.name)


@dataclass
class World:
    """The pool's folder, and the coordinator while it runs."""

    folder: Path
    nodes_port: int = 0
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    users: dict[str, UserConfig] = field(default_factory=dict)
    parts: list[CoordinatorParts] = field(default_factory=list)
    _daemon: PoolDaemon | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def coordinator(self) -> CoordinatorParts:
        return self.parts[-1]

    async def start(self) -> None:
        config = CoordinatorConfig(
            CoordinatorSection(
                listen="127.0.0.1:0",
                listen_nodes=f"127.0.0.1:{self.nodes_port}",
                state_dir=str(self.folder / "state"),
                runtime_dir=str(self.folder / "run"),
            ),
            privacy=self.privacy,
            users=self.users,
        )
        notifier = ReadyNotifier()
        self._daemon = PoolDaemon(
            config, real_pool_parts(config), notifier, factories=(*SERVICE_FACTORIES, self._note)
        )
        self._task = asyncio.create_task(self._daemon.run())
        await until_ready(self._task, notifier, WAIT_SECONDS)
        self.nodes_port = self._daemon.nodes_port

    def _note(self, coordinator: CoordinatorParts) -> Sequence[Service]:
        self.parts.append(coordinator)
        return ()

    async def stop(self) -> None:
        if self._daemon is not None and self._task is not None:
            self._daemon.stop()
            await self._task
            self._daemon = None

    async def join(self, machine: Machine) -> None:
        assert self._daemon is not None
        token, _ = await self.coordinator.trust.join_tokens.make("root", time.time(), node=machine.name)
        await machine.enrolment.join(f"127.0.0.1:{self._daemon.users_port}", str(token), machine.name)

    async def until(self, so: Callable[[Job], bool], job: JobId = JOB) -> Job:
        """Wait until the job is so."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                state = self.coordinator.loop.state
                found = state.jobs.get(job) or state.ended.get(job)
                if found is not None and so(found):
                    return found
                await self.coordinator.loop.changed(1.0)

    async def submit(self, job: JobId = JOB) -> None:
        await self.coordinator.loop.send(m.JobSubmitted(job, spec("ada@n1")))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    found_pool(tmp_path / "state", POOL, time.time())
    made = World(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def machine(world: World, tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path, "n1")
    async with made.loop.running():
        await made.send(n.GpusSurveyed((fake_gpu(),)))
        await world.join(made)
        yield made


async def until(link: PoolLink, so: Callable[[MemberLink | None], bool]) -> MemberLink | None:
    """Wait until the link is so; None is no membership."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not so(link.link):
            await (link.link or link).changed(0.2)
    return link.link


def is_up(link: MemberLink | None) -> bool:
    return link is not None and link.connected


async def linked(machine: Machine, stack: AsyncExitStack) -> PoolLink:
    """The machine with its link running, and welcomed."""
    link = machine.serve()
    task = asyncio.create_task(link.run())
    stack.push_async_callback(_end, task)
    await until(link, is_up)
    return link


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_job_is_placed_runs_and_ends(world: World, machine: Machine) -> None:
    """And what it held is free again, so that the next one gets it."""
    async with AsyncExitStack() as stack:
        await linked(machine, stack)
        for job in (JOB, JobId("1111111111")):
            await world.submit(job)
            await world.until(lambda job: isinstance(job.state, Running), job)
            await machine.finish(AttemptKey(job, 1))
            over = await world.until(lambda job: isinstance(job.state, Ended), job)
            assert isinstance(over.state, Ended)
            assert isinstance(over.state.outcome, Succeeded)


async def test_a_node_that_joined_later_is_not_waited_for_in_vain(world: World, machine: Machine) -> None:
    """The job waits until there is somebody who may run it."""
    await world.submit()
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        await world.until(lambda job: isinstance(job.state, Running))
        assert link.state is not None
        assert "in pool lab" in link.state.text()


async def test_a_job_that_ends_while_the_link_is_cut_is_over_when_it_is_back(
    world: World, machine: Machine
) -> None:
    """Silence was not taken for death: it ran once."""
    async with Proxy(world.nodes_port).running() as proxy, AsyncExitStack() as stack:
        machine.coordinator = proxy.address
        link = await linked(machine, stack)
        await world.submit()
        await world.until(lambda job: isinstance(job.state, Running))
        proxy.refuses = True
        await proxy.cut()
        await machine.finish(AttemptKey(JOB, 1))
        proxy.refuses = False
        assert link.link is not None
        link.link.hurry()
        over = await world.until(lambda job: isinstance(job.state, Ended))
    assert over.attempts == 1


async def test_an_order_that_was_lost_on_its_way_is_said_again(world: World, machine: Machine) -> None:
    """Everything that goes down is swallowed when the job is placed; the next registration settles it."""
    async with Proxy(world.nodes_port).running() as proxy, AsyncExitStack() as stack:
        machine.coordinator = proxy.address
        link = await linked(machine, stack)
        proxy.down.lossy = True
        await world.submit()
        await world.until(lambda job: isinstance(job.state, Placing))
        assert machine.record(AttemptKey(JOB, 1)) is None
        proxy.down.lossy = False
        await proxy.cut()
        assert link.link is not None
        link.link.hurry()
        running = await world.until(lambda job: isinstance(job.state, Running))
    assert machine.record(AttemptKey(JOB, running.attempts)) is not None


async def test_orders_that_come_late_and_twice_run_a_job_once(world: World, machine: Machine) -> None:
    """Both ways take their time, and the order is said again and again meanwhile."""
    async with Proxy(world.nodes_port).running() as proxy, AsyncExitStack() as stack:
        machine.coordinator = proxy.address
        await linked(machine, stack)
        proxy.up.delay_seconds = proxy.down.delay_seconds = 0.05
        said: list[m.Send] = []
        world.coordinator.loop.subscribe(lambda one: said.append(one) if isinstance(one, m.Send) else None)
        await world.submit()
        await world.until(lambda job: isinstance(job.state, Placing))
        for _ in range(3):
            await asyncio.sleep(0.02)
            world.coordinator.link.perform(said[0])
        await world.until(lambda job: isinstance(job.state, Running))
        world.coordinator.link.perform(said[0])
        await machine.finish(said[0].order.key)
        over = await world.until(lambda job: isinstance(job.state, Ended))
    assert over.attempts == 1
    assert len(machine.loop.state.ended) == 1


async def test_a_coordinator_that_was_away_finds_its_jobs_where_they_are(
    world: World, machine: Machine
) -> None:
    """One ended meanwhile, and its node says so to the next life, of a higher epoch."""
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        machine.coordinator = f"127.0.0.1:{world.nodes_port}"
        await world.submit()
        await world.until(lambda job: isinstance(job.state, Running))
        await world.stop()
        await machine.finish(AttemptKey(JOB, 1))
        await world.start()
        assert link.link is not None
        link.link.hurry()
        over = await world.until(lambda job: isinstance(job.state, Ended))
        assert over.attempts == 1
        await until(link, is_up)
        assert machine.order_handler.newest_contact(POOL).epoch == world.coordinator.loop.state.epoch


async def test_once_one_node_knows_a_higher_epoch_all_register_again(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    """Else the others would be taken for asked, though they may still take orders of the epochs between."""
    async with AsyncExitStack() as stack:
        await linked(machine, stack)
        other = Machine(tmp_path, "n2")
        await stack.enter_async_context(other.loop.running())
        await world.join(other)
        await other.order_handler.contact(POOL, 0.0, epoch=50)
        await linked(other, stack)
        async with asyncio.timeout(WAIT_SECONDS):
            while world.coordinator.loop.state.reported != {"n1", "n2"}:
                await world.coordinator.loop.changed(0.2)
            while machine.order_handler.newest_contact(POOL).epoch != 51:  # noqa: ASYNC110 - stored later
                await asyncio.sleep(0.01)
        assert world.coordinator.loop.epoch == 51


async def test_a_node_that_says_again_and_again_that_it_has_seen_more_stops_nobody(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    """It is believed once; after that it is refused and shown, and the others and their jobs go on."""
    async with AsyncExitStack() as stack:
        honest = await linked(machine, stack)
        lying_node = Machine(tmp_path, "n2")
        await stack.enter_async_context(lying_node.loop.running())
        await world.join(lying_node)
        await lying_node.order_handler.contact(POOL, 0.0, epoch=50)
        async with AsyncExitStack() as once:
            await linked(lying_node, once)
        await lying_node.order_handler.contact(POOL, 0.0, epoch=500)
        again = lying_node.serve()
        task = asyncio.create_task(again.run())
        stack.push_async_callback(_end, task)
        await until(again, lambda link: link is not None and "says again" in link.state.last_error)
        assert "gpushare pool revoke --node n2" in world.coordinator.troubles.of("claim-n2")
        assert world.coordinator.loop.epoch == 51
        await until(honest, is_up)
        await world.submit()
        assert (await world.until(lambda job: isinstance(job.state, Running))).parts[0].node == "n1"


async def test_the_link_ends_with_the_membership(world: World, machine: Machine) -> None:
    """And begins with the next one."""
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        before = link.link
        await machine.enrolment.leave()
        await until(link, lambda link: link is None)
        assert link.state is None
        await world.join(machine)
        assert await until(link, is_up) is not before


# --- several coordinators


@pytest.fixture
def named(world: World) -> list[str]:
    """The hosts that the coordinator names in its welcome; may be changed."""
    hosts = ["dgx1", "dgx2", "dgx3"]
    world.coordinator.link.addresses = lambda: (
        [f"{host}:7440" for host in hosts],
        [f"{host}:7441" for host in hosts],
    )
    return hosts


async def learned(machine: Machine, count: int) -> Membership:
    """The membership, once the node keeps so many addresses."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := machine.enrolment.membership) is None or len(found.node_addresses) != count:
            await machine.enrolment.changed(machine.enrolment.version)
    return found


async def test_a_node_keeps_the_coordinators_that_it_is_told_of_over_a_restart(
    machine: Machine, named: list[str], tmp_path: Path
) -> None:
    """And the address of its join too, which may be the only one that leads anywhere."""
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        kept = await learned(machine, 3)
        assert kept.addresses == ("dgx1:7440", "dgx2:7440", "dgx3:7440")
        again = Enrolment(tmp_path / "n1", time.time)
        await again.load()
        assert again.membership == kept
        assert again.addresses() == (kept.node_address, "dgx1:7441", "dgx2:7441", "dgx3:7441")
        assert link.link is not None
        assert link.link.dial.addresses.all == again.addresses()
        assert is_up(link.link)


async def test_a_coordinator_that_names_no_others_takes_none_from_a_nodes_list(
    machine: Machine, named: list[str]
) -> None:
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        kept, version = await learned(machine, 3), machine.enrolment.version
        assert link.link is not None
        for hosts in ([], ["dgx1", "dgx2", "dgx3"]):
            named[:] = hosts
            link.link.redial()
            await until(link, lambda up: not is_up(up))
            await until(link, is_up)
        named.append("dgx4")
        link.link.redial()
        assert (await learned(machine, 4)).node_address == kept.node_address
        assert machine.enrolment.version == version + 1


async def test_the_coordinators_of_the_configuration_are_dialled_and_no_others(
    machine: Machine, named: list[str]
) -> None:
    membership = machine.enrolment.membership
    assert membership is not None
    machine.coordinator = f"127.0.0.1:1,{membership.node_address}"
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        await learned(machine, 3)
        assert link.link is not None
        assert link.link.dial.addresses.all == ("127.0.0.1:1", membership.node_address)
        assert link.link.state.address == membership.node_address
