"""The calls of the history: who sees what of others, and what the answers add up to."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpushared.api.v1 import history_pb2
from gpushared.config.history_settings import Others
from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.model.errors import GpushareError, NotFound, PermissionRefused, RequestError
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import Ended, Finished, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.span import Span
from gpushared.net.history_service import HistoryApi, Rights
from gpushared.node.runtime.use_series import SeriesSample, UseSeries
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS, HourUse
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, KeepHistory, SourceName
from gpushared.testing import fake_lease

EXPORT_PAGE = (Path(__file__).parents[2] / "docs/reference/history.md").read_text(encoding="utf-8")
BEGIN = 490_000 * HOUR_MS
GPU = GpuId("GPU-0")
ALICE, BOB = Caller(1000, 1000, "alice"), Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
BOX = SourceName("box", 1)


def summary(number: int, owner: Caller, minutes: tuple[int, int], **facts: object) -> LeaseSummary:
    lease = fake_lease(number, Ended(Finished(0), (BEGIN + minutes[1] * MINUTE_MS) / 1000))
    made = replace(
        summary_of(lease),
        lease=LeaseId(f"l-{number}"),
        owner_uid=owner.uid,
        owner=owner.name,
        project=f"of-{owner.name}",
        image="secret:1",
        outcome_text="there is no image secret:1",
        container_name=f"box-{number}",
        created_at=(BEGIN + minutes[0] * MINUTE_MS) / 1000,
    )
    return replace(made, **facts)  # type: ignore[arg-type]  # the tests name fields


def span(number: int, minutes: tuple[int, int], gpu: GpuId | None = GPU, mib: int = 20_000) -> Span:
    begin, end = (BEGIN + minute * MINUTE_MS for minute in minutes)
    permille = mib * 1000 // 80_000
    return Span(LeaseId(f"l-{number}"), "p", begin, end, gpu, permille if gpu else 0, mib * MIB if gpu else 0)


def worked(minutes: tuple[int, int], use: float, mib: int) -> UseSeries:
    series = UseSeries(1)
    for minute in range(*minutes):
        for second in range(0, 60, 10):
            at_ms = BEGIN + minute * MINUTE_MS + second * 1000
            series.take(at_ms, SeriesSample(250, 20_000, use, mib), 10_000)
    return series


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[SqliteHistory]:
    """Alice held the whole GPU for half an hour; bob waited for it, then used a third of his quarter."""
    store = SqliteHistory(tmp_path / "history.db")
    series = worked((30, 60), 0.5, 6_000)
    await store.write(
        HistoryBatch(
            BOX,
            BEGIN + HOUR_MS,
            gpus=(GpuFacts(GPU, "0", "H100", 80_000),),
            leases=(
                summary(1, ALICE, (0, 30)),
                summary(2, BOB, (10, 60), job="k3m9x0p2qa", attempt=1, time_limit_seconds=8 * 3600),
            ),
            spans=(
                (1, span(1, (0, 30), mib=70_000)),
                (2, span(2, (10, 30), None)),
                (3, span(2, (30, 60))),
            ),
            waits={(LeaseId("l-2"), "resources"): 20 * MINUTE_MS},
            uses={(LeaseId("l-2"), GPU): series.changes()},
        )
    )
    yield store
    await store.close()


def api(history: SqliteHistory, others: Others = Others.LEASES, *, by_name: bool = False) -> HistoryApi:
    async def flush() -> None:
        pass

    return HistoryApi(history, flush, Rights(lambda: others, by_name=by_name), simulated=lambda: True)


def of(**window: object) -> history_pb2.HistoryWindow:
    return history_pb2.HistoryWindow(**window)  # type: ignore[arg-type]  # the tests name fields


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_caller_makes_one_call_at_a_time_and_others_do_not_wait(
    history: SqliteHistory, *, by_name: bool
) -> None:
    """Else the calls of one would fill the queue of the file's only thread."""
    under_way, let_go = list[str](), asyncio.Event()

    async def flush() -> None:
        under_way.append("call")
        await let_go.wait()

    rights = Rights(lambda: Others.LEASES, by_name=by_name)
    calls = HistoryApi(history, flush, rights, simulated=lambda: True).calls()

    async def ask(call: str, caller: Caller) -> None:
        unary = calls[f"gpushare.v1.History/{call}"]
        await unary.call(unary.request(), caller)

    names = ("Ended", "Usage", "Waits", "Jobs", "Export")
    alices = [asyncio.create_task(ask(name, ALICE)) for name in names]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(under_way) == 1
    bobs = asyncio.create_task(ask("Usage", BOB))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(under_way) == 2
    let_go.set()
    await asyncio.gather(*alices, bobs)
    assert len(under_way) == len(alices) + 1


async def test_impossible_figures_in_the_file_spoil_no_answer(history: SqliteHistory) -> None:
    """A file may hold what a malicious node told before its figures were bounded."""
    year_9999 = 253_402_300_799_000
    spans = tuple((number, Span(LeaseId("l-3"), "p", 0, year_9999, GPU, 1000, 1 << 50)) for number in (1, 2))
    evil = summary(3, BOB, (0, 30), created_at=0.0, ended_at=year_9999 / 1000)
    uses = {("l-3", str(GPU)): [HourUse(hour, memory_used_mib_ms=1 << 62) for hour in (1, 2, 3)]}
    await history.write(
        HistoryBatch(SourceName("evil", 1), year_9999, leases=(evil,), spans=spans, uses=uses)
    )
    one = api(history)
    assert len((await one.ended(history_pb2.EndedRequest(), ALICE)).leases) == 3
    (report,) = (await one.report(history_pb2.ReportRequest(name="l-3"), ROOT)).leases
    assert report.lease.account.held_mib_seconds == (1 << 63) - 1
    assert (await one.usage(history_pb2.UsageRequest(), ROOT)).total.account.held_gpu_ms
    assert (await one.waits(history_pb2.WaitsRequest(), ROOT)).rows


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("others", "caller", "leases", "users"),
    [
        (Others.LEASES, ALICE, ["l-2", "l-1"], ["alice", "bob"]),
        (Others.TOTALS, ALICE, ["l-1"], ["alice", "bob"]),
        (Others.NOTHING, ALICE, ["l-1"], ["alice"]),
        (Others.NOTHING, ROOT, ["l-2", "l-1"], ["alice", "bob"]),
    ],
)
async def test_of_others_everybody_sees_what_the_site_allows(
    history: SqliteHistory,
    others: Others,
    caller: Caller,
    leases: list[str],
    users: list[str],
    *,
    by_name: bool,
) -> None:
    one = api(history, others, by_name=by_name)
    ended = await one.ended(history_pb2.EndedRequest(), caller)
    assert [lease.id for lease in ended.leases] == leases
    assert [row.key for row in (await one.usage(history_pb2.UsageRequest(), caller)).rows] == users
    waits = await one.waits(history_pb2.WaitsRequest(by="user"), caller)
    assert sorted(row.key for row in waits.rows) == users
    exported = await one.export(history_pb2.ExportRequest(kind="leases"), caller)
    assert sorted(json.loads(row)["lease"] for row in exported.rows) == sorted(leases)
    spans = await one.export(history_pb2.ExportRequest(kind="spans"), caller)
    assert {json.loads(row)["lease"] for row in spans.rows} == set(leases)


async def test_names_of_images_and_containers_are_for_their_owner_and_trusted_callers(
    history: SqliteHistory,
) -> None:
    one = api(history)
    for caller, seen in ((ALICE, {"l-1"}), (BOB, {"l-2"}), (ROOT, {"l-1", "l-2"})):
        ended = await one.ended(history_pb2.EndedRequest(), caller)
        assert {lease.id for lease in ended.leases if lease.image or lease.container_name} == seen
        exported = await one.export(history_pb2.ExportRequest(), caller)
        rows = [json.loads(row) for row in exported.rows]
        assert {row["lease"] for row in rows if row["image"] or row["container_name"]} == seen
        assert {lease.id for lease in ended.leases if "secret" in str(lease)} == seen
        assert {row["lease"] for row in rows if "secret" in str(row)} == seen
        report = await one.report(history_pb2.ReportRequest(name="l-2"), caller)
        assert bool(report.leases[0].lease.image) == ("l-2" in seen)


@pytest.mark.parametrize("user", ["bob", "1001"])
async def test_another_user_is_refused_where_only_own_leases_are_shown(
    history: SqliteHistory, user: str
) -> None:
    one = api(history, Others.TOTALS)
    with pytest.raises(PermissionRefused):
        await one.ended(history_pb2.EndedRequest(window=of(user=user)), ALICE)
    assert len((await one.ended(history_pb2.EndedRequest(window=of(user=user)), BOB)).leases) == 1
    with pytest.raises(NotFound):
        await one.report(history_pb2.ReportRequest(name="l-2"), ALICE)


async def test_usage_adds_up_in_each_grouping(history: SqliteHistory) -> None:
    one = api(history)
    window = of(since=BEGIN / 1000, until=(BEGIN + HOUR_MS) / 1000)
    for by in ("user", "project", "class", "gpu", "node", "model", "day", "week"):
        answer = await one.usage(history_pb2.UsageRequest(window=window, by=by), ROOT)
        held = sum(row.account.held_gpu_ms for row in answer.rows)
        assert held == answer.total.account.held_gpu_ms == (875 + 250) * 30 * MINUTE_MS // 1000
    total = answer.total.account
    assert total.unseen_gpu_ms == 875 * 30 * MINUTE_MS // 1000
    assert total.well_used_gpu_ms + total.too_big_gpu_ms == total.active_gpu_ms == 250 * 30 * 60
    assert total.use_of_held_ratio == pytest.approx(0.5)
    assert (answer.waited_requests, answer.waited_ms) == (1, 20 * MINUTE_MS)


class WatchedHistory:
    """Stand in for a history of one lease, and note the thread that looks at the row."""

    def __init__(self) -> None:
        self.threads = set[int]()
        self.source, self.lease, self.owner = 1, "l-1", "bob"
        self.waited_ms, self.waits_still = 5, False

    @property
    def account(self) -> Account:
        self.threads.add(threading.get_ident())
        return Account()

    @property
    def reasons(self) -> dict[str, int]:
        self.threads.add(threading.get_ident())
        return {"resources": 5}

    async def accounts(self, _: HistoryFilter) -> list[WatchedHistory]:
        return [self]

    async def waits(self, _: HistoryFilter) -> list[WatchedHistory]:
        return [self]


async def test_sums_are_made_beside_the_loop() -> None:
    watched = WatchedHistory()
    one = api(cast("SqliteHistory", watched))
    window = of(since=time.time() - 60)
    for by in ("user", "week"):
        await one.usage(history_pb2.UsageRequest(window=window, by=by), ROOT)
    await one.waits(history_pb2.WaitsRequest(by="reason"), ROOT)
    assert watched.threads
    assert threading.get_ident() not in watched.threads


async def test_waits_count_requests_that_started_at_once(history: SqliteHistory) -> None:
    answer = await api(history).waits(history_pb2.WaitsRequest(), ROOT)
    assert (answer.total.requests, answer.total.waited) == (2, 1)
    assert (answer.total.p50_ms, answer.total.p90_ms) == (0, 20 * MINUTE_MS)
    by_reason = await api(history).waits(history_pb2.WaitsRequest(by="reason"), ROOT)
    assert [(row.key, row.total_ms) for row in by_reason.rows] == [("resources", 20 * MINUTE_MS)]


@pytest.mark.parametrize("name", ["l-2", "k3m9x0p2qa"])
async def test_a_report_says_what_would_have_been_better(history: SqliteHistory, name: str) -> None:
    answer = await api(history).report(history_pb2.ReportRequest(name=name), BOB)
    (report,) = answer.leases
    assert (report.lease.id, report.lease.job, report.lease.ran_ms) == ("l-2", "k3m9x0p2qa", 30 * MINUTE_MS)
    assert [(one.reason, one.waited_ms) for one in report.reasons] == [("resources", 20 * MINUTE_MS)]
    assert {point.use_ratio for point in report.curve} == {0.5}
    assert len(report.curve) == 30
    notes = {note.kind: note for note in report.notes}
    assert set(notes) == {"memory_too_big", "time_limit"}
    assert notes["memory_too_big"].mend == "--gpu-memory 7g"
    assert "would have started 20m earlier" in notes["memory_too_big"].text
    assert notes["time_limit"].mend == "--time 1h"


async def test_leases_of_two_journals_with_the_same_id_are_told_apart(history: SqliteHistory) -> None:
    """Bob's first lease of the new journal has the id of his last one."""
    later = (70, 100)
    await history.write(
        HistoryBatch(
            SourceName(BOX.node, 2),
            BEGIN + 2 * HOUR_MS,
            gpus=(GpuFacts(GPU, "0", "H100", 80_000),),
            leases=(summary(2, BOB, later),),
            spans=((1, span(2, later)),),
            uses={(LeaseId("l-2"), GPU): worked(later, 0.25, 6_000).changes()},
        )
    )
    usage = await api(history).usage(history_pb2.UsageRequest(), ROOT)
    assert usage.total.leases == 3
    (report,) = (await api(history).report(history_pb2.ReportRequest(name="l-2"), BOB)).leases
    assert report.lease.ran_ms == 30 * MINUTE_MS
    assert list(report.reasons) == []
    assert not report.HasField("worst_gpu_ratio")
    assert {point.use_ratio for point in report.curve} == {0.25}
    assert "would have been enough" in report.notes[0].text


async def test_a_curve_of_hours_has_all_of_a_run_that_was_within_one(history: SqliteHistory) -> None:
    """As in a pool, whose coordinator has no minutes."""
    await history.prune(KeepHistory(minutes_days=1, hours_days=9), BEGIN + 3 * 24 * HOUR_MS)
    answer = await api(history).report(history_pb2.ReportRequest(name="l-2"), BOB)
    assert [point.use_ratio for point in answer.leases[0].curve] == [0.5] * 30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("usage", history_pb2.UsageRequest(by="colour")),
        ("usage", history_pb2.UsageRequest(by="day")),
        ("usage", history_pb2.UsageRequest(window=of(since=float("nan")))),
        ("waits", history_pb2.WaitsRequest(by="day")),
        ("ended", history_pb2.EndedRequest(limit=-1)),
        ("ended", history_pb2.EndedRequest(window=of(**{"class": "gold"}))),
        ("report", history_pb2.ReportRequest()),
        ("export", history_pb2.ExportRequest(kind="secrets")),
        ("export", history_pb2.ExportRequest(page_token="x:1")),
        ("export", history_pb2.ExportRequest(page_token="9" * 5000)),
        ("export", history_pb2.ExportRequest(page_token="\u0663:l-1")),
        ("export", history_pb2.ExportRequest(kind="spans", page_token="1:abc")),
        ("export", history_pb2.ExportRequest(kind="spans", page_token=f"1:{'9' * 19}")),
        ("export", history_pb2.ExportRequest(kind="hours", page_token="1:x.y")),
        ("export", history_pb2.ExportRequest(kind="minutes", page_token=f"1:{'9' * 30}.1")),
        ("export", history_pb2.ExportRequest(kind="hours", page_token="1:1")),
    ],
)
async def test_what_cannot_be_answered_is_refused_in_a_sentence(
    history: SqliteHistory, call: str, message: object
) -> None:
    with pytest.raises(RequestError) as refused:
        await getattr(api(history), call)(message, ROOT)
    assert isinstance(refused.value, GpushareError)
    assert refused.value.hint


async def test_a_user_of_many_digits_is_nobody(history: SqliteHistory) -> None:
    answer = await api(history).usage(history_pb2.UsageRequest(window=of(user="9" * 99)), ROOT)
    assert list(answer.rows) == []


async def test_an_export_goes_on_from_page_to_page(history: SqliteHistory) -> None:
    for kind, expected in (("leases", 2), ("spans", 3), ("hours", 1), ("minutes", 30)):
        rows, token, pages = [], "", 0
        while True:
            page = await api(history).export(history_pb2.ExportRequest(kind=kind, page_token=token), ROOT)
            rows += [json.loads(row) for row in page.rows]
            token, pages = page.next_page_token, pages + 1
            assert pages < 9
            if not token:
                break
        assert len(rows) == expected, kind
        assert all(set(row) == set(page.columns) for row in rows), kind
        assert all(f"`{name}`" in EXPORT_PAGE for name in page.columns), kind
        assert all(row["node"] == "box" for row in rows)
