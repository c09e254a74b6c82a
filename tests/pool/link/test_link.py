"""Nodes and their coordinator over real streams with real certificates, on a network that fails."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import AttemptState
from gpushared.domain.jobs.member import HeartbeatReport
from gpushared.domain.jobs.protocol import Place, StaleEpoch
from gpushared.domain.model.errors import Unavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Request
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.coordinator.node_stream import MAX_WAITING
from gpushared.pool.link import codec
from gpushared.pool.member.dial import Dial
from gpushared.pool.member.link_session import Session, Timing
from tests.pool.link.coordinator import Coordinator, Machine
from tests.pool.link.member import Node, spec
from tests.pool.link.proxy import Proxy

N1 = "n1"
KEY = AttemptKey(JobId("0123456789"), 1)
LATE_SECONDS = 0.2


def place(epoch: int = 1, key: AttemptKey = KEY) -> Place:
    return Place(key, epoch, spec(), Request())


def is_a(kind: type) -> Callable[[m.PoolEvent], bool]:
    return lambda event: isinstance(event, kind)


def member_of(coordinator: Coordinator, name: str = N1, **options: Timing) -> Node:
    return Node(coordinator.enrol(name), lambda: coordinator.address, **options)  # type: ignore[arg-type]


async def registration_of(machine: Machine, times: int = 1) -> m.NodeRegistered:
    registration = await machine.heard(is_a(m.NodeRegistered), times)
    assert isinstance(registration, m.NodeRegistered)
    return registration


# --- what is said --------------------------------------------------------------------------------------


class LateWrites:
    """A call of grpc's core that says late that a message is written, as on a busy machine."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def send_serialized_message(self, message: bytes) -> None:
        await self._call.send_serialized_message(message)
        await asyncio.sleep(LATE_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class StuckWrites(LateWrites):
    """A call to a coordinator that does not read."""

    async def send_serialized_message(self, message: bytes) -> None:
        await asyncio.Event().wait()


def change_writes(monkeypatch: pytest.MonkeyPatch, writes: type[LateWrites]) -> None:
    register = Session.register

    async def register_with(session: Session) -> None:
        call: Any = session._call
        await call.wait_for_connection()
        call._cython_call = writes(call._cython_call)
        await register(session)

    monkeypatch.setattr(Session, "register", register_with)


async def test_a_registration_that_the_coordinator_does_not_take_in_time_is_tried_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that is given up cancels the call, but not the daemon."""
    node = member_of(coordinator, timing=Timing(answer=LATE_SECONDS))
    with monkeypatch.context() as patched:
        change_writes(patched, StuckWrites)
        async with node.running():
            await node.until(lambda link: "did not take the registration" in link.state.last_error)
            patched.undo()
            await node.connected()


async def test_a_welcome_that_comes_before_its_registration_counts_as_written_is_a_link(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is given up then would cancel the call, and the daemon with it."""
    change_writes(monkeypatch, LateWrites)
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        coordinator.link.perform(m.Send(node.name, place()))
        await coordinator.machine.heard(is_a(m.AttemptReported))


async def test_a_node_registers_takes_an_order_and_reports(coordinator: Coordinator) -> None:
    """What an idle pool's first job does."""
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        registration = await registration_of(coordinator.machine)
        assert (registration.node, registration.inventory, registration.reports) == (
            N1,
            node.facts.inventory(),
            (),
        )
        coordinator.link.perform(m.Send(node.name, place()))
        reported = await coordinator.machine.heard(is_a(m.AttemptReported))
        assert reported == m.AttemptReported(node.name, node.order_handler.report(KEY))  # type: ignore[arg-type]
        assert node.order_handler.seen.epoch == 1
        node.order_handler.change(KEY, AttemptState.RUNNING)
        node.link.report(KEY)
        await coordinator.machine.heard(is_a(m.AttemptReported), times=2)
    await coordinator.machine.heard(lambda event: event == m.NodeDisconnected(node.name))


async def test_an_order_of_a_lower_epoch_is_answered_with_the_higher_one(coordinator: Coordinator) -> None:
    node = member_of(coordinator)
    coordinator.machine.state.epoch = 7
    async with node.running():
        await node.connected()
        coordinator.link.perform(m.Send(node.name, place(epoch=6)))
        stale = await coordinator.machine.heard(is_a(m.AttemptReported))
    assert stale == m.AttemptReported(node.name, StaleEpoch(KEY, 7))


async def test_a_change_of_what_is_free_does_not_wait_for_the_next_beat(coordinator: Coordinator) -> None:
    """And a beat without news says none."""
    coordinator.beat_seconds = 3600.0
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        node.facts.set_free(HeartbeatReport(waiting=3))
        beat = await coordinator.machine.heard(is_a(m.NodeHeartbeat))
    assert beat == m.NodeHeartbeat(node.name, None, HeartbeatReport(waiting=3))


async def test_stray_memory_waits_for_the_next_beat_and_comes_with_it(coordinator: Coordinator) -> None:
    """It changes all the time, and lets nobody start sooner."""
    node = member_of(coordinator)
    stray = HeartbeatReport(stray_bytes=((GpuId("GPU-1"), 5),))
    async with node.running():
        await node.connected()
        node.facts.set_free(stray)
        await coordinator.machine.heard(lambda event: event == m.NodeHeartbeat(node.name, None, stray))
        quiet = await coordinator.machine.heard(lambda event: event == m.NodeHeartbeat(node.name, None, None))
    assert quiet is not None


async def test_acknowledged_beats_are_contact_as_of_when_they_were_sent(coordinator: Coordinator) -> None:
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        first = node.order_handler.seen.at
        coordinator.machine.revision = 40
        await coordinator.machine.heard(is_a(m.NodeHeartbeat), times=8)
        assert first is not None
        assert node.order_handler.seen.at is not None
        assert node.order_handler.seen.at > first
        assert node.order_handler.seen.revision == 40


async def test_fences_are_looked_at_before_anything_is_sent(coordinator: Coordinator) -> None:
    """A machine that slept must not be heard of while it still runs what others may have begun anew."""
    node = member_of(coordinator, timing=Timing(look=0.0))
    looks: list[int] = []
    coordinator.machine.answer = lambda _: looks.append(node.order_handler.looks)
    async with node.running():
        await coordinator.machine.heard(is_a(m.NodeHeartbeat), times=3)
    assert looks[:4] == sorted(set(looks[:4]))
    assert looks[0] == 1


async def test_a_beat_that_the_machine_did_not_take_is_no_contact(coordinator: Coordinator) -> None:
    node = member_of(coordinator)
    machine = coordinator.machine
    async with node.running():
        await node.connected()
        tried = asyncio.Event()

        def refuse(event: m.PoolEvent) -> Unavailable | None:
            tried.set()
            return Unavailable("the disk is full") if isinstance(event, m.NodeHeartbeat) else None

        before = node.order_handler.seen.at
        machine.answer = refuse
        known = machine.count(m.NodeHeartbeat)
        for _ in range(3):
            tried.clear()
            await tried.wait()
        assert machine.count(m.NodeHeartbeat) == known
        assert node.order_handler.seen.at is not None
        late = node.order_handler.seen.at
        machine.answer = lambda _: None
        await machine.heard(is_a(m.NodeHeartbeat), times=known + 3)
        assert before is not None
        assert node.order_handler.seen.at > late >= before


async def test_a_registration_that_is_longer_than_a_message_comes_in_several(
    coordinator: Coordinator,
) -> None:
    """A node with months of attempts behind it."""
    node = member_of(coordinator)
    keys = [AttemptKey(JobId(f"{number:010}"), 1) for number in range(1500)]
    for key in keys:
        await node.order_handler.take(place(key=key))
    async with node.running():
        registration = await registration_of(coordinator.machine)
    assert [report.key for report in registration.reports] == keys
    assert all(report.spec == spec() for report in registration.reports)


async def test_a_node_is_told_of_its_drain_at_once_and_at_each_registration(coordinator: Coordinator) -> None:
    """By whom, and why."""
    node = member_of(coordinator)
    members = coordinator.machine.state.members
    told: asyncio.Queue[link_pb2.DrainNotice] = asyncio.Queue()
    node.link.receivers.drained = told.put_nowait
    async with node.running(), asyncio.timeout(20):
        await node.connected()
        members[node.name] = replace(members[node.name], drained_by="root", drain_reason="a new fan")
        coordinator.link.send_drain(node.name)
        first = await told.get()
        node.link.redial()
        again = await told.get()
    assert (first.by, first.reason) == ("root", "a new fan")
    assert again == first


async def test_an_older_node_is_freed_from_its_shares_of_the_pools_limits(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would bound its own leases by them for ever; it goes by messages of a higher revision only."""
    node = member_of(coordinator)
    report = json.loads(codec.free_bytes(HeartbeatReport()))
    older = json.dumps({**report, "allowed": {"revision": 7, "wants": []}}).encode()
    monkeypatch.setattr(codec, "free_bytes", lambda _: older)
    heard: asyncio.Queue[link_pb2.Down] = asyncio.Queue()
    read = Session._handle

    async def hear(session: Session, message: link_pb2.Down) -> None:
        heard.put_nowait(message)
        await read(session, message)

    monkeypatch.setattr(Session, "_handle", hear)
    async with node.running():
        await node.connected()
        while (message := await heard.get()).WhichOneof("what") != "allowance":
            pass
        assert message.allowance == link_pb2.Allowance(revision=8)


async def test_clocks_that_are_too_far_apart_are_told_with_the_difference(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before somebody wonders why certificates and jobs are refused."""
    node = member_of(coordinator)
    told_now = LinkService._welcome

    def ahead(link: LinkService) -> link_pb2.Welcome:
        welcome = told_now(link)
        welcome.now += 3600
        return welcome

    monkeypatch.setattr(LinkService, "_welcome", ahead)
    async with node.running():
        await node.connected()
    assert "3600 s ahead of" in node.troubles.of("pool-clock")


async def test_a_coordinator_of_another_pool_is_not_joined(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its certificate is of the same authority."""
    node = member_of(coordinator)
    told_now = LinkService._welcome

    def other(link: LinkService) -> link_pb2.Welcome:
        welcome = told_now(link)
        welcome.pool = "other"
        return welcome

    monkeypatch.setattr(LinkService, "_welcome", other)
    async with node.running():
        await node.until(lambda link: bool(link.state.last_error))
    assert "of the pool lab, and the coordinator of 'other'" in node.link.state.last_error
    assert node.order_handler.seen.epoch == 0


async def test_an_order_that_cannot_be_read_is_passed_over(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a newer coordinator; what comes after it counts."""
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        stream = coordinator.link._streams[node.name]
        stream.put("strange", lambda: link_pb2.Down(order=b'{"kind":"dance"}'))
        coordinator.link.perform(m.Send(node.name, place()))
        await coordinator.machine.heard(is_a(m.AttemptReported))
    assert "an order that this version cannot read" in caplog.text


async def test_a_report_waits_for_a_store_that_is_away(coordinator: Coordinator) -> None:
    """The node said it once; the coordinator does not lose it."""
    node = member_of(coordinator)
    refused = asyncio.Event()

    def refuse(event: m.PoolEvent) -> Unavailable | None:
        if isinstance(event, m.AttemptReported) and not refused.is_set():
            refused.set()
            return Unavailable("the disk is full")
        return None

    async with node.running():
        await node.connected()
        coordinator.machine.answer = refuse
        coordinator.link.perform(m.Send(node.name, place()))
        await coordinator.machine.heard(is_a(m.AttemptReported))
    assert refused.is_set()


async def test_an_order_that_the_node_cannot_write_down_is_not_answered(coordinator: Coordinator) -> None:
    """So that it is said again."""
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        node.order_handler.refusal = Unavailable("the disk is full")
        coordinator.link.perform(m.Send(node.name, place()))
        await coordinator.machine.heard(is_a(m.NodeHeartbeat), times=3)
        assert coordinator.machine.count(m.AttemptReported) == 0
        node.order_handler.refusal = None
        coordinator.link.perform(m.Send(node.name, place()))
        await coordinator.machine.heard(is_a(m.AttemptReported))


# --- lost links ----------------------------------------------------------------------------------------


async def test_after_a_cut_the_next_registration_tells_all_attempts(coordinator: Coordinator) -> None:
    """What was reported into the cut too."""
    async with Proxy(coordinator.port).running() as proxy:
        node = Node(coordinator.enrol(N1), lambda: proxy.address)
        async with node.running():
            await node.connected()
            coordinator.link.perform(m.Send(node.name, place()))
            await coordinator.machine.heard(is_a(m.AttemptReported))
            proxy.refuses = True
            await proxy.cut()
            await node.until(lambda link: not link.connected)
            node.order_handler.change(KEY, AttemptState.RUNNING)
            node.link.report(KEY)
            proxy.refuses = False
            registration = await registration_of(coordinator.machine, times=2)
            await node.connected()
    assert [(report.key, report.state) for report in registration.reports] == [(KEY, AttemptState.RUNNING)]
    assert registration.seen_epoch == 1


async def test_what_was_ordered_before_a_cut_is_decided_before_the_next_registration(
    coordinator: Coordinator,
) -> None:
    """A coordinator that does not remember the order learns of it there, and places nothing beside it."""
    async with Proxy(coordinator.port).running() as proxy:
        node = Node(coordinator.enrol(N1), lambda: proxy.address)
        node.order_handler.may_write.clear()
        async with node.running():
            await node.connected()
            coordinator.link.perform(m.Send(node.name, place()))
            await node.order_handler.asked.wait()
            await proxy.cut()
            await node.until(lambda link: not link.connected)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await coordinator.machine.heard(is_a(m.NodeRegistered), times=2)
            node.order_handler.may_write.set()
            registration = await registration_of(coordinator.machine, times=2)
    assert [report.key for report in registration.reports] == [KEY]


async def test_nothing_is_left_of_links_that_were_lost(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that somebody still holds keeps its connection dialling, and the coordinator has it in vain."""
    channels: list[weakref.ref[grpc.aio.Channel]] = []
    made = Dial.channel

    async def note(dial: Dial, address: str = "") -> grpc.aio.Channel:
        channel = await made(dial, address)
        channels.append(weakref.ref(channel))
        return channel

    monkeypatch.setattr(Dial, "channel", note)
    async with Proxy(coordinator.port).running() as proxy:
        node = Node(coordinator.enrol(N1), lambda: proxy.address)
        gc.collect()
        gc.disable()
        try:
            async with node.running():
                await node.connected()
                proxy.refuses = True
                await proxy.cut()
                while len(channels) < 5:
                    await node.link.changed(20)
                proxy.refuses = False
                await node.connected()
                alive = [channel for channel in channels if channel() is not None]
        finally:
            gc.enable()
    assert len(alive) == 1


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_link_that_is_dead_in_one_direction_is_given_up(coordinator: Coordinator, way: str) -> None:
    """Nobody closes it: the beats that are not acknowledged tell."""
    async with Proxy(coordinator.port).running() as proxy:
        timing = Timing(answer=1.0, silence=0.5)
        node = Node(coordinator.enrol(N1), lambda: proxy.address, timing=timing)
        async with node.running():
            await node.connected()
            direction = proxy.up if way == "up" else proxy.down
            direction.lossy = True
            await node.until(lambda link: not link.connected)
            assert "acknowledged nothing" in node.link.state.last_error
            direction.lossy = False
            await proxy.cut()
            await node.connected()
    assert coordinator.machine.count(m.NodeRegistered) >= 2


async def test_a_node_that_is_slow_to_read_holds_up_nobody(coordinator: Coordinator) -> None:
    """What waits for it is the newest of each subject, and what others are told is told."""
    async with Proxy(coordinator.port).running() as proxy:
        slow = Node(coordinator.enrol("slow"), lambda: proxy.address)
        quick = member_of(coordinator, "quick")
        async with slow.running(), quick.running():
            await slow.connected()
            await quick.connected()
            proxy.down.hold()
            for number in range(2000):
                coordinator.link.perform(m.Send(slow.name, place(key=AttemptKey(KEY.job, number + 1))))
            coordinator.link.perform(m.Send(quick.name, place()))
            await coordinator.machine.heard(
                lambda event: isinstance(event, m.AttemptReported) and event.node == quick.name
            )
            for _ in range(3):
                coordinator.link.perform(m.Send(slow.name, place(key=AttemptKey(KEY.job, 2000))))
            assert len(coordinator.link._streams[slow.name].mailbox) <= 2001
            proxy.down.release()
            await coordinator.machine.heard(is_a(m.AttemptReported), times=2001)


async def test_a_node_that_does_not_read_at_all_loses_its_stream_before_memory_is_lost(
    coordinator: Coordinator,
) -> None:
    """Its next registration makes good what it was not told."""
    node = member_of(coordinator)
    async with node.running():
        await node.connected()
        for number in range(MAX_WAITING + 1):
            coordinator.link.send_order(node.name, place(key=AttemptKey(KEY.job, number + 1)))
        await registration_of(coordinator.machine, times=2)


async def test_fifty_nodes_come_back_after_the_coordinator_does(tmp_path: Path) -> None:
    """Each with one registration that is welcomed, and with the epoch that it had seen."""
    coordinator = Coordinator(tmp_path / "pool")
    coordinator.beat_seconds = 1.0
    async with AsyncExitStack() as stack:
        async with coordinator.serving():
            nodes = [member_of(coordinator, f"n{number}") for number in range(50)]
            for node in nodes:
                await stack.enter_async_context(node.running())
            for node in nodes:
                await node.connected()
        for node in nodes:
            await node.until(lambda link: not link.connected)
        coordinator.begin_anew()
        async with coordinator.serving():
            for node in nodes:
                await node.connected()
            registrations = [
                event for event in coordinator.machine.events if isinstance(event, m.NodeRegistered)
            ]
    assert sorted(registration.node for registration in registrations[50:]) == sorted(
        node.name for node in nodes
    )
    assert {registration.seen_epoch for registration in registrations[50:]} == {1}
    assert {node.order_handler.seen.epoch for node in nodes} == {2}
