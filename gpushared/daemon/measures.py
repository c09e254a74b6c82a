"""Count how often and how long things happen, in memory since the daemon's start."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bound the buckets for work that should take milliseconds."""
LONG_SECONDS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 7 * 86400.0)
"""Bound the buckets for waits and runs of people's work."""
LAG_SECONDS = 0.5
OTHER = "other"


class Distribution:
    """Count values by the first of ``bounds`` that is not below them, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """The last one counts the values above all bounds."""
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Add the duration of the block, also if it raises."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - begun)


class Totals:
    """Sum values by name.

    Names beyond ``max_names`` share the name ``other``, and a name keeps its own sum from then on, so that no sum
    ever falls.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._sums: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        if name not in self._sums and len(self._sums) >= self._max_names:
            name = OTHER
        self._sums[name] = self._sums.get(name, 0.0) + value

    def items(self) -> list[tuple[str, float]]:
        return list(self._sums.items())


async def follow_lag(lag: Distribution) -> None:
    """Measure for ever how much later than asked the event loop wakes this task."""
    while True:
        due = time.perf_counter() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        lag.add(max(0.0, time.perf_counter() - due))
