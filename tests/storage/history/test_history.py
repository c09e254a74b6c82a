"""The history's file: what was written is found again in any time, once, and stays as long as promised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import Ended, Finished, LeaseId
from gpushared.domain.model.span import Span
from gpushared.node.runtime.use_series import SeriesSample, UseSeries
from gpushared.storage.history import HistoryFile
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS
from gpushared.storage.history.records import (
    GpuFacts,
    HistoryBatch,
    HistoryFilter,
    KeepHistory,
    SeriesName,
    SourceName,
)
from gpushared.testing import fake_lease

GPU, LEASE = GpuId("GPU-0"), LeaseId("l-1")
HOME = SourceName("box", 7)
BEGIN = 500_000 * HOUR_MS
NEW = HistoryFilter()
SERIES = SeriesName("box", GPU, LEASE)


@pytest.fixture
def history(tmp_path: Path) -> HistoryFile:
    return HistoryFile(tmp_path / "history.db", busy_seconds=1.0)


def summary(ended_ms: int | None = None) -> LeaseSummary:
    lease = fake_lease(1) if ended_ms is None else fake_lease(1, Ended(Finished(0), ended_ms / 1000))
    return replace(summary_of(lease), created_at=BEGIN / 1000)


def held(minutes: tuple[float, float], permille: int = 250, mib: int = 20_000) -> Span:
    start, end = (BEGIN + round(minute * MINUTE_MS) for minute in minutes)
    return Span(LEASE, "vision", start, end, GPU, permille, mib * MIB)


def worked(series: UseSeries, minutes: tuple[int, int], use: float | None, mib: int | None) -> None:
    for at_ms in range(BEGIN + minutes[0] * MINUTE_MS + 1000, BEGIN + minutes[1] * MINUTE_MS + 1, 1000):
        series.take(at_ms - 1, SeriesSample(250, 20_000, use, mib), 1000)


def batch(**parts: object) -> HistoryBatch:
    made = HistoryBatch(HOME, BEGIN + 3 * HOUR_MS, gpus=(GpuFacts(GPU, "0", "H100", 80_000),))
    return replace(made, **parts)  # type: ignore[arg-type]  # the tests name fields


def account_of(history: HistoryFile, wanted: HistoryFilter = NEW) -> Account:
    return sum((one.account for one in history.accounts(wanted)), Account())


def test_what_a_lease_held_and_used_is_split_into_active_and_idle(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 30), 0.5, 5_000)
    worked(series, (30, 40), 0.0, 10_000)
    uses = {(LEASE, GPU): series.changes()}
    spans = ((1, held((0, 60))),)
    history.write(batch(leases=(summary(BEGIN + HOUR_MS),), spans=spans, uses=uses))
    (one,) = history.accounts(NEW)
    assert (one.gpu_label, one.model, one.owner, one.project) == ("0", "H100", "user1000", "vision")
    account = one.account
    assert account.gpu_hours == pytest.approx(0.25)
    assert account.idle_hours == pytest.approx(0.25 * 10 / 60)
    assert account.unseen_hours == pytest.approx(0.25 * 20 / 60)
    # It held 20 000 MiB and never used more than a half of that.
    assert account.too_big_hours == pytest.approx(0.25 * 30 / 60 / 2)
    assert account.use_of_held_ratio == pytest.approx(0.5 * 30 / 40)
    assert account.memory_of_held_ratio == pytest.approx((5_000 * 30 + 10_000 * 10) / 40 / 20_000)


def test_a_batch_that_is_written_again_changes_nothing(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 10), 0.5, 5_000)
    whole = batch(
        leases=(summary(),),
        spans=((1, held((0, 60))),),
        open_spans=(held((60, 90)),),
        waits={(LEASE, "no-gpu"): 5000},
        uses={(LEASE, GPU): series.changes()},
    )
    history.write(whole)
    before = (account_of(history), history.waits(NEW), history.leases(replace(NEW, lease=LEASE), 9))
    history.write(whole)
    assert (account_of(history), history.waits(NEW), history.leases(replace(NEW, lease=LEASE), 9)) == before


def test_times_are_cut_to_the_window_and_shifted_to_the_time_of_day(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 60), 1.0, 5_000)
    uses = {(LEASE, GPU): series.changes()}
    spans = ((1, held((0, 60))),)
    history.write(batch(ahead_ms=HOUR_MS, leases=(summary(BEGIN + HOUR_MS),), spans=spans, uses=uses))
    day = BEGIN + HOUR_MS
    account = account_of(history, HistoryFilter(day + 15 * MINUTE_MS, day + 45 * MINUTE_MS))
    assert account.held_permille_ms == 250 * 30 * MINUTE_MS
    assert account.active_permille_ms == 250 * 30 * MINUTE_MS
    assert account_of(history, HistoryFilter(day + HOUR_MS, day + 2 * HOUR_MS)) == Account()


def test_points_are_those_that_meet_the_time(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 30), 0.5, 5_000)
    uses = {(LEASE, GPU): series.changes()}
    history.write(batch(leases=(summary(),), open_spans=(held((0, 30)),), uses=uses))
    begin, end = BEGIN + 10 * MINUTE_MS + 1, BEGIN + 12 * MINUTE_MS
    assert [point.at_ms for point in history.points(SERIES, begin, end)] == [
        BEGIN + minute * MINUTE_MS for minute in (10, 11)
    ]
    (hour,) = history.points(SERIES, begin, end, by_hour=True)
    history.prune(KeepHistory(minutes_days=1, hours_days=9), BEGIN + 3 * 24 * HOUR_MS)
    assert history.points(SERIES, begin, end) == [hour]
    assert (hour.at_ms, hour.length_ms) == (BEGIN, HOUR_MS)
    assert hour.minute.use_mean_ratio == pytest.approx(0.5)


def test_a_part_of_an_hour_has_what_its_own_minutes_say(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 30), 1.0, 4_000)
    worked(series, (30, 45), 0.0, None)
    worked(series, (45, 60), 0.0, 12_000)
    uses = {(LEASE, GPU): series.changes()}
    history.write(batch(leases=(summary(BEGIN + HOUR_MS),), spans=((1, held((0, 60))),), uses=uses))
    half = BEGIN + 30 * MINUTE_MS
    busy, rest = (
        account_of(history, HistoryFilter(*bounds)) for bounds in ((BEGIN, half), (half, NEW.until_ms))
    )
    assert (busy.active_permille_ms, busy.idle_permille_ms) == (250 * 30 * MINUTE_MS, 0)
    assert (rest.active_permille_ms, rest.idle_permille_ms) == (0, 250 * 30 * MINUTE_MS)
    assert (busy.use_of_held_ratio, rest.use_of_held_ratio) == (1.0, 0.0)
    assert (busy.memory_seen_mib_ms, rest.memory_seen_mib_ms) == (
        20_000 * 30 * MINUTE_MS,
        20_000 * 15 * MINUTE_MS,
    )
    assert (busy.memory_of_held_ratio, rest.memory_of_held_ratio) == (0.2, 0.6)


def test_a_lease_waited_for_reasons(history: HistoryFile) -> None:
    waited = Span(LEASE, "vision", BEGIN, BEGIN + 9000)
    history.write(batch(leases=(summary(),), spans=((1, waited),), waits={(LEASE, "no-gpu"): 8000}))
    (wait,) = history.waits(NEW)
    assert (wait.waited_ms, wait.waits_still, wait.reasons) == (9000, False, {"no-gpu": 8000})


def test_old_minutes_and_hours_go_and_the_figures_of_a_lease_stay(history: HistoryFile) -> None:
    series = UseSeries(1)
    worked(series, (0, 30), 0.5, 5_000)
    uses = {(LEASE, GPU): series.changes()}
    spans = ((1, held((0, 60))),)
    history.write(batch(leases=(summary(BEGIN + HOUR_MS),), spans=spans, uses=uses))
    (before,) = history.leases(NEW, 9)
    assert len(history.points(SERIES, 0, 2**60)) == 30
    history.prune(KeepHistory(minutes_days=1, hours_days=9), BEGIN + 3 * 24 * HOUR_MS)
    (point,) = history.points(SERIES, 0, 2**60)
    assert point.minute.use_mean_ratio == pytest.approx(0.5)
    history.prune(KeepHistory(minutes_days=1, hours_days=9), BEGIN + 30 * 24 * HOUR_MS)
    assert history.points(SERIES, 0, 2**60) == []
    (after,) = history.leases(NEW, 9)
    assert after == before
    assert (after.peak_mib, after.held_mib, after.use_max_ratio) == (5_000, 20_000, 0.5)


def test_what_an_older_journal_left_open_is_over_with_an_unknown_outcome(history: HistoryFile) -> None:
    history.write(batch(leases=(summary(),), open_spans=(held((0, 60)),)))
    newer = replace(batch(), source=SourceName("box", 8))
    history.write(newer)
    (one,) = history.leases(NEW, 9)
    assert (one.summary.outcome, one.ended_ms) == ("unknown", BEGIN + 3 * HOUR_MS)
    assert one.account.gpu_hours == pytest.approx(0.25)


def test_a_series_goes_on_after_a_restart_within_its_hour(history: HistoryFile) -> None:
    first, second = UseSeries(1), UseSeries(1)
    worked(first, (0, 10), 0.5, 5_000)
    leases = (summary(),)
    history.write(batch(leases=leases, growth={(LEASE, GPU): first.changes()}, number=1))
    worked(second, (20, 30), 0.0, 6_000)
    assert history.resume(HOME).batch == 1
    growth = {(LEASE, GPU): second.changes()}
    whole = batch(leases=leases, spans=((1, held((0, 60))),), growth=growth, number=2)
    history.write(whole)
    history.write(whole)  # after an answer that came too late
    account = account_of(history)
    assert account.active_permille_ms == account.idle_permille_ms == 250 * 10 * MINUTE_MS
    assert len(history.points(SERIES, 0, 2**60)) == 20


def test_a_minute_that_is_told_before_it_is_over_becomes_active_as_a_whole(history: HistoryFile) -> None:
    series = UseSeries(1)
    for second in range(60):
        seen = SeriesSample(250, 20_000, 0.0 if second < 50 else 0.6, 5_000)
        series.take(BEGIN + second * 1000, seen, 1000)
        growth = {(LEASE, GPU): series.changes()}
        history.write(batch(leases=(summary(),), growth=growth, number=second + 1))
    history.write(batch(leases=(summary(),), spans=((1, held((0, 1))),)))
    account = account_of(history)
    assert (account.active_permille_ms, account.idle_permille_ms) == (250 * MINUTE_MS, 0)
    assert account.use_of_held_ratio == pytest.approx(0.1)


def test_a_node_with_a_new_name_takes_its_history_along(history: HistoryFile) -> None:
    history.write(batch(leases=(summary(),), open_spans=(held((0, 60)),)))
    renamed = SourceName("box.lab", HOME.journal)
    history.resume(renamed)
    history.write(replace(batch(leases=(summary(),), open_spans=(held((0, 60)),)), source=renamed))
    (one,) = history.accounts(NEW)
    assert one.node == "box.lab"
    assert one.account.gpu_hours == pytest.approx(0.25)


def test_a_part_of_a_round_leaves_what_is_held_as_it_was(history: HistoryFile) -> None:
    """The last part of a round brings all of that anew, and the link may be cut before it comes."""
    history.write(batch(leases=(summary(),), open_spans=(held((0, 30)), held((30, 60)))))
    history.write(batch(leases=(summary(),), spans=((1, held((0, 30))),), open_spans=None))
    assert account_of(history).gpu_hours == pytest.approx(0.25)


def test_a_journal_that_is_put_back_goes_on_where_it_was(history: HistoryFile) -> None:
    for _ in range(2):
        history.write(batch(leases=(summary(),), open_spans=(held((0, 60)),)))
        history.write(replace(batch(), source=SourceName("box", 8)))
    history.write(batch(leases=(summary(),), open_spans=(held((0, 60)),)))
    (one,) = history.leases(replace(NEW, lease=LEASE), 9)
    assert one.ended_ms is None
    assert one.account.gpu_hours == pytest.approx(0.25)


def test_an_hour_without_minutes_is_cut_in_proportion_to_what_is_known_of_it(history: HistoryFile) -> None:
    """As in a pool, whose coordinator has hours only, and asks in the middle of one."""
    series = UseSeries(1)
    worked(series, (0, 30), 0.5, 5_000)
    (hour,) = series.changes()
    hour.minutes = bytearray()
    half = BEGIN + 30 * MINUTE_MS
    open_now = (held((0, 30)),)
    history.write(batch(at_ms=half, leases=(summary(),), open_spans=open_now, uses={(LEASE, GPU): (hour,)}))
    assert account_of(history, HistoryFilter(0, half)).active_permille_ms == 250 * 30 * MINUTE_MS
    later = HistoryFilter(BEGIN + 15 * MINUTE_MS, half)
    assert account_of(history, later).active_permille_ms == 250 * 15 * MINUTE_MS
