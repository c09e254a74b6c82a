"""Sums of the history: groups add up to the whole, advice promises no more than the queue as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.advice import Course, NoteKind, nice_memory_mib, notes
from gpushared.domain.accounting.curve import UseSample, curve, idle_at_end_ms
from gpushared.domain.accounting.grouping import (
    Grouping,
    WaitGrouping,
    grouped,
    grouped_waits,
    size_class,
    summed,
    windows,
)
from gpushared.domain.accounting.replay import GpuThen, OthersPart, QueueThen, earlier_ms

MINUTE = 60_000
HOUR = 60 * MINUTE
GIB = 1 << 30
BERLIN = ZoneInfo("Europe/Berlin")


@dataclass(frozen=True)
class Row:
    """A lease's account on a GPU."""

    source: int
    node: str
    lease: str
    owner: str
    project: str
    lease_class: str
    gpu_label: str
    model: str
    account: Account


@dataclass(frozen=True)
class Wait:
    """A lease's wait."""

    waited_ms: int
    lease_class: str = "train"
    node: str = "box"
    owner: str = "alice"
    project: str = "p"
    gpu_count: int = 1
    memory_bytes: int | None = None
    share_permille: int | None = 250
    began_ms: int = 0
    waits_still: bool = False
    reasons: Mapping[str, int] = field(default_factory=dict)


names = st.sampled_from(["a", "b", "c"])
amounts = st.integers(0, 10**15)
rows = st.lists(
    st.builds(Row, st.integers(1, 3), *[names] * 7, st.builds(Account, *[amounts] * 8)),
    max_size=30,
)
BY_NAME = [by for by in Grouping if by not in {Grouping.DAY, Grouping.WEEK}]


@given(rows, st.sampled_from(BY_NAME))
def test_groups_add_up_to_the_whole(found: Sequence[Row], by: Grouping) -> None:
    groups = grouped(found, by)
    total = summed(found)
    assert sum((group.account for group in groups), Account()) == total.account
    assert set().union(*(group.leases for group in groups)) == total.leases
    assert len({group.key for group in groups}) == len(groups)
    held = [group.account.held_permille_ms for group in groups]
    assert held == sorted(held, reverse=True)


@given(
    st.sampled_from([Grouping.DAY, Grouping.WEEK]),
    st.integers(1_700_000_000, 1_900_000_000),
    st.integers(1, 60 * 24 * 3600),
)
def test_days_and_weeks_cover_a_time_once_also_where_the_clock_is_changed(
    by: Grouping, since: int, seconds: int
) -> None:
    since_ms, until_ms = since * 1000, (since + seconds) * 1000
    found = list(windows(by, since_ms, until_ms, BERLIN))
    assert (found[0].since_ms, found[-1].until_ms) == (since_ms, until_ms)
    assert all(one.until_ms == other.since_ms for one, other in pairwise(found))
    assert all(one.since_ms < one.until_ms for one in found)
    assert [one.key for one in found] == sorted({one.key for one in found})


def test_a_day_has_23_hours_when_summer_begins() -> None:
    since = 1_774_738_800_000  # 2026-03-29 00:00 in Berlin
    (day, after) = windows(Grouping.DAY, since, since + 30 * HOUR, BERLIN)
    assert (day.key, day.until_ms - day.since_ms) == ("2026-03-29", 23 * HOUR)
    assert after.key == "2026-03-30"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_percentiles_lie_within_what_was_waited(waits: list[int]) -> None:
    (group,) = grouped_waits([Wait(ms) for ms in waits], WaitGrouping.CLASS)
    assert min(waits) <= group.p50_ms <= group.p90_ms <= group.p99_ms <= group.longest_ms == max(waits)
    assert (group.total_ms, group.requests) == (sum(waits), len(waits))
    assert sum(ms <= group.p90_ms for ms in waits) >= 0.9 * len(waits)


def test_waits_are_counted_by_reason_and_by_hour_of_the_week() -> None:
    monday_9 = 1_795_424_400_000  # 2026-11-23 09:00 UTC
    found = [
        Wait(5, began_ms=monday_9, reasons={"resources": 3, "fair_share": 2}),
        Wait(9, began_ms=monday_9 + 25 * HOUR, reasons={"resources": 9}),
    ]
    by_reason = grouped_waits(found, WaitGrouping.REASON)
    assert [(one.key, one.requests, one.total_ms) for one in by_reason] == [
        ("resources", 2, 12),
        ("fair_share", 1, 2),
    ]
    by_hour = grouped_waits(found, WaitGrouping.HOUR, ZoneInfo("UTC"))
    assert [one.key for one in by_hour] == ["Mon 09:00", "Tue 10:00"]


def test_reasons_within_a_time_are_no_longer_than_the_wait_within_it() -> None:
    """The history has reasons for a lease's whole life, and a time may have a part of it."""
    reasons = {"resources": 3 * HOUR, "fair_share": HOUR}
    found = [Wait(HOUR, reasons=reasons), Wait(5 * HOUR, reasons=reasons), Wait(0, reasons=reasons)]
    assert [(one.key, one.requests, one.total_ms) for one in grouped_waits(found, WaitGrouping.REASON)] == [
        ("resources", 2, 3 * HOUR * 5 // 4),
        ("fair_share", 2, HOUR * 5 // 4),
    ]


@pytest.mark.parametrize(
    ("count", "memory", "share", "words"),
    [
        (1, None, 125, "up to 0.125 GPU"),
        (1, None, 1000, "1 GPU"),
        (1, None, None, "1 GPU"),
        (1, 8 * GIB, None, "up to 8 GiB"),
        (1, 9 * GIB, 500, "up to 16 GiB"),
        (1, 200 * GIB, None, "over 80 GiB"),
        (3, None, 1000, "up to 4 GPUs"),
        (16, None, 1000, "over 8 GPUs"),
    ],
)
def test_sizes_have_classes(count: int, memory: int | None, share: int | None, words: str) -> None:
    assert size_class(count, memory, share)[0] == words


def queue(*held: OthersPart, ahead: Sequence[tuple[int, int]] = ()) -> QueueThen:
    """An hour of waiting for a GPU of 80 000 MiB."""
    return QueueThen(0, HOUR, [GpuThen(80_000, held)], ahead)


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        pytest.param(queue(), HOUR, id="there was room all the time"),
        pytest.param(queue(OthersPart(-5, HOUR, 875, 70_000)), HOUR, id="there was room beside a big one"),
        pytest.param(queue(OthersPart(0, HOUR, 950, 70_000)), 0, id="the compute was taken"),
        pytest.param(queue(OthersPart(0, HOUR, 875, 74_001)), 0, id="the memory was taken"),
        pytest.param(
            queue(OthersPart(0, 20 * MINUTE, 500, 75_000)),
            40 * MINUTE,
            id="room came before the lease's start",
        ),
        pytest.param(
            queue(OthersPart(0, 5 * MINUTE, 900, 75_000), OthersPart(50 * MINUTE, HOUR, 900, 75_000)),
            0,
            id="room that was taken again would have been taken from somebody",
        ),
        pytest.param(
            queue(OthersPart(0, 10 * MINUTE, 900, 75_000), ahead=[(0, 30 * MINUTE), (5, 40 * MINUTE)]),
            20 * MINUTE,
            id="nobody is overtaken who asked before",
        ),
        pytest.param(
            queue(ahead=[(30 * MINUTE, 2 * HOUR)]), HOUR, id="who came later does not stop what began"
        ),
    ],
)
def test_a_smaller_request_would_have_started_earlier(then: QueueThen, expected: int) -> None:
    assert earlier_ms(then, 6_000) == expected


moments = st.integers(0, 60).map(lambda minute: minute * MINUTE)
holdings = st.lists(
    st.builds(OthersPart, moments, moments, st.integers(0, 900), st.integers(0, 70_000)), max_size=8
)


@given(holdings, st.lists(st.tuples(moments, moments), max_size=4), st.integers(1, 80_000))
def test_the_replay_never_takes_room_that_others_had(
    held: list[OthersPart], ahead: list[tuple[int, int]], memory: int
) -> None:
    earlier = earlier_ms(queue(*held, ahead=ahead), memory)
    assert 0 <= earlier <= HOUR
    start = HOUR - earlier
    for moment in range(start, HOUR, MINUTE // 2):
        beside = [one for one in held if one.start_ms <= moment < one.end_ms]
        assert sum(one.memory_mib for one in beside) + memory <= 80_000
        assert sum(one.permille for one in beside) + memory * 1000 / 80_000 <= 1000
    assert not earlier or not any(begin <= start < end for begin, end in ahead)
    assert earlier_ms(queue(*held, ahead=ahead), max(1, memory - 500)) >= earlier


USED = Account(
    held_permille_ms=250 * 2 * HOUR,
    active_permille_ms=250 * 2 * HOUR,
    used_permille_ms=200 * HOUR,
    memory_seen_mib_ms=20_000 * 2 * HOUR,
    memory_used_mib_ms=15_000 * 2 * HOUR,
)
COURSE = Course(
    account=USED,
    gpu_count=1,
    asked_share=False,
    is_over=True,
    ended_by_itself=True,
    was_over_limit=False,
    ran_ms=2 * HOUR,
    idle_at_end_ms=0,
    time_limit_seconds=None,
    peak_mib=17_000,
    held_mib=20_000,
    queue=None,
)
IDLE = replace(USED, active_permille_ms=0, idle_permille_ms=250 * 2 * HOUR, used_permille_ms=0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"peak_mib": 7_270}, [(NoteKind.MEMORY_TOO_BIG, "--gpu-memory 8g")]),
        ({"peak_mib": 19_500}, [(NoteKind.MEMORY_NEAR_LIMIT, "--gpu-memory 22g")]),
        (
            {"peak_mib": 7_270, "was_over_limit": True, "ended_by_itself": False},
            [(NoteKind.MEMORY_NEAR_LIMIT, "--gpu-memory 22g")],
        ),
        ({"account": IDLE, "peak_mib": 0}, [(NoteKind.NO_KERNEL, "gpushare run --rm IMAGE nvidia-smi")]),
        ({"idle_at_end_ms": 45 * MINUTE}, [(NoteKind.IDLE_AT_END, "gpushare stop")]),
        ({"time_limit_seconds": 24 * 3600}, [(NoteKind.TIME_LIMIT, "--time 4h")]),
        ({"time_limit_seconds": 24 * 3600, "ended_by_itself": False}, []),
        ({"peak_mib": 7_270, "ran_ms": MINUTE}, []),
        ({"peak_mib": None, "account": Account(held_permille_ms=5)}, []),
    ],
)
def test_notes_say_what_mends_it(changes: dict[str, object], expected: list[tuple[NoteKind, str]]) -> None:
    course = replace(COURSE, **changes)  # type: ignore[arg-type]  # the tests name fields
    assert [(note.kind, note.mend) for note in notes(course)] == expected


def test_the_note_on_memory_says_what_the_queue_would_have_done() -> None:
    then = queue(OthersPart(0, 20 * MINUTE, 500, 75_000))
    (note,) = notes(replace(COURSE, peak_mib=7_270, queue=then))
    assert note.text == "peak 7.1 GiB of 19.5 GiB: `--gpu-memory 8g` would have started 40m earlier"


@given(st.floats(1, 500_000))
def test_a_nice_size_is_enough_and_not_far_away(mib: float) -> None:
    nice = nice_memory_mib(mib)
    assert mib <= nice <= mib + 4096
    assert nice % 256 == 0


def sample(minute: int, use: float | None, mib: int | None = 100) -> UseSample:
    return UseSample(minute * MINUTE, 60, use, use, mib)


def test_a_curve_has_means_and_holes() -> None:
    found = curve([sample(0, 0.2), sample(1, 0.4), sample(4, None, None), sample(5, 1.0)], 0, 6 * MINUTE, 3)
    assert [(point.use_ratio, point.memory_mib) for point in found] == [
        (pytest.approx(0.3), 100),
        (None, None),
        (1.0, 100),
    ]


def test_a_curve_ends_with_the_last_minute_of_a_lease_that_began_within_one() -> None:
    minutes = [sample(minute, 0.5) for minute in range(6)]
    found = curve(minutes, MINUTE // 2, 5 * MINUTE + MINUTE // 2, 60)
    assert [point.use_ratio for point in found] == [0.5] * 6
    late = curve(minutes[3:], MINUTE // 2, 5 * MINUTE + MINUTE // 2, 60)
    assert [point.use_ratio for point in late] == [None] * 3 + [0.5] * 3


def test_an_hour_stands_for_all_its_pieces_of_a_curve() -> None:
    hours = [replace(sample(at, use), length_ms=HOUR) for at, use in ((0, 0.2), (60, 0.4))]
    found = curve(hours, 30 * MINUTE, 75 * MINUTE, 9)
    assert [(point.at_ms // MINUTE, point.use_ratio) for point in found] == [
        *((minute, 0.2) for minute in range(30, 60, 5)),
        *((minute, 0.4) for minute in range(60, 75, 5)),
    ]
    assert [point.use_ratio for point in curve(hours, 30 * MINUTE, 120 * MINUTE, 1)] == [pytest.approx(0.3)]


def test_the_end_is_idle_since_the_last_kernel_that_was_seen() -> None:
    busy, rest = [sample(0, 0.2), sample(1, 0.4)], [sample(2, 0.0), sample(4, 0.0)]
    assert idle_at_end_ms([*busy, *rest], 0, 6 * MINUTE) == 4 * MINUTE
    assert idle_at_end_ms([*busy, *rest, sample(5, None)], 0, 6 * MINUTE) == 0
    assert idle_at_end_ms(busy, 0, 6 * MINUTE) == 0
    assert idle_at_end_ms([sample(0, 0.0), sample(0, 0.2)], 0, MINUTE) == 0


def test_a_gap_without_samples_is_not_idle() -> None:
    rest = [sample(0, 0.0), *(sample(minute, 0.0) for minute in range(100, 110))]
    assert idle_at_end_ms(rest, 0, 110 * MINUTE) == 10 * MINUTE
    assert idle_at_end_ms(rest, 0, 300 * MINUTE) == 0
    hours = [replace(sample(60 * hour, 0.0), length_ms=HOUR) for hour in (0, 4, 5)]
    assert idle_at_end_ms(hours, 0, 6 * HOUR + 30 * MINUTE) == 2 * HOUR + 30 * MINUTE
    assert idle_at_end_ms(hours, 5 * HOUR, 6 * HOUR) == HOUR
