"""Fake the time, and let all fakes fail in one way: on request, for the next calls."""

from __future__ import annotations

from gpushared.domain.model.errors import GpushareError


class Failing:
    """Fail the next calls with the error that a test chose; the fakes build on this class."""

    def __init__(self) -> None:
        self._failures: list[GpushareError] = []

    def fail_next(self, error: GpushareError, *, times: int = 1) -> None:
        """Let the next ``times`` calls of the port fail with ``error``; such a call changes nothing."""
        self._failures.extend([error] * times)

    def _may_fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)


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
