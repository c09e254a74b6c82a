"""How much, how long and how often a node may register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.api.v1 import link_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_events import NodeRegistered
from gpushared.domain.jobs.job import MAX_TEXT, AttemptState, Ending, EndKind, NodeName
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.jobs.staleness_claims import refused
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.coordinator.registrations import RegistrationBounds, Registrations
from gpushared.pool.link import codec
from tests.pool.link.coordinator import Coordinator
from tests.pool.link.member import spec
from tests.pool.link.raw import answer, first_answer, stream

N1, N2 = "n1", "n2"
BOUNDS = RegistrationBounds(long_bytes=200, long_at_once=1)
REPORT = codec.report_bytes(Report(AttemptKey(JobId("0123456789"), 1), AttemptState.RUNNING, 1))


@pytest.fixture
def new_coordinator(tmp_path: Path) -> Coordinator:
    """Not served yet."""
    return Coordinator(tmp_path / "pool")


def bounded(coordinator: Coordinator, bounds: RegistrationBounds) -> Troubles:
    """Serve links within these bounds; the troubles that are told."""
    troubles = Troubles()
    coordinator.link = LinkService(
        coordinator.machine,
        coordinator.trust.guard,
        coordinator.jobs,
        beat=lambda _: coordinator.beat_seconds,
        troubles=troubles,
        registrations=Registrations(bounds),
    )
    return troubles


def hello(node: str, more: int = 0) -> link_pb2.Up:
    message = link_pb2.Hello(node=node, inventory=b'{"gpus":[]}', free=b"{}", more_reports=more)
    return link_pb2.Up(hello=message)


def reports(count: int) -> Iterator[link_pb2.Up]:
    return (link_pb2.Up(report=REPORT) for _ in range(count))


async def test_a_registration_of_more_than_its_bound_is_refused(new_coordinator: Coordinator) -> None:
    bounded(new_coordinator, replace(BOUNDS, most_bytes=1000))
    async with new_coordinator.serving(), stream(new_coordinator, new_coordinator.enrol(N1)) as call:
        await call.write(hello(N1, more=100))
        for message in reports(1000 // len(REPORT) + 1):
            await call.write(message)
        assert "too many" in (await answer(call)).refuse.message
    assert new_coordinator.machine.events == []


async def test_who_registers_again_and_again_has_to_wait(new_coordinator: Coordinator) -> None:
    bounded(new_coordinator, replace(BOUNDS, burst=2, per_second=0.001))
    async with new_coordinator.serving():
        mine, other = new_coordinator.enrol(N1), new_coordinator.enrol(N2)
        for _ in range(2):
            assert (await first_answer(new_coordinator, mine, hello(N1).hello)).HasField("welcome")
        refusal = (await first_answer(new_coordinator, mine, hello(N1).hello)).refuse
        assert (refusal.code, "tries too often" in refusal.message) == ("resource_exhausted", True)
        assert (await first_answer(new_coordinator, other, hello(N2).hello)).HasField("welcome")


async def test_a_node_sends_few_registrations_at_a_time(new_coordinator: Coordinator) -> None:
    """An older one may be half-open; more than that is a flood."""
    bounded(new_coordinator, replace(BOUNDS, at_once=1))
    async with new_coordinator.serving():
        mine = new_coordinator.enrol(N1)
        async with stream(new_coordinator, mine) as first:
            await first.write(hello(N1, more=50))
            for message in reports(20):
                await first.write(message)
            await new_coordinator.link.registrations.long_one(NodeName(N1))
            refusal = (await first_answer(new_coordinator, mine, hello(N1).hello)).refuse
            assert "1 registrations at a time" in refusal.message


async def test_a_node_sends_one_long_registration_at_a_time(new_coordinator: Coordinator) -> None:
    """It holds what was read in memory; short ones of others are read meanwhile."""
    bounded(new_coordinator, replace(BOUNDS, at_once=2))
    async with new_coordinator.serving():
        mine, other = new_coordinator.enrol(N1), new_coordinator.enrol(N2)
        async with stream(new_coordinator, mine) as first:
            await first.write(hello(N1, more=50))
            for message in reports(20):
                await first.write(message)
            await new_coordinator.link.registrations.long_one(NodeName(N1))
            async with stream(new_coordinator, mine) as second:
                await second.write(hello(N1, more=50))
                for message in reports(20):
                    await second.write(message)
                assert "another long registration of node n1" in (await answer(second)).refuse.message
            assert (await first_answer(new_coordinator, other, hello(N2).hello)).HasField("welcome")
            for message in reports(30):
                await first.write(message)
            assert (await answer(first)).HasField("welcome")


async def test_a_long_registration_waits_until_the_one_before_is_taken(new_coordinator: Coordinator) -> None:
    bounded(new_coordinator, BOUNDS)
    async with new_coordinator.serving():
        mine, other = new_coordinator.enrol(N1), new_coordinator.enrol(N2)
        async with stream(new_coordinator, mine) as first, stream(new_coordinator, other) as second:
            await first.write(hello(N1, more=50))
            for message in reports(20):
                await first.write(message)
            await new_coordinator.link.registrations.long_one(NodeName(N1))
            await second.write(hello(N2, more=50))
            for message in reports(50):
                await second.write(message)
            assert new_coordinator.machine.events == []
            for message in reports(30):
                await first.write(message)
            assert (await answer(first)).HasField("welcome")
            assert (await answer(second)).HasField("welcome")
    heard = [event.node for event in new_coordinator.machine.events if isinstance(event, NodeRegistered)]
    assert heard == [N1, N2]


async def test_a_registration_that_never_ends_is_given_up(new_coordinator: Coordinator) -> None:
    bounded(new_coordinator, replace(BOUNDS, whole=0.2))
    async with new_coordinator.serving(), stream(new_coordinator, new_coordinator.enrol(N1)) as call:
        await call.write(hello(N1, more=50))
        assert "took longer than" in (await answer(call)).refuse.message


async def test_who_says_too_often_that_it_has_seen_more_is_shown_as_a_trouble_until_it_does_not(
    new_coordinator: Coordinator,
) -> None:
    troubles = bounded(new_coordinator, BOUNDS)
    async with new_coordinator.serving():
        mine = new_coordinator.enrol(N1)
        new_coordinator.machine.answer = lambda _: refused(NodeName(N1))
        await first_answer(new_coordinator, mine, hello(N1).hello)
        assert any("node n1 says again" in trouble for trouble in troubles.all())
        new_coordinator.machine.answer = lambda _: None
        assert (await first_answer(new_coordinator, mine, hello(N1).hello)).HasField("welcome")
        assert troubles.all() == ()


async def test_of_what_a_registration_tells_of_its_jobs_no_more_is_kept_than_can_be_there(
    new_coordinator: Coordinator,
) -> None:
    """The rest is read, and what it says of attempts counts."""
    bounded(new_coordinator, replace(BOUNDS, specs=3, spec_bytes=250))
    async with new_coordinator.serving(), stream(new_coordinator, new_coordinator.enrol(N1)) as call:
        large = replace(spec(), body="x" * 100)
        reported = [
            Report(AttemptKey(JobId(f"{number:010}"), 1), AttemptState.RUNNING, number, spec=large)
            for number in range(9)
        ]
        for message in codec.registration_messages(hello(N1).hello, reported):
            await call.write(message)
        assert (await answer(call)).HasField("welcome")
    (event,) = (one for one in new_coordinator.machine.events if isinstance(one, NodeRegistered))
    assert [report.spec is not None for report in event.reports] == [True] * 2 + [False] * 7


def test_a_report_s_texts_are_cut_where_it_is_read() -> None:
    """They are kept until all of a registration is there."""
    ending = Ending(EndKind.FAILED, "x" * 100_000, hint="y" * 100_000)
    report = Report(AttemptKey(JobId("0123456789"), 1), AttemptState.ENDED, 1, ending=ending)
    read = codec.read_report(codec.report_bytes(report)).ending
    assert read is not None
    assert len(read.reason) == len(read.hint) == MAX_TEXT
