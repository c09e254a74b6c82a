"""What a node in the wrong hands sends, and a coordinator in the wrong hands: no more than what can be so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind, NodeName, Owner
from gpushared.domain.jobs.protocol import CancelPart, Commit, Gang, Order, Place, Report
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.pool.link import codec
from tests.pool.link.coordinator import Coordinator
from tests.pool.link.member import spec
from tests.pool.link.raw import answer, first_answer, stream

N1 = NodeName("n1")
KEY = AttemptKey(JobId("0123456789"), 1)
REPORT = Report(KEY, AttemptState.RUNNING, 1, LeaseId("l"))


def test_what_nodes_say_of_ordinary_attempts_is_read_as_it_was_meant() -> None:
    ending = Ending(EndKind.FAILED, "kein Gerät \N{GRINNING FACE} 12345678901234567890", 127)
    report = replace(REPORT, ending=ending, spec=spec(), request=Request(memory_bytes=1 << 40))
    assert codec.read_report(codec.report_bytes(report)) == report


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, key=AttemptKey(JobId("../ended/x"), 1)),
        replace(REPORT, key=AttemptKey(JobId("x" * 600), 1)),
        replace(REPORT, key=AttemptKey(KEY.job, 1 << 40)),
        replace(REPORT, key=AttemptKey(KEY.job, 0)),
        replace(REPORT, revision=1 << 80),
        replace(REPORT, ending=Ending(EndKind.EXITED, exit_code=1 << 40)),
        replace(REPORT, ending=Ending(EndKind.FAILED, "\ud800")),
        replace(REPORT, spec=spec(index=1 << 40)),
        replace(REPORT, spec=spec(name="x" * 1000)),
        replace(REPORT, spec=spec(retries=5000)),
        replace(REPORT, request=Request(compute_permille=-500)),
    ],
)
def test_what_would_be_in_the_way_of_whoever_is_shown_it_is_not_taken(report: Report) -> None:
    with pytest.raises(RequestError):
        codec.read_report(codec.report_bytes(report))


def test_half_a_surrogate_pair_is_found_in_bytes_too() -> None:
    """JSON's reader lets it through in UTF-8 as well."""
    data = codec.report_bytes(replace(REPORT, ending=Ending(EndKind.FAILED, "HERE")))
    with pytest.raises(RequestError, match="cannot read"):
        codec.read_report(data.replace(b"HERE", b"\xed\xa0\x80"))


@pytest.mark.parametrize(
    "request_",
    [
        Request(gpu_count=-1),
        Request(memory_bytes=-(1 << 40)),
        Request(memory_permille=2000),
        Request(compute_permille=100, isolation=Isolation.EXCLUSIVE),
        Request(time_limit_seconds=0),
        Request(priority=1000),
        Request(notice_signal="SIGKILL"),
    ],
)
def test_neither_side_has_the_other_reserve_what_nobody_may_ask_for(request_: Request) -> None:
    """Less than nothing would make room that is not there."""
    with pytest.raises(RequestError):
        codec.read_spec(codec.spec_bytes(replace(spec(), request=request_)))
    with pytest.raises(RequestError):
        codec.read_order(codec.order_bytes(Place(KEY, 1, spec(), request_)))


@pytest.mark.parametrize(
    "order",
    [
        Place(KEY, 1 << 80, spec(), Request()),
        Place(KEY, 1, spec(), Request(), gang=True, reserve_seconds=1 << 50),
        CancelPart(KEY, 1, -1),
        Commit(KEY, 1, Gang((), 0, 2000, ())),
        Commit(KEY, 1, Gang(("a", "b"), 1, 99_999, (1, 1))),
    ],
)
def test_a_node_takes_no_order_that_it_could_not_carry_out(order: Order) -> None:
    with pytest.raises(RequestError):
        codec.read_order(codec.order_bytes(order))


async def test_no_node_can_use_up_the_epochs(coordinator: Coordinator) -> None:
    """They are counted in 64 bits; the one after the last would be the end of the pool."""
    hello = link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}", seen_epoch=1 << 61)
    refuse = (await first_answer(coordinator, coordinator.enrol(N1), hello)).refuse
    assert "no pool has an epoch" in refuse.message
    assert coordinator.machine.events == []


async def test_the_log_names_the_node_on_whose_word_the_pool_recovers(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """One that says so again and again can be shut out."""
    hello = link_pb2.Hello(node=N1, inventory=b'{"gpus":[]}', free=b"{}", seen_epoch=7, seen_revision=900)
    await first_answer(coordinator, coordinator.enrol(N1), hello)
    assert "node=n1 has seen more of the pool: epoch 7 revision 900, and ours are 1 and 1" in caplog.text


async def test_whose_a_job_is_the_pool_decides_and_not_the_node_that_tells_of_it(
    coordinator: Coordinator,
) -> None:
    """The principal counts; what a node says of the person could be anybody."""
    report = replace(REPORT, spec=replace(spec(), owner=Owner("eve@n1", "ada", admin=True)))
    hello = link_pb2.Hello(
        node=N1, inventory=b'{"gpus":[]}', free=b"{}", reports=[codec.report_bytes(report)]
    )
    async with stream(coordinator, coordinator.enrol(N1)) as call:
        await call.write(link_pb2.Up(hello=hello))
        await answer(call)
        other = replace(report, key=AttemptKey(JobId("9876543210"), 1))
        await call.write(link_pb2.Up(report=codec.report_bytes(other)))
        said = await coordinator.machine.heard(lambda event: isinstance(event, m.AttemptReported))
    greeted = next(event for event in coordinator.machine.events if isinstance(event, m.NodeRegistered))
    spec_of_node = greeted.reports[0].spec
    assert spec_of_node is not None
    assert spec_of_node.owner == Owner("eve@n1", "eve@n1")
    assert isinstance(said, m.AttemptReported)
    assert isinstance(said.report, Report)
    assert said.report.spec is None
