"""Nodes that know several coordinators: real streams with real certificates, and coordinators that do not lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.model.coordinator_addresses import AddressRound, CoordinatorAddresses, divided, joined
from gpushared.domain.model.errors import GpushareError, NotLeader, TimedOut, Unavailable
from gpushared.jobs import standby as standbys
from gpushared.jobs.standby import Standby
from gpushared.pool.member.dial import Retry, fault
from gpushared.pool.member.link_session import Timing
from tests.pool.link.coordinator import WAIT_SECONDS, Coordinator, foreign
from tests.pool.link.member import Node
from tests.pool.link.proxy import Proxy
from tests.pool.link.standby import DEAD, OtherCoordinator, frozen

NEVER = 3600.0
"""A test fails long before a wait of this length is over."""
BRISK = Retry(first=0.01, last=0.05, patient=NEVER)
NO_WAITS = Retry(first=NEVER, last=NEVER, patient=NEVER, brisk=0.0)


def member(
    coordinator: Coordinator, *addresses: str, retry: Retry = NO_WAITS, timing: Timing | None = None
) -> Node:
    credentials = coordinator.enrol("n1")
    return Node(credentials, lambda: joined(addresses), retry=retry, timing=timing)


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not so():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


@pytest.fixture
async def standby(coordinator: Coordinator) -> AsyncIterator[OtherCoordinator]:
    async with OtherCoordinator(coordinator).serving() as serving:
        yield serving


# --- the round


@pytest.mark.parametrize(
    ("text", "addresses"),
    [("a:1", ("a:1",)), ("a:1,b:2", ("a:1", "b:2")), (" a:1 , b:2,", ("a:1", "b:2")), ("", ())],
)
def test_a_list_of_addresses_is_read(text: str, addresses: tuple[str, ...]) -> None:
    assert divided(text) == addresses


def test_each_address_fails_once_before_a_round_is_over() -> None:
    addresses = CoordinatorAddresses(lambda: ("a", "b", "c"))
    tries = AddressRound(addresses)
    dialled = [(addresses.present, tries.failed(addresses.present)) for _ in range(6)]
    one_round = [("a", False), ("b", False), ("c", True)]
    assert dialled == [*one_round, *one_round]


def test_a_success_begins_the_round_anew() -> None:
    addresses = CoordinatorAddresses(lambda: ("a", "b"))
    tries = AddressRound(addresses)
    tries.failed("a")
    tries.begin_anew()
    assert not tries.failed("b")
    assert addresses.present == "a"


def test_two_callers_that_leave_an_address_go_to_the_same_next_one() -> None:
    addresses = CoordinatorAddresses(lambda: ("a", "b", "c"))
    AddressRound(addresses).failed("a")
    AddressRound(addresses).failed("a")
    assert addresses.present == "b"


def test_an_address_that_is_no_longer_known_is_not_used() -> None:
    known = ["a", "b"]
    addresses = CoordinatorAddresses(lambda: known)
    addresses.leave("a")
    addresses.answered("b")
    known[:] = ["c", "a"]
    assert (addresses.present, addresses.answering) == ("c", "c")


# --- to the leader


async def test_the_leader_is_found_behind_others_without_a_wait(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    node = member(coordinator, DEAD, standby.address, coordinator.address)
    async with node.running():
        await node.connected()
        assert node.link.state.address == coordinator.address
    assert standby.asked == 1


async def test_a_lost_leader_is_left_for_the_next_one_without_a_wait(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    standby.lead()
    async with Proxy(coordinator.port).running() as proxy:
        node = member(coordinator, proxy.address, standby.address)
        async with node.running():
            await node.connected()
            proxy.refuses = True
            await proxy.cut()
            await node.until(lambda link: link.connected and link.dial.address == standby.address)
    assert coordinator.machine.count(m.NodeRegistered) == 2


async def test_a_node_that_a_standby_holds_is_linked_once_it_leads(coordinator: Coordinator) -> None:
    """And its users' reads go to the standby meanwhile."""
    async with OtherCoordinator(coordinator).serving() as standby:
        node = member(coordinator, DEAD, standby.address, retry=BRISK)
        async with node.running():
            await until(lambda: standby.asked == 2)
            assert node.link.dial.addresses.answering == standby.address
            assert not node.link.connected
            standby.lead()
            await node.connected()
    assert standby.asked == 2


async def test_a_node_that_a_standby_holds_goes_on_once_another_leads(coordinator: Coordinator) -> None:
    async with (
        OtherCoordinator(coordinator).serving() as standby,
        OtherCoordinator(coordinator).serving() as next_leader,
    ):
        node = member(coordinator, standby.address, next_leader.address, retry=BRISK)
        async with node.running():
            await until(lambda: standby.asked == 2)
            next_leader.lead()
            standby.standby.led_by("dgx3", 2)
            await node.connected()
    assert (standby.asked, next_leader.asked) == (2, 2)


async def test_a_node_that_was_refused_after_a_wait_asks_all_before_it_waits_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would hold it again: the leader that was started anew has its old name."""
    monkeypatch.setattr(standbys, "MAX_HOLD_SECONDS", NEVER)
    async with (
        OtherCoordinator(coordinator).serving() as first,
        OtherCoordinator(coordinator).serving() as second,
        OtherCoordinator(coordinator).serving() as restarted,
    ):
        addresses = (first.address, second.address, restarted.address)
        node = member(coordinator, *addresses, retry=BRISK, timing=Timing(hold=int(NEVER)))
        async with node.running():
            await until(lambda: first.asked == 2)
            restarted.lead()
            for standby in (second, first):
                standby.standby.led_by("dgx1", 2)
            await node.until(lambda link: link.connected and link.dial.address == restarted.address)


async def test_a_node_does_not_wait_for_the_leader_after_one_that_is_taking_over(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standbys name it before it knows itself that it leads."""
    monkeypatch.setattr(standbys, "MAX_HOLD_SECONDS", NEVER)
    async with (
        OtherCoordinator(coordinator).serving() as first,
        OtherCoordinator(coordinator).serving() as second,
        OtherCoordinator(coordinator).serving() as taking_over,
    ):
        for standby in (first, second):
            standby.standby.led_by("dgx3", 2)
        taking_over.standby.led_by("", 0)
        addresses = (first.address, second.address, taking_over.address)
        node = member(coordinator, *addresses, retry=BRISK, timing=Timing(hold=int(NEVER)))
        async with node.running():
            await until(lambda: taking_over.asked == 2)
            taking_over.lead()
            await node.until(lambda link: link.connected and link.dial.address == taking_over.address)


async def test_a_standby_that_refuses_is_asked_by_users_rather_than_a_dead_coordinator(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    node = member(coordinator, standby.address, DEAD)
    async with node.running():
        await node.until(lambda link: f"{DEAD} does not answer" in link.state.last_error)
    assert node.link.dial.addresses.answering == standby.address


async def test_a_frozen_coordinator_is_left_soon(coordinator: Coordinator) -> None:
    """It accepts connections; gRPC itself would wait for its TLS handshake three times as long."""
    async with frozen() as address:
        node = member(coordinator, address, coordinator.address, timing=Timing(reach=0.2))
        async with node.running():
            await node.connected()
            assert node.link.state.address == coordinator.address


async def test_a_leader_that_falls_silent_is_left_for_another(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    """Nobody closes the connection, as when a machine is frozen or cut off."""
    standby.lead()
    async with Proxy(coordinator.port).running() as proxy:
        timing = Timing(silence=NEVER, silence_among_others=0.1)
        node = member(coordinator, proxy.address, standby.address, timing=timing)
        async with node.running():
            await node.connected()
            silences: list[str] = []
            node.link.receivers.fell_silent = lambda: silences.append(node.link.dial.address)
            proxy.up.lossy = proxy.down.lossy = True
            await node.until(lambda link: link.connected and link.dial.address == standby.address)
            assert silences == [proxy.address]


async def test_a_leader_that_fell_silent_is_asked_last(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    """It would answer nothing for long, while a standby already knows the next leader."""
    timing = Timing(silence=NEVER, silence_among_others=0.1)
    async with Proxy(coordinator.port).running() as proxy:
        node = member(coordinator, proxy.address, standby.address, retry=BRISK, timing=timing)
        async with node.running():
            await node.connected()
            proxy.up.lossy = proxy.down.lossy = True
            await until(lambda: standby.asked == 2)
            standby.lead()
            await node.until(lambda link: link.connected and link.dial.address == standby.address)
        assert proxy.connections == 1


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        ("Stream removed (recvmsg:Connection timed out (110))", TimedOut),
        ("ping timeout", TimedOut),
        ("keepalive timeout", TimedOut),
        ("Stream removed (Socket closed)", Unavailable),
        ("ipv4:10.0.0.1:7441: Failed to connect to remote host: Connection refused", Unavailable),
    ],
)
def test_a_connection_that_the_kernel_or_a_ping_gave_up_counts_as_silence(
    details: str, kind: type[GpushareError]
) -> None:
    """Then the leader is asked last; a cut cable shows itself so before the link misses its acknowledgements."""
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details)
    assert type(fault("10.0.0.1:7441", error)) is kind


def test_a_call_whose_refusal_grpcio_dropped_is_told_of_without_grpcios_words() -> None:
    """They come where the coordinator refused the call while something was written to it."""
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core")
    told = fault("10.0.0.1:7441", error)
    assert told.message == "the coordinator at 10.0.0.1:7441 does not answer: it ended the connection"


async def test_a_standby_lets_nobody_wait_who_has_not_asked_the_leader() -> None:
    standby = Standby("dgx2", lambda: 0.0)
    standby.led_by("dgx3", 2)
    with pytest.raises(NotLeader, match="dgx3 leads"):
        standby.until_leading(NEVER, 1).send(None)


async def test_nobody_waits_at_a_leader_that_may_be_deposed() -> None:
    deposed = Standby("dgx1", lambda: 20.0, is_deposed=True)
    with pytest.raises(NotLeader, match="does not know if it still leads"):
        deposed.until_leading(NEVER, 0).send(None)


@pytest.mark.parametrize(
    ("beat_seconds", "has_others", "limit"),
    [
        pytest.param(5.0, False, 40.0, id="one coordinator"),
        pytest.param(20.0, False, 60.0, id="one coordinator of a large pool"),
        pytest.param(5.0, True, 12.0, id="several coordinators"),
        pytest.param(10.0, True, 22.0, id="several coordinators of a large pool"),
    ],
)
def test_two_heartbeats_at_least_are_waited_for(beat_seconds: float, has_others: bool, limit: float) -> None:
    assert Timing().silence_limit(beat_seconds, has_others=has_others) == limit


# --- waits


async def test_nobody_is_asked_again_before_the_wait_after_a_round(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    """And then the first one is waited at."""
    async with OtherCoordinator(coordinator).serving() as other:
        node = member(coordinator, standby.address, other.address)
        async with node.running():
            await node.until(lambda _: other.asked > 0 and "dgx1 leads" in node.link.state.last_error)
            assert (standby.asked, other.asked) == (1, 1)
            node.link.hurry()
            await until(lambda: standby.asked == 2)
            assert other.asked == 1


async def test_a_refusal_that_people_must_change_is_told_and_waited_out(
    coordinator: Coordinator, standby: OtherCoordinator
) -> None:
    """A standby knows no better."""
    node = member(coordinator, coordinator.address, standby.address)
    del coordinator.machine.state.members[node.name]
    async with node.running():
        await node.until(lambda link: "is not enrolled" in link.state.last_error)
        await until(lambda: bool(node.troubles.of("pool")))
    assert standby.asked == 0


async def test_a_machine_that_is_no_coordinator_of_the_pool_holds_up_nobody(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """As one whose copy of the authority is missing."""
    stranger = Coordinator(tmp_path / "stranger")
    async with stranger.serving():
        node = member(coordinator, stranger.address, coordinator.address)
        async with node.running():
            await node.connected()


async def test_where_nobody_is_a_coordinator_of_the_pool_the_node_is_patient(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    node = Node(
        foreign(tmp_path / "other", "n1"),
        lambda: joined([coordinator.address, coordinator.address.replace("127.0.0.1", "localhost")]),
        retry=NO_WAITS,
    )
    async with node.running():
        await until(lambda: "is not the coordinator" in node.troubles.of("pool"))


# --- for people


async def test_people_are_told_which_of_the_coordinators_is_linked(
    coordinator: Coordinator,
) -> None:
    users, nodes = [[f"{host}:{port}" for host in "abc"] for port in (7440, 7441)]
    coordinator.link.addresses = lambda: (users, nodes)
    node = member(coordinator, coordinator.address)
    async with node.running():
        await node.connected()
        assert f"3 coordinators, linked by {coordinator.address} since" in node.link.state.text()
        node.link.redial()
        await node.until(lambda link: not link.connected)
        assert "no link to any of 3 coordinators since" in node.link.state.text()
