"""Time that passes when a test says so."""

from __future__ import annotations


class ManualClock:
    """A fake ``Clock``: it stands still until it is moved. Seconds since the epoch."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Let time pass; negative is a clock that was set back. Returns the new time."""
        self._now += seconds
        return self._now
