"""Points in time as people type them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from gpushared.client.moment import read_moment
from gpushared.domain.model.errors import RequestError

NOON = datetime(2026, 11, 21, 12, 0, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "seconds_from_noon"),
    [
        ("+90s", 90),
        ("+2h", 7200),
        ("22:00", 10 * 3600 - 30),
        ("12:00", 24 * 3600 - 30),
        ("2026-11-21T12:01:30+01:00", 60),
    ],
)
def test_a_moment_is_read_as_it_is_said(text: str, seconds_from_noon: float) -> None:
    assert read_moment(text, NOON) - NOON.timestamp() == seconds_from_noon


def test_a_date_without_a_zone_is_local() -> None:
    assert read_moment("2026-11-22 08:00", NOON) == datetime(2026, 11, 22, 8).timestamp()  # noqa: DTZ001


NO_MOMENTS = ["", "tomorrow", "25:00", "+", "+x", "12:00:99", "2026-13-01"]
TOO_FAR = ["0001-01-01", "1960-01-01", "9999-12-31"]


@pytest.mark.parametrize("text", [*NO_MOMENTS, *TOO_FAR])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_moment(text, NOON)
    assert refused.value.hint
