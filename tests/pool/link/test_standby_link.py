"""A node that dials a coordinator which stands by is refused, or waits there until one leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from gpushared.api.v1 import link_pb2, link_pb2_grpc
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import NodeName
from gpushared.jobs.standby import Standby
from gpushared.pool.coordinator.node_links import MAX_WAITS_OF_A_NODE
from gpushared.pool.link.codec import LOST_METADATA, WAIT_METADATA
from gpushared.pool.member.link_session import Call
from tests.pool.link.coordinator import WAIT_SECONDS, Coordinator, Credentials


class StandbySwitch:
    """How the coordinator stands by; it leads once ``leads`` was called."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.standby = Standby("b", lambda: 0.5)
        self.now: Standby | None = self.standby
        coordinator.link.standby = lambda: self.now

    def leads(self) -> None:
        self.now = None
        self.standby.end()


@pytest.fixture
def switch(coordinator: Coordinator) -> StandbySwitch:
    return StandbySwitch(coordinator)


@asynccontextmanager
async def dialled(
    coordinator: Coordinator, credentials: Credentials, waits: str | None = None, *, lost_epoch: int = 0
) -> AsyncIterator[Call]:
    options = [("grpc.ssl_target_name_override", credentials.server_name)]
    async with grpc.aio.secure_channel(coordinator.address, credentials.channel(), options) as channel:
        metadata = () if waits is None else ((WAIT_METADATA, waits), (LOST_METADATA, str(lost_epoch)))
        yield link_pb2_grpc.NodeLinkStub(channel).Connect(metadata=metadata)


async def refusal(call: Call) -> str:
    """The words with which the call ends; nothing else was said."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async with asyncio.timeout(WAIT_SECONDS):
            await call.read()
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    return raised.value.details() or ""


async def until_held(call: Call) -> None:
    """The coordinator has taken the call, and says so before it knows more."""
    async with asyncio.timeout(WAIT_SECONDS):
        await call.initial_metadata()
    assert not call.done()


def hello() -> link_pb2.Up:
    return link_pb2.Up(hello=link_pb2.Hello(node="n1", inventory=b'{"gpus":[]}', free=b"{}"))


@pytest.mark.parametrize("waits", [None, "0", "", "-1", "1.5", "soon"])
@pytest.mark.parametrize("leader", ["", "a"])
async def test_a_node_that_does_not_want_to_wait_is_refused_at_once(
    coordinator: Coordinator, switch: StandbySwitch, leader: str, waits: str | None
) -> None:
    switch.standby.led_by(leader, 1)
    async with dialled(coordinator, coordinator.enrol("n1"), waits) as call:
        words = await refusal(call)
    assert ("a leads" in words) == (leader == "a")
    assert "b stands by" in words
    assert coordinator.machine.events == []


@pytest.mark.parametrize("leader", ["", "a"])
async def test_a_node_that_waits_is_served_when_this_coordinator_leads(
    coordinator: Coordinator, switch: StandbySwitch, leader: str
) -> None:
    switch.standby.led_by(leader, 1)
    coordinator.machine.state.epoch = 1
    async with dialled(coordinator, coordinator.enrol("n1"), "15", lost_epoch=1) as call:
        await until_held(call)
        await call.write(hello())
        assert coordinator.machine.events == []
        coordinator.machine.state.epoch = 2
        switch.leads()
        async with asyncio.timeout(WAIT_SECONDS):
            down = await call.read()
        assert isinstance(down, link_pb2.Down)
        assert (down.welcome.pool, down.welcome.epoch) == ("lab", 2)
        assert coordinator.machine.count(m.NodeRegistered) == 1


@pytest.mark.parametrize("waits", ["15", "9" * 5000], ids=["seconds", "for ever"])
async def test_a_node_that_waits_is_refused_when_another_coordinator_leads(
    coordinator: Coordinator, switch: StandbySwitch, waits: str
) -> None:
    async with dialled(coordinator, coordinator.enrol("n1"), waits) as call:
        await until_held(call)
        switch.standby.led_by("c", 2)
        assert "c leads" in await refusal(call)
    assert coordinator.machine.events == []


async def test_a_node_does_not_wait_while_a_coordinator_leads_that_it_has_not_asked(
    coordinator: Coordinator, switch: StandbySwitch
) -> None:
    switch.standby.led_by("c", 2)
    async with dialled(coordinator, coordinator.enrol("n1"), "15", lost_epoch=1) as call:
        assert "c leads" in await refusal(call)


async def test_a_node_that_waits_in_vain_is_refused_when_its_time_is_over(
    coordinator: Coordinator, switch: StandbySwitch
) -> None:
    async with dialled(coordinator, coordinator.enrol("n1"), "1") as call:
        await until_held(call)
        assert "no coordinator of the pool leads now" in await refusal(call)


async def test_many_nodes_wait_at_the_same_time(coordinator: Coordinator, switch: StandbySwitch) -> None:
    nodes = [coordinator.enrol(f"n{number}") for number in range(8)]

    async def waits(node: Credentials) -> str:
        async with dialled(coordinator, node, "15") as call:
            await until_held(call)
            held.add(node.node)
            if len(held) == len(nodes):
                switch.standby.led_by("c", 2)
            return await refusal(call)

    held: set[str] = set()
    words = await asyncio.gather(*map(waits, nodes))
    assert all("c leads" in one for one in words)


async def test_only_nodes_of_the_pool_may_wait(
    coordinator: Coordinator, switch: StandbySwitch, tmp_path: Path
) -> None:
    node = coordinator.enrol("n1")
    coordinator.trust.ledger.revoke(node.node, "root", 2e9)
    async with dialled(coordinator, node, "15") as call:
        async with asyncio.timeout(WAIT_SECONDS):
            down = await call.read()
        assert isinstance(down, link_pb2.Down)
        assert "was revoked" in down.refuse.message
    assert switch.standby.leader == ""


async def test_a_node_whose_certificate_is_revoked_while_it_waits_is_not_served(
    coordinator: Coordinator, switch: StandbySwitch
) -> None:
    """Also if another machine has joined by its name since."""
    switch.standby.led_by("", 1)
    async with dialled(coordinator, coordinator.enrol("n1"), "15") as call:
        await until_held(call)
        await coordinator.trust.enrolment.expel(NodeName("n1"), "root")
        coordinator.enrol("n1")
        switch.leads()
        await call.write(hello())
        async with asyncio.timeout(WAIT_SECONDS):
            down = await call.read()
        assert isinstance(down, link_pb2.Down)
        assert "was revoked" in down.refuse.message
    assert coordinator.machine.count(m.NodeRegistered) == 0


async def test_a_node_waits_only_a_few_times_at_once(coordinator: Coordinator, switch: StandbySwitch) -> None:
    node = coordinator.enrol("n1")
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WAITS_OF_A_NODE):
            await until_held(await stack.enter_async_context(dialled(coordinator, node, "15")))
        call = await stack.enter_async_context(dialled(coordinator, node, "15"))
        async with asyncio.timeout(WAIT_SECONDS):
            down = await call.read()
        assert isinstance(down, link_pb2.Down)
        assert f"{MAX_WAITS_OF_A_NODE} calls under way already" in down.refuse.message
