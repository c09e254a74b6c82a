"""Fake the time, which passes when a test says so."""

from __future__ import annotations


class ManualClock:
    """Stand still until a test moves the time: a fake ``Clock``, in seconds since the epoch."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now
        self._ahead = 0.0

    def now(self) -> float:
        return self._now

    def ahead(self) -> float:
        return self._ahead

    def keep(self) -> None:
        """Do nothing, since the fake's time does not last."""

    def set_day(self, ahead_seconds: float) -> None:
        """Set the time of day so far ahead from now on, as people do."""
        self._ahead = ahead_seconds

    def advance(self, seconds: float) -> float:
        """Let time pass, and return the new time; a negative time is one that no daemon's clock shows."""
        self._now += seconds
        return self._now
