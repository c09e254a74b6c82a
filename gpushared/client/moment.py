"""Read points in time as people type them: ``22:00``, ``+2h``, ``2026-11-22 08:00``."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import LATEST_SECONDS, parse_duration, shown


def read_moment(text: str, now: datetime) -> float:
    """Return seconds since the epoch.

    A time of day is the next one; ``now`` is local. Raises RequestError.
    """
    if text.startswith("+"):
        return now.timestamp() + parse_duration(text[1:])
    try:
        at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # also of a year that the clock cannot count back to
        return _time_of_day(text, now).timestamp()
    if not 0 < at < LATEST_SECONDS:
        raise _no_time(text)
    return at


def read_past(text: str, now: datetime) -> float:
    """Read a past moment: ``2h`` is so long ago, and a time of day is the last one."""
    try:
        # A text with colons is a time of day.
        ago = None if ":" in text else parse_duration(text)
    except RequestError:
        ago = None
    if ago is not None:
        return now.timestamp() - ago
    moment = read_moment(text, now)
    if moment <= now.timestamp():
        return moment
    # Without a zone, because a day on which clocks change has 23 or 25 hours.
    clock = datetime.fromtimestamp(moment).astimezone().replace(tzinfo=None)
    return (clock - timedelta(days=1)).timestamp()


def _time_of_day(text: str, now: datetime) -> datetime:
    """Return the next moment with this time of day, by the local clock and without a zone."""
    try:
        at = datetime.strptime(text, "%H:%M")  # noqa: DTZ007 - only its hour and minute are used
    except ValueError:
        raise _no_time(text) from None
    today = now.replace(tzinfo=None, hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return today if today.timestamp() > now.timestamp() else today + timedelta(days=1)


def _no_time(text: str) -> RequestError:
    return RequestError(
        f"{shown(text)} is not a time", hint='say 22:00, +2h, 2026-11-22 or "2026-11-22 08:00"'
    )
