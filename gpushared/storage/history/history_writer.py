"""Write what a recorder has gathered: now and then, before an answer, and at the end of the daemon."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import ConfigError, GpushareError, TimedOut, Unavailable

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""Answers may be this old."""
CLOSE_SECONDS = 5.0


class HistoryWriter(ABC):
    """Write at one time only. A history that cannot be written raises a trouble, and nothing else waits."""

    def __init__(self, troubles: Troubles, part: str, noun: str) -> None:
        """Take ``noun``, which names what is written in messages: ``the history``."""
        self._troubles = troubles
        self._part = part
        self._noun = noun
        self._writing = asyncio.Lock()
        self._written_at = -FRESH_SECONDS

    @abstractmethod
    async def _write(self) -> None:
        """Write all there is. Raises HistoryUnavailable, TimedOut, ConfigError."""

    def _is_stale(self) -> bool:
        return time.monotonic() - self._written_at >= FRESH_SECONDS

    async def flush(self) -> None:
        """Write what there is, so that answers are of now. Raises HistoryUnavailable, TimedOut, ConfigError."""
        async with self._writing:
            if self._is_stale():
                await self._write_all()

    async def close(self) -> None:
        """Write the rest. An error is logged: a start finds in the journal or the store what is missing."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS), self._writing:
                await self._write_all()
        except (GpushareError, TimeoutError) as error:
            log.warning("the end of %s is not written: %s", self._noun, error or "it takes too long")

    async def _try_to_write(self) -> bool:
        return await self._attempt(self._write_all)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do work on the history, and return True, or raise a trouble and return False."""
        try:
            async with self._writing:
                await work()
        except (Unavailable, TimedOut, ConfigError) as error:
            self._troubles.raised(self._part, f"{self._noun} is behind: {error}")
            return False
        self._troubles.cleared(self._part)
        return True

    async def _write_all(self) -> None:
        await self._write()
        self._written_at = time.monotonic()
