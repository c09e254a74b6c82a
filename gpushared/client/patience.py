"""How long a daemon or a pool that does not answer is waited for, and how often it is asked meanwhile."""

from __future__ import annotations

import random

from gpushared.domain.errors import GpushareError, TimedOut, Unavailable

FIRST_SECONDS = 10.0
"""Who has never answered is perhaps not there at all: an address may be wrong."""
SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 5.0


class Patience:
    """Of one call or stream. ``seconds`` begin anew whenever there is an answer."""

    def __init__(
        self,
        seconds: float,
        *,
        known: bool,
        longest_pause_seconds: float = LONGEST_SECONDS,
        chance: random.Random | None = None,
    ) -> None:
        """``known``: whether the other side has ever answered."""
        self._seconds = seconds if known else min(seconds, FIRST_SECONDS)
        self._all = seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._chance = chance or random.SystemRandom()
        self._since: float | None = None
        self._tries = 0

    def answered(self) -> None:
        """There was an answer, so that the next failure is the first."""
        self._seconds, self._since, self._tries = self._all, None, 0

    def pause_seconds(self, error: GpushareError, now: float) -> float:
        """How long to wait before the next try. Raises ``error`` where there is none. ``now``: monotonic."""
        if not isinstance(error, Unavailable | TimedOut):
            raise error
        self._since = now if self._since is None else self._since
        if now - self._since >= self._seconds:
            raise error
        longest = min(self._longest_pause_seconds, SHORTEST_SECONDS * 2.0**self._tries)
        self._tries = min(self._tries + 1, 10)
        return self._chance.uniform(longest / 2, longest)
