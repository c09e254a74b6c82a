"""Decide how long a client waits for a daemon or a pool that does not answer, and how often it asks."""

from __future__ import annotations

import random

from gpushared.domain.model.errors import GpushareError, TimedOut, Unavailable

FIRST_SECONDS = 10.0
"""A peer that has never answered is perhaps not there at all: an address may be wrong."""
SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 5.0


class RetryPatience:
    """Time the tries of one call or stream. ``seconds`` begin anew after each answer."""

    def __init__(
        self,
        seconds: float,
        *,
        known: bool,
        longest_pause_seconds: float = LONGEST_SECONDS,
        chance: random.Random | None = None,
    ) -> None:
        """Take ``known``: True if the other side has ever answered."""
        self._seconds = seconds if known else min(seconds, FIRST_SECONDS)
        self._all = seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._chance = chance or random.SystemRandom()
        self._since: float | None = None
        self._tries = 0

    def answered(self) -> None:
        """Reset the failure count after a successful call."""
        self._seconds, self._since, self._tries = self._all, None, 0

    def pause_seconds(self, error: GpushareError, now: float) -> float:
        """Return the wait before the next try.

        Raises ``error`` if there is no next try. ``now``: monotonic.
        """
        if not isinstance(error, Unavailable | TimedOut):
            raise error
        self._since = now if self._since is None else self._since
        if now - self._since >= self._seconds:
            raise error
        longest = min(self._longest_pause_seconds, SHORTEST_SECONDS * 2.0**self._tries)
        self._tries = min(self._tries + 1, 10)
        return self._chance.uniform(longest / 2, longest)
