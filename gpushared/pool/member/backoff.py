"""Choose when to dial a lost link again: all nodes of a pool lose it at once, and must not return at once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Retry:
    """Seconds. ``patient``: where the coordinator refused, which only people change."""

    first: float = 1.0
    last: float = 30.0
    patient: float = 60.0


class Backoff:
    """Waits that double, each drawn anew between nothing and its bound ("full jitter")."""

    def __init__(self, retry: Retry, random: Random) -> None:
        self._retry = retry
        self._random = random
        self._failures = 0

    def after_success(self) -> None:
        self._failures = 0

    def seconds(self, spread: float) -> float:
        """Return the seconds to wait now. The first waits are drawn from 0 to at least ``spread`` seconds."""
        bound = min(self._retry.last, self._retry.first * 2 ** min(self._failures, 30))
        self._failures += 1
        return self._random.uniform(0.0, max(spread, bound))

    def patient_seconds(self) -> float:
        return self._retry.patient * self._random.uniform(0.5, 1.0)
