"""Declare the port for the time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Give the rules the time: seconds since the epoch, because deadlines outlive the daemon.

    Nobody sets this clock.
    """

    def now(self) -> float: ...

    def ahead(self) -> float:
        """Return how many seconds the time of day, which people set, is ahead of ``now``.

        The figure is exact while nobody sets the time of day.
        """
        ...

    def keep(self) -> None:
        """Store the time, so that the daemon's next life continues from here. Blocks. Raises Unavailable."""
        ...
