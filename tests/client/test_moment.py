"""Points in time as people type them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from gpushared.client.moment import read_moment, read_past
from gpushared.domain.model.errors import RequestError

NOON = datetime(2026, 11, 21, 12, 0, 30).astimezone()


@pytest.mark.parametrize(
    ("text", "seconds_from_noon"),
    [
        ("+90s", 90),
        ("+2h", 7200),
        ("22:00", 10 * 3600 - 30),
        ("12:00", 24 * 3600 - 30),
        ((NOON + timedelta(seconds=60)).isoformat(), 60),
    ],
)
def test_a_moment_is_read_as_it_is_said(text: str, seconds_from_noon: float) -> None:
    assert read_moment(text, NOON) - NOON.timestamp() == seconds_from_noon


def test_a_date_without_a_zone_is_local() -> None:
    assert read_moment("2026-11-22 08:00", NOON) == datetime(2026, 11, 22, 8).timestamp()  # noqa: DTZ001


def test_a_time_of_day_is_by_the_clock_on_the_day_that_clocks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        noon = datetime(2026, 3, 29, 12).astimezone()
        midnight = datetime(2026, 3, 29).timestamp()  # noqa: DTZ001 - local
        last_evening = datetime(2026, 3, 28, 22).timestamp()  # noqa: DTZ001 - local
        assert (read_past("00:00", noon), read_past("22:00", noon)) == (midnight, last_evening)
    time.tzset()


NO_MOMENTS = ["", "tomorrow", "25:00", "+", "+x", "12:00:99", "2026-13-01"]
TOO_FAR = ["0001-01-01", "1960-01-01", "9999-12-31"]


@pytest.mark.parametrize("text", [*NO_MOMENTS, *TOO_FAR])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_moment(text, NOON)
    assert refused.value.hint
