"""Read the time that a question about the history covers: ``7d``, ``2026-11-01``, ``last-month``."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpushared.client.moment import read_past
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown

PERIODS = ("today", "yesterday", "this-week", "last-week", "this-month", "last-month")
HINT = "say 7d, 12h, 22:00, 2026-11-01, " + ", ".join(PERIODS)


def read_bounds(text: str, now: datetime) -> tuple[float, float]:
    """Return the beginning and the end of a period, in seconds since the epoch; ``now`` is local.

    A text that names no period is a moment, which is beginning and end. Raises RequestError.
    """
    if text not in PERIODS:
        try:
            moment = read_past(text, now)
        except RequestError:
            raise RequestError(f"{shown(text)} is not a time", hint=HINT) from None
        return moment, moment
    prefix, _, unit = text.partition("-")
    begin = _begin_of(unit, now)
    if prefix in {"last", "yesterday"}:
        begin = _begin_of(unit, begin - timedelta(days=1))
    after = {"week": 7, "month": 32}.get(unit, 1)
    end = _begin_of(unit, begin + timedelta(days=after, hours=2))
    return begin.timestamp(), end.timestamp()


def _begin_of(unit: str, moment: datetime) -> datetime:
    """Return the local midnight at which the day, the week or the month of a moment begins."""
    day = moment.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        day -= timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day
