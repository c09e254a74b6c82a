"""The time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time for the rules: seconds since the epoch, because deadlines outlive the daemon. Nobody sets it."""

    def now(self) -> float: ...

    def ahead(self) -> float:
        """By how many seconds the time of day, which people set, is ahead of ``now``.

        Exact while nobody sets it.
        """
        ...

    def keep(self) -> None:
        """Have it go on from here in the daemon's next life. Blocks. Raises Unavailable."""
        ...
