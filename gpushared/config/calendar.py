"""Read times of the week, as the configuration writes them. Pure: callers know the present time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_A_DAY = 24 * 60
_HOURS = re.compile(r"([0-9]{2}):([0-5][0-9])-([0-9]{2}):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class Calendar:
    """Hold hours of every day, from a minute of the day until before another, and whole days (Monday is 0).

    Hours that end before they begin go on over midnight.
    """

    hours: tuple[int, int] | None = None
    days: frozenset[int] = frozenset()

    def covers(self, weekday: int, minute: int) -> bool:
        """Return True if the calendar covers this minute of this day, by the clock on the wall."""
        if weekday in self.days:
            return True
        if self.hours is None:
            return False
        begin, end = self.hours
        return begin <= minute < end if begin < end else not end <= minute < begin


def read_hours(text: str) -> tuple[int, int] | None:
    """Read ``20:00-07:00`` as minutes of the day; None for an empty text. Raises ValueError."""
    if not text:
        return None
    match = _HOURS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    begin = int(match[1]) * 60 + int(match[2])
    end = int(match[3]) * 60 + int(match[4])
    if begin >= MINUTES_OF_A_DAY or end > MINUTES_OF_A_DAY or begin == end:
        raise ValueError(text)
    return begin, end


def read_days(text: str) -> frozenset[int]:
    """Read ``sat,sun`` as numbers of days. Raises ValueError."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    return frozenset(DAYS.index(word) for word in words)


def is_hours(text: str) -> bool:
    return _reads(read_hours, text)


def is_days(text: str) -> bool:
    return _reads(read_days, text)


def _reads(reader: Callable[[str], object], text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True
