"""Figures as people read them."""

from __future__ import annotations

import pytest

from gpushared.cli import text

NOON = 43200.0  # of the first day of the epoch, in UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (119, "1m"), (3599, "59m"),
        (3600, "1h"), (3660, "1h1m"), (86400, "1d"), (93600, "1d2h"), (86400 * 40, "40d"),
    ],
)  # fmt: skip
def test_a_span_has_at_most_two_units(seconds: float | None, shown: str) -> None:
    assert text.span(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, "-"),
        (0, "0 MiB"),
        (1 << 20, "1 MiB"),
        (1 << 30, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_memory_is_in_its_largest_unit(size: int | None, shown: str) -> None:
    assert text.memory(size) == shown


@pytest.mark.parametrize(
    ("start_from", "start_to", "shown"),
    [
        (None, None, "unknown"),
        (NOON + 720, NOON + 1500, "about 12:12 (12-25 min)"),
        (NOON + 720, None, "not before 12:12 (12 min)"),
        (NOON + 720, NOON + 730, "about 12:12 (12 min)"),
        (None, NOON + 1500, "by 12:25 (25 min)"),
        (NOON - 60, NOON - 30, "about 11:59 (0 min)"),
        (NOON + 86400, None, "not before Fri 12:00 (1440 min)"),
    ],
)
def test_a_start_is_a_clock_and_a_range(start_from: float | None, start_to: float | None, shown: str) -> None:
    """Unknown bounds are left out, a start that is due is 0 minutes away, another day has its name."""
    assert text.start(start_from, start_to, NOON) == shown


@pytest.mark.parametrize(("permille", "shown"), [(250, "0.25"), (1000, "1"), (333, "0.333"), (10, "0.01")])
def test_a_share_is_exact(permille: int, shown: str) -> None:
    assert text.share(permille) == shown


def test_nothing_that_moves_a_cursor_passes() -> None:
    assert text.printable("a\x1b[2J\nb\u202ec é日") == "a\\x1b[2J\\nb\\u202ec é日"
