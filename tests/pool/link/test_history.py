"""The history of nodes comes over real links to the coordinator, and one node's lies harm nobody else's."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.api.v1 import history_pb2, history_pb2_grpc
from gpushared.config.history_settings import Others, PrivacyConfig
from gpushared.config.queue_rules import UserConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.jobs.job import Ended, Job, NodeName, Queued, Succeeded, Try, TryPart
from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError, StateConflict
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import JobId, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.span import Span
from gpushared.node.pool.pool_answers import HistoryAnswers
from gpushared.pool.coordinator import history_gatherer
from gpushared.pool.coordinator.history_gatherer import HistoryGatherer, LeaseOwners
from gpushared.pool.link import codec
from gpushared.pool.link.history_wire import MAX_PART_BYTES, part_bytes, read_part, unpack
from gpushared.pool.member.coordinator_calls import CoordinatorCalls
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.history_export import ExportKind
from gpushared.storage.history.history_parts import HistoryPart, HistoryPosition
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, LeaseAccount, SourceName
from gpushared.testing import fake_lease
from tests.pool.link.member import spec
from tests.pool.link.proxy import Proxy
from tests.pool.link.test_whole import JOB, POOL, WAIT_SECONDS, Machine, World, linked, machine, world

__all__ = ["machine", "world"]
HOUR_MS = 3_600_000
NOW_MS = 400_000 * HOUR_MS
EVERYTHING = HistoryFilter()
SUMMARY = replace(summary_of(fake_lease(1)), created_at=NOW_MS / 1000 - 1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_gatherer, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(history_gatherer, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(history_gatherer, "PART_PAUSE_SECONDS", 0.0)


class RecordedNode:
    """A node's history file, in which each lease held a half of a GPU for an hour."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = SqliteHistory(folder / f"{name}-history.db")
        self.leases = 0

    async def lease(self, **facts: object) -> None:
        self.leases += 1
        lease = LeaseId(f"l-{self.leases}")
        begin = NOW_MS + self.leases * HOUR_MS
        end = begin + HOUR_MS
        summary = replace(
            SUMMARY,
            owner="ada",
            lease=lease,
            created_at=begin / 1000,
            ended_at=end / 1000,
            outcome="finished",
        )
        await self.file.write(
            HistoryBatch(
                SourceName("whatever it calls itself", 5),
                end,
                leases=(replace(summary, **facts),),  # type: ignore[arg-type]  # the tests name fields
                spans=((self.leases, Span(lease, "vision", begin, end, GpuId("GPU-0"), 500, 4096 * MIB)),),
            )
        )

    def answerers(self) -> dict[str, Callable[[bytes], object]]:
        async def flush() -> None:
            """Everything is written already."""

        return dict(HistoryAnswers(self.file, flush, lambda: POOL, lambda: "n1").answerers())


@asynccontextmanager
async def recorded(machine: Machine, folder: Path) -> AsyncIterator[RecordedNode]:
    made = RecordedNode(folder, machine.name)
    machine.answerers = made.answerers()  # type: ignore[assignment]
    yield made
    await made.file.close()


def gpu_hours(accounts: list[LeaseAccount], node: str = "") -> float:
    mine = [one.account for one in accounts if node in {"", one.node}]
    return sum(mine, Account()).gpu_hours


async def until_hours(world: World, hours: float) -> list[LeaseAccount]:
    """Wait until the coordinator has so many GPU hours."""
    async with asyncio.timeout(WAIT_SECONDS):
        while gpu_hours(found := await world.coordinator.history.accounts(EVERYTHING)) != hours:
            await world.coordinator.loop.changed(0.05)
    return found


async def test_the_coordinator_has_the_leases_of_a_nodes_own_users(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    """By the node's name in its certificate, and the users' names in the pool."""
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await node.lease(image="secret", container_name="secret")
        await linked(machine, stack)
        (one,) = await until_hours(world, 0.5)
        assert (one.node, one.owner) == ("n1", "ada@n1")
        (lease,) = await world.coordinator.history.leases(EVERYTHING, 9)
        assert "secret" not in repr(lease)


async def test_a_node_that_was_away_tells_later(world: World, machine: Machine, tmp_path: Path) -> None:
    async with (
        recorded(machine, tmp_path) as node,
        Proxy(world.nodes_port).running() as proxy,
        AsyncExitStack() as stack,
    ):
        machine.coordinator = proxy.address
        await node.lease()
        link = await linked(machine, stack)
        await until_hours(world, 0.5)
        proxy.refuses = True
        await proxy.cut()
        await node.lease()
        proxy.refuses = False
        assert link.link is not None
        link.link.hurry()
        await until_hours(world, 1.0)


async def test_a_coordinator_that_restarts_goes_on_and_counts_nothing_twice(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await node.lease()
        link = await linked(machine, stack)
        machine.coordinator = f"127.0.0.1:{world.nodes_port}"
        await until_hours(world, 0.5)
        await world.stop()
        await node.lease()
        await world.start()
        assert link.link is not None
        link.link.hurry()
        await until_hours(world, 1.0)


async def test_a_lease_is_not_of_a_job_that_the_coordinator_did_not_send_there(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    """Else a node could charge its own leases to any person of the pool."""
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await world.submit()
        await node.lease(pool=POOL, job="0123456789", attempt=1, owner="bob")
        await linked(machine, stack)
        # The job of that name was placed there meanwhile, so it counts; a job of no such name does not.
        await node.lease(pool=POOL, job="9999999999", attempt=1, owner="bob")
        await until_hours(world, 1.0)
        found = {one.summary.lease: one for one in await world.coordinator.history.leases(EVERYTHING, 9)}
        assert found[LeaseId("l-2")].summary.owner == "bob@n1"
        assert found[LeaseId("l-2")].summary.job == ""


async def test_an_older_node_is_not_asked(world: World, machine: Machine) -> None:
    async with AsyncExitStack() as stack:
        await linked(machine, stack)
        with pytest.raises(StateConflict, match="cannot tell its history"):
            await world.coordinator.link.ask(machine.name, codec.HISTORY, b"", 1.0)  # type: ignore[arg-type]


async def test_a_history_that_cannot_be_written_is_told_of_and_jobs_go_on(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await world.coordinator.history.accounts(EVERYTHING)
        (world.folder / "state" / "history.db").unlink()
        await node.lease()
        await linked(machine, stack)
        async with asyncio.timeout(WAIT_SECONDS):
            while "history of the nodes is behind" not in world.coordinator.troubles.of("history"):
                await world.coordinator.loop.changed(0.05)
        await world.submit()
        await world.until(lambda job: job.attempts == 1)


# --- who sees what -----------------------------------------------------------------------------------


@asynccontextmanager
async def asking(
    world: World, machine: Machine, folder: Path
) -> AsyncIterator[Callable[..., Awaitable[history_pb2.EndedResponse]]]:
    """Leases of ada and bob in the pool's history, and a way to ask for them as a user of the node."""
    async with recorded(machine, folder) as node, AsyncExitStack() as stack:
        await node.lease()
        await node.lease(owner="bob")
        link = await linked(machine, stack)
        await until_hours(world, 1.0)
        calls = CoordinatorCalls(
            link.channel,
            machine.enrolment.asserter,
            lambda caller: f"{caller.name}@n1",
            lambda _: (),
            time.time,
        )

        async def ask(name: str, **window: object) -> history_pb2.EndedResponse:
            asked = history_pb2.EndedRequest(window=history_pb2.HistoryWindow(**window))  # type: ignore[arg-type]
            caller = Caller(1000, 1000, name)
            answer: history_pb2.EndedResponse = await calls.call(
                "Ended", asked, caller, WAIT_SECONDS, stub=history_pb2_grpc.HistoryStub
            )
            return answer

        yield ask


async def again(world: World, others: Others) -> None:
    await world.stop()
    world.privacy = PrivacyConfig(others)
    world.users = {"boss": UserConfig(principals=("boss@n1",), admin=True)}
    await world.start()


@pytest.mark.parametrize("others", [Others.NOTHING, Others.TOTALS])
async def test_users_see_their_own_leases_and_administrators_see_all(
    world: World, machine: Machine, tmp_path: Path, others: Others
) -> None:
    await again(world, others)
    async with asking(world, machine, tmp_path) as ask:
        assert [one.owner for one in (await ask("ada")).leases] == ["ada@n1"]
        assert {one.owner for one in (await ask("boss")).leases} == {"ada@n1", "bob@n1"}
        assert not (await ask("root")).leases
        with pytest.raises(PermissionRefused):
            await ask("ada", user="bob@n1")


async def test_users_see_the_leases_of_others_where_the_site_says_so(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    await again(world, Others.LEASES)
    async with asking(world, machine, tmp_path) as ask:
        assert {one.owner for one in (await ask("ada")).leases} == {"ada@n1", "bob@n1"}
        assert [one.owner for one in (await ask("ada", user="bob@n1")).leases] == ["bob@n1"]
        assert not (await ask("ada", node="n2")).leases


# --- lies --------------------------------------------------------------------------------------------

PART = HistoryPart(1, NOW_MS, 0, HistoryPosition(1), more=False)
SPAN = Span(LeaseId("l-1"), "vision", NOW_MS - 1000, NOW_MS, GpuId("GPU-0"), 500, MIB)
LIES = {
    "too many": replace(PART, spans=tuple((number, SPAN) for number in range(1, 2000))),
    "backwards": replace(PART, spans=((1, replace(SPAN, start_ms=NOW_MS + 1)),)),
    "in the future": replace(PART, open_spans=(replace(SPAN, end_ms=NOW_MS + HOUR_MS),)),
    "more than a GPU": replace(PART, spans=((1, replace(SPAN, permille=5000)),)),
    "before all GPUs": replace(PART, spans=((1, replace(SPAN, start_ms=0)),)),
    "in the future by the coordinator's clock": replace(PART, at_ms=NOW_MS + 30 * 24 * HOUR_MS),
    "in the future by the distance of clocks": replace(PART, ahead_ms=30 * 24 * HOUR_MS),
    "more memory than a GPU": replace(PART, spans=((1, replace(SPAN, memory_bytes=1 << 50)),)),
    "a lease of the future": replace(PART, leases=(replace(SUMMARY, ended_at=1e11),)),
    "a time": replace(PART, at_ms=1 << 60),
    "a number below zero": replace(PART, spans=((-1, SPAN),)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_impossible_part_is_refused(lie: str) -> None:
    with pytest.raises(RequestError):
        read_part(unpack(part_bytes(LIES[lie])), NOW_MS)


def test_a_part_that_unpacks_to_too_much_is_refused_before_it_does() -> None:
    with pytest.raises(RequestError, match="too long"):
        unpack(zlib.compress(bytes(MAX_PART_BYTES + 1)))
    with pytest.raises(RequestError, match="unpacked"):
        unpack(b"no such thing")


def test_a_possible_part_is_read_as_it_was_sent() -> None:
    part = replace(PART, spans=((1, SPAN),), open_spans=(SPAN,), leases=(SUMMARY,))
    assert read_part(unpack(part_bytes(part)), NOW_MS) == part
    assert read_part(unpack(part_bytes(None)), NOW_MS) is None


class HistoryNode:
    """A node n1 that answers with one part of its history."""

    def __init__(self, part: HistoryPart) -> None:
        self.part = part
        self.asked = 0

    def answering(self, what: str) -> frozenset[NodeName]:
        return frozenset({NodeName("n1")} if what == codec.HISTORY else ())

    async def ask(self, node: NodeName, what: str, body: bytes, timeout_seconds: float) -> bytes:
        self.asked += 1
        return part_bytes(self.part)


def gatherer_of(told: HistoryNode, history: SqliteHistory, job: Job | None) -> HistoryGatherer:
    async def job_of(name: JobId) -> Job | None:
        return job if name == JOB else None

    owners = LeaseOwners(
        job_of,
        lambda node, user, realm: f"{user}@{node}",
        lambda person, project: (person, project) in {("bob@n1", "robots"), (person, person)},
    )
    return HistoryGatherer(told, history, Troubles(), POOL, owners, lambda: 0.0)


async def gathered(folder: Path, *leases: LeaseSummary, ended_at: float | None = None) -> list[LeaseSummary]:
    """Return these leases of n1 as the coordinator has them; it knows ada's job with two attempts there."""
    part = TryPart(NodeName("n1"))
    submitted_at = NOW_MS / 1000 - 7200
    job = Job(JOB, 1, spec("ada"), submitted_at, Queued(0.0), project="vision", attempts=2)
    job = replace(job, tries=(Try(1, (part,), 0.0, 1.0),))
    if ended_at is not None:
        job = replace(job, state=Ended(ended_at, Succeeded()))

    history = SqliteHistory(folder / "history.db")
    for place in range(0, len(leases), 2):
        node = HistoryNode(replace(PART, leases=leases[place : place + 2]))
        await gatherer_of(node, history, job).refresh()
    found = [one.summary for one in await history.leases(EVERYTHING, 9)]
    await history.close()
    return sorted(found, key=lambda one: one.lease)


OF_JOB = replace(
    SUMMARY, owner="nobody", project="other", job=JOB, attempt=1, pool=POOL, ended_at=NOW_MS / 1000
)
FALSE_LEASES = {
    "no such attempt": replace(OF_JOB, attempt=3),
    "attempt 0": replace(OF_JOB, attempt=0),
    "before its submission": replace(OF_JOB, created_at=NOW_MS / 1000 - 3 * 86400),
    "of another pool": replace(OF_JOB, pool="elsewhere"),
    "of another job": replace(OF_JOB, job="9999999999"),
}


async def test_owner_and_project_of_a_jobs_lease_are_the_jobs(tmp_path: Path) -> None:
    (one,) = await gathered(tmp_path, OF_JOB)
    assert (one.owner, one.project, one.job, one.attempt) == ("ada", "vision", JOB, 1)


@pytest.mark.parametrize("lie", FALSE_LEASES)
async def test_a_lease_that_a_job_cannot_have_is_of_the_nodes_own_user(tmp_path: Path, lie: str) -> None:
    (one,) = await gathered(tmp_path, FALSE_LEASES[lie])
    assert (one.owner, one.project, one.job, one.attempt) == ("nobody@n1", "other@n1", "", 0)


async def test_a_lease_after_the_end_of_its_job_is_not_of_the_job(tmp_path: Path) -> None:
    (one,) = await gathered(tmp_path, OF_JOB, ended_at=NOW_MS / 1000 - 2 * 86400)
    assert one.owner == "nobody@n1"


async def test_a_lease_holds_nothing_outside_its_own_time(tmp_path: Path) -> None:
    """Else the lease of a job could book years to the job's owner."""
    history = SqliteHistory(tmp_path / "history.db")
    years = replace(SPAN, start_ms=NOW_MS - 9000 * HOUR_MS), replace(SPAN, start_ms=NOW_MS - 1000)
    waits = replace(years[0], gpu=None), replace(years[1], gpu=None)
    spans = tuple(enumerate(years + waits, 1))
    forged = replace(PART, leases=(replace(OF_JOB, lease=SPAN.lease),), spans=spans)
    await history.write(forged.batch("n1"))
    (wait,) = await history.waits(EVERYTHING)
    exported = await history.export(ExportKind.SPANS, EVERYTHING, "")
    (account,) = await history.accounts(EVERYTHING)
    (lease,) = await history.leases(EVERYTHING, 9)
    await history.close()
    assert account.account.held_permille_ms == lease.account.held_permille_ms == 500 * 1000
    assert wait.waited_ms == lease.waited_ms == 1000
    assert len(exported.rows) == 2


async def test_an_attempt_of_a_job_has_one_lease_on_a_node(tmp_path: Path) -> None:
    """Whether the node names another one at once or in a later part."""
    names = [LeaseId(f"l-{number}") for number in range(1, 5)]
    found = await gathered(tmp_path, *(replace(OF_JOB, lease=name) for name in names))
    assert [one.owner for one in found] == ["ada", *["nobody@n1"] * 3]


async def test_a_nodes_user_counts_to_projects_of_the_pool_by_the_pools_table(tmp_path: Path) -> None:
    found = await gathered(
        tmp_path,
        replace(OF_JOB, lease=LeaseId("l-1"), job="", owner="bob", project="robots"),
        replace(OF_JOB, lease=LeaseId("l-2"), job="", owner="bob", project="vision"),
        replace(OF_JOB, lease=LeaseId("l-3"), job="", owner="bob", project="bob"),
        replace(OF_JOB, lease=LeaseId("l-4"), job="", owner="bob", project=""),
    )
    assert [one.project for one in found] == ["robots", "vision@n1", "bob@n1", ""]


async def test_what_is_held_counts_to_the_project_of_the_lease(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    """A node could name another project for each span."""
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await node.lease(project="mine")
        await linked(machine, stack)
        assert [one.project for one in await until_hours(world, 0.5)] == ["mine@n1"]


def test_a_bad_text_is_replaced_and_the_other_rows_are_taken() -> None:
    bad = replace(SUMMARY, owner="a\nb", image="a" * 300, outcome_text="\x1b")
    good = replace(SUMMARY, lease=LeaseId("l-2"))
    part = replace(PART, leases=(bad, good), waits=((good.lease, "a\nb", 1),))
    read = read_part(unpack(part_bytes(part)), NOW_MS)
    assert read is not None
    assert read.leases == (replace(bad, owner="a b", image="a" * 256, outcome_text=" "), good)
    assert read.waits == ((good.lease, "a b", 1),)


def test_waits_of_no_lease_are_dropped() -> None:
    part = replace(PART, leases=(SUMMARY,), waits=((SUMMARY.lease, "gpus", 1), (LeaseId("l-9"), "gpus", 1)))
    read = read_part(unpack(part_bytes(part)), NOW_MS)
    assert read is not None
    assert read.waits == ((SUMMARY.lease, "gpus", 1),)


async def test_a_node_sends_no_more_in_a_day_than_its_parts_take_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_gatherer, "MAX_BYTES_A_DAY", 100_000)
    node = HistoryNode(replace(PART, more=True, waits=((SUMMARY.lease, "a", 1),) * 20_000))
    assert len(part_bytes(node.part)) < 100_000 < len(unpack(part_bytes(node.part)))
    history = SqliteHistory(tmp_path / "history.db")
    await gatherer_of(node, history, None).refresh()
    await history.close()
    assert node.asked == 1


async def test_the_gpus_of_a_node_are_bounded(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path / "history.db")
    for number in range(2):
        gpus = tuple(GpuFacts(GpuId(f"GPU-{number}-{one}"), "0", "H100", 1) for one in range(400))
        await history.write(replace(PART, gpus=gpus).batch("n1"))
        await history.write(replace(PART, gpus=gpus[:1]).batch("n1"))
    part = await history.part(HistoryPosition(), POOL, "n1")
    await history.close()
    assert part is not None
    assert len(part.gpus) == 512


async def test_long_and_broken_words_of_a_user_hold_up_nobodys_history(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await node.lease(pool=POOL, outcome_text="no start:\nstderr", models="H100," * 100)
        await node.lease()
        part = await node.file.part(HistoryPosition(), POOL, "n1")
        assert part is not None
        assert all(
            len(text) <= 256 and text.isprintable()
            for text in (part.leases[0].models, part.leases[0].outcome_text)
        )
        await linked(machine, stack)
        await until_hours(world, 1.0)


async def test_a_history_that_stands_still_is_told_of(world: World, machine: Machine, tmp_path: Path) -> None:
    async with recorded(machine, tmp_path) as node, AsyncExitStack() as stack:
        await node.lease(created_at=1e11)
        await linked(machine, stack)
        troubles = world.coordinator.troubles
        async with asyncio.timeout(WAIT_SECONDS):
            while "the history of n1 stands still" not in troubles.of("history-of-nodes"):
                await world.coordinator.loop.changed(0.05)
        await node.lease(lease=LeaseId("l-1"))
        async with asyncio.timeout(WAIT_SECONDS):
            while troubles.of("history-of-nodes"):
                await world.coordinator.loop.changed(0.05)


async def test_a_waiting_job_is_reported_to_its_owner_and_to_nobody_else(
    world: World, machine: Machine, tmp_path: Path
) -> None:
    async with recorded(machine, tmp_path), AsyncExitStack() as stack:
        link = await linked(machine, stack)
        await world.submit()
        await world.until(lambda job: job.attempts == 1)
        calls = CoordinatorCalls(
            link.channel,
            machine.enrolment.asserter,
            lambda caller: f"{caller.name}@n1",
            lambda _: (),
            time.time,
        )

        async def report(name: str) -> history_pb2.ReportResponse:
            asked = history_pb2.ReportRequest(name=JOB)
            answer: history_pb2.ReportResponse = await calls.call(
                "Report", asked, Caller(1, 1, name), WAIT_SECONDS, stub=history_pb2_grpc.HistoryStub
            )
            return answer

        assert (await report("ada")).job.owner == "ada@n1"
        with pytest.raises(NotFound):
            await report("bob")
