"""Who may connect to a coordinator, and what the others are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import Place
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Request
from gpushared.jobs import bounds
from gpushared.pool.member.dial import Retry
from tests.pool.link.coordinator import Coordinator, enlist, foreign
from tests.pool.link.member import Node, spec
from tests.pool.link.raw import answer, first_answer, stream

N1 = NodeName("n1")
PATIENT = Retry(first=0.01, last=0.05, patient=3600.0)
"""One try, and then none for as long as a test lasts."""


async def refusal_of(node: Node) -> str:
    """Why the coordinator would not have it, as its users are shown it."""
    async with node.running():
        await node.until(lambda link: bool(link.state.last_error) and link.state.next_try_at is not None)
    assert node.troubles.of("pool").endswith(node.link.state.last_error)
    return node.link.state.last_error


async def test_a_node_that_is_not_enrolled_is_told_how_to_join(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the store of a coordinator was lost, or with a copy that is too old; its log says it too."""
    node = Node(enlist(coordinator.trust, N1), lambda: coordinator.address, retry=PATIENT)
    refusal = await refusal_of(node)
    assert "node n1 is not enrolled in the pool lab" in refusal
    assert "gpushare node join" in refusal
    assert "node=n1" in caplog.text
    assert coordinator.machine.events == []


async def test_a_node_of_another_incarnation_of_the_pool_does_not_trust_the_coordinator(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """Two coordinators by mistake: the pool was begun anew somewhere, under the same name."""
    credentials = foreign(tmp_path / "other", N1)
    coordinator.enrol(N1)
    refusal = await refusal_of(Node(credentials, lambda: coordinator.address, retry=PATIENT))
    assert "is not the coordinator of this node's pool" in refusal
    assert "gpushare pool init" in refusal


async def test_a_certificate_that_another_authority_signed_opens_nothing(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """Somebody who trusts our coordinator, but whom our coordinator has no reason to trust."""
    credentials = foreign(tmp_path / "other", N1)
    credentials.anchors = coordinator.trust.authority.anchors_pem
    coordinator.enrol(N1)
    node = Node(credentials, lambda: coordinator.address)
    async with node.running():
        await node.until(lambda link: bool(link.state.last_error))
    assert coordinator.machine.events == []


async def test_a_node_that_lies_about_its_name_is_refused(coordinator: Coordinator) -> None:
    """What counts is the certificate, and a registration that says something else is a mistake or worse."""
    coordinator.enrol("other")
    node = Node(coordinator.enrol(N1), lambda: coordinator.address, name="other", retry=PATIENT)
    refusal = await refusal_of(node)
    assert "says that it is 'other', and its certificate that it is n1" in refusal
    assert coordinator.machine.events == []


async def test_a_node_that_is_shut_out_loses_its_stream(coordinator: Coordinator) -> None:
    """And is told so when it comes back."""
    node = Node(coordinator.enrol(N1), lambda: coordinator.address, retry=PATIENT)
    async with node.running():
        await node.connected()
        coordinator.trust.ledger.revoke(N1, "root", 0.0)
        coordinator.trust.certificate_status.look_again(0.0)
        await node.until(lambda link: not link.connected)
        assert "was revoked" in node.link.state.last_error
        node.link.hurry()
        await node.until(lambda link: "was revoked" in link.state.last_error)
        assert node.link.state.hint.startswith("let it join again: gpushare pool token --node n1")
        await coordinator.machine.heard(lambda event: event == m.NodeDisconnected(N1))


async def test_a_node_that_says_nothing_any_more_is_not_taken_for_connected(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives, as that of a daemon that hangs does: only what it says is a sign of life."""
    monkeypatch.setattr("gpushared.pool.coordinator.node_stream.SILENCE_SECONDS", 0.4)
    async with stream(coordinator, coordinator.enrol(N1)) as call:
        await call.write(link_pb2.Up(hello=link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}")))
        assert (await answer(call)).HasField("welcome")
        told = await answer(call)
        assert "said nothing" in told.refuse.message
        await coordinator.machine.heard(lambda event: event == m.NodeDisconnected(N1))


async def test_a_newer_stream_of_a_node_replaces_the_older(coordinator: Coordinator) -> None:
    """A copy of a machine, with the same certificate: the older is told who took over."""
    credentials = coordinator.enrol(N1)
    older, newer = (Node(credentials, lambda: coordinator.address, retry=PATIENT) for _ in range(2))
    async with older.running():
        await older.connected()
        async with newer.running():
            await newer.connected()
            await older.until(lambda link: not link.connected)
            assert "another stream of node n1 took over" in older.link.state.last_error
            assert coordinator.machine.count(m.NodeDisconnected) == 0
            assert coordinator.link.connected() == {N1}


async def test_a_node_of_the_version_before_is_understood(coordinator: Coordinator) -> None:
    """It lists no capabilities, lacks fields, and has some that are gone."""
    hello = link_pb2.Hello(
        node=N1, version="0.0.9", inventory=b'{"gpus":[],"colour":"green"}', free=b'{"holdings":[]}'
    )
    down = await first_answer(coordinator, coordinator.enrol(N1), hello)
    assert down.welcome.pool == "lab"
    assert coordinator.machine.events[0] == m.NodeRegistered(N1, Inventory(()), HeartbeatReport())


async def test_a_node_with_nothing_in_common_is_told_what_to_update(coordinator: Coordinator) -> None:
    hello = link_pb2.Hello(
        node=N1, version="9.0.0", capabilities=["link-8", "link-9"], inventory=b"{}", free=b"{}"
    )
    refuse = (await first_answer(coordinator, coordinator.enrol(N1), hello)).refuse
    assert (refuse.code, "generation 9" in refuse.message) == ("failed_precondition", True)
    assert "update this side" in refuse.hint


async def test_a_generation_of_many_digits_is_none(coordinator: Coordinator) -> None:
    hello = link_pb2.Hello(node=N1, capabilities=["link-" + "9" * 5000], inventory=b'{"gpus":[]}', free=b"{}")
    assert (await first_answer(coordinator, coordinator.enrol(N1), hello)).HasField("welcome")


GPU = '{"id":"GPU-1","index":0,"name":"H100","memory_total_bytes":%d,"leasable_bytes":%d}'
HELD = '{"holdings":[{"lease":"l-1","grants":[{"gpu":"GPU-1","memory_bytes":-5,"compute_permille":0}],%s}]}'


@pytest.mark.parametrize(
    ("inventory", "free", "words"),
    [
        ("{", "{}", "an inventory that this version cannot read"),
        ('{"gpus":[' + GPU % (5, 9) + "]}", "{}", "cannot lease 9 of 5 bytes"),
        ('{"gpus":[' + GPU % (1 << 60, 1 << 60) + "]}", "{}", "as a size of memory cannot be"),
        ('{"gpus":[' + ",".join([GPU % (9, 9)] * 2) + "]}", "{}", "2 GPUs with 1 names"),
        ('{"gpus":[],"memory_bytes":-1}', "{}", "-1 as a size of memory cannot be"),
        ('{"gpus":[]}', HELD % '"owner":"a","project":"p"', "-5 as a size of memory cannot be"),
        ('{"gpus":[]}', '{"stray_bytes":[["GPU-1",-1]]}', "-1 as a size of memory cannot be"),
    ],
)
async def test_what_no_machine_can_have_is_refused_with_a_sentence(
    coordinator: Coordinator, inventory: str, free: str, words: str
) -> None:
    """A mistake or a lie; either way nothing is planned on it."""
    hello = link_pb2.Hello(node=N1, inventory=inventory.encode(), free=free.encode())
    refuse = (await first_answer(coordinator, coordinator.enrol(N1), hello)).refuse
    assert refuse.code == "invalid_argument"
    assert words in refuse.message
    assert coordinator.machine.events == []


async def test_a_link_that_does_not_begin_with_a_registration_is_refused(coordinator: Coordinator) -> None:
    async with stream(coordinator, coordinator.enrol(N1)) as call:
        await call.write(link_pb2.Up(beat=link_pb2.Beat(seq=1)))
        assert "not a registration" in (await answer(call)).refuse.message


@pytest.mark.parametrize("more", [-1, bounds.MAX_HELLO_REPORTS + 1])
async def test_a_registration_without_end_is_refused(coordinator: Coordinator, more: int) -> None:
    hello = link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}", more_reports=more)
    refuse = (await first_answer(coordinator, coordinator.enrol(N1), hello)).refuse
    assert "as a number of reports cannot be" in refuse.message


async def test_messages_that_cannot_be_read_or_are_not_known_do_not_end_a_stream(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a newer node, say; its beats still count."""
    hello = link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}")
    async with stream(coordinator, coordinator.enrol(N1)) as call:
        await call.write(link_pb2.Up(hello=hello))
        await answer(call)
        await call.write(link_pb2.Up(report=b"[]"))
        await call.write(link_pb2.Up())
        await call.write(link_pb2.Up(beat=link_pb2.Beat(seq=1, free=b"7")))
        await call.write(link_pb2.Up(beat=link_pb2.Beat(seq=2)))
        assert (await answer(call)).beat_ack.seq == 2
    assert "a report that this version cannot read" in caplog.text
    assert coordinator.machine.count(m.NodeHeartbeat) == 1


async def test_two_reports_of_one_attempt_are_handed_on_in_their_order(coordinator: Coordinator) -> None:
    """And one that comes twice, twice: the machine knows them by their revisions."""
    hello = link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}")
    text = '{"key":{"job":"0123456789","number":1},"state":"running","revision":%d}'
    async with stream(coordinator, coordinator.enrol(N1)) as call:
        await call.write(link_pb2.Up(hello=hello))
        await answer(call)
        for revision in (1, 2, 2, 1):
            await call.write(link_pb2.Up(report=(text % revision).encode()))
        async with asyncio.timeout(20):
            await coordinator.machine.heard(lambda event: isinstance(event, m.AttemptReported), times=4)
    reported = [event for event in coordinator.machine.events if isinstance(event, m.AttemptReported)]
    assert [event.report.revision for event in reported] == [1, 2, 2, 1]  # type: ignore[union-attr]


async def test_a_refusal_is_heard_while_a_long_registration_is_sent(coordinator: Coordinator) -> None:
    """The coordinator does not read what follows, and the node must still learn why."""
    node = Node(enlist(coordinator.trust, N1), lambda: coordinator.address, retry=PATIENT)
    spec_of_some_size = spec(name="n" * 1000)
    for number in range(1500):
        key = AttemptKey(JobId(f"{number:010}"), 1)
        await node.order_handler.take(Place(key, 1, spec_of_some_size, Request()))
    assert "is not enrolled" in await refusal_of(node)
