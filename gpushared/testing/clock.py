"""Time that passes when a test says so."""

from __future__ import annotations


class ManualClock:
    """A fake ``Clock``: it stands still until it is moved. Seconds since the epoch."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now
        self._ahead = 0.0

    def now(self) -> float:
        return self._now

    def ahead(self) -> float:
        return self._ahead

    def keep(self) -> None:
        """Nothing of it lasts."""

    def set_day(self, ahead_seconds: float) -> None:
        """Somebody set the time of day: it is so far ahead from now on."""
        self._ahead = ahead_seconds

    def advance(self, seconds: float) -> float:
        """Let time pass; negative is what no clock of a daemon does. Returns the new time."""
        self._now += seconds
        return self._now
