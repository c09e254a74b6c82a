"""The coordinator's clock: begins with the time of day and then goes as fast as time does."""

from __future__ import annotations

import time


class SteadyClock:
    """Nobody who sets the machine's clock makes nodes look silent, or gives their jobs to others."""

    def __init__(self) -> None:
        self._began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        """Seconds since the epoch, as they were counted at the start; time in sleep counts."""
        return self._began + time.clock_gettime(time.CLOCK_BOOTTIME)
