"""Say how long to wait after failures in a row."""

from __future__ import annotations

MOST_DOUBLINGS = 32


def backoff_seconds(failures: int, *, first: float, longest: float) -> float:
    """Return the seconds to wait after this many failures.

    The wait is ``first``, then twice as long each time; 0 after no failure.
    """
    if failures <= 0:
        return 0.0
    return min(longest, first * 2.0 ** min(failures - 1, MOST_DOUBLINGS))
