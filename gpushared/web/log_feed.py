"""Follow a log for one page: its last lines, then what comes, also after its container starts again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.request import Caller
from gpushared.web.log_lines import LogLines
from gpushared.web.watches import LogWatch

FIRST_LINES = 200
PAGE_SECONDS = 1.0
"""The page gets lines at most this often, and each time as many as ``LogLines`` keeps."""
BYTES_A_SECOND = 1 << 20
MAX_BEHIND = 10
"""After this many seconds in a row with more bytes than that, go on with the newest lines."""
AGAIN_SECONDS = 5.0
"""Look again for a log that is over, or that does not exist yet, no sooner than this."""
AGAIN_WITHOUT_CHANGE_SECONDS = 30.0
"""A log on another machine may begin without a change here."""

LogSource = Callable[[LogWatch, Caller, int], AsyncGenerator[jobs_pb2.LogChunk, None]]
"""Follow a log from its last lines, as many as the number says. Raises errors of the tree."""


class LogFeed:
    """Hold the lines that a page has not got yet."""

    def __init__(
        self,
        follow: Callable[[], AsyncGenerator[jobs_pb2.LogChunk, None]],
        newest_token: Callable[[], Awaitable[str]],
        changed: Callable[[float], Awaitable[bool]],
        wake: Callable[[], None],
    ) -> None:
        """``follow`` opens the log. ``newest_token`` returns a text that changes with the lease or job.

        ``changed`` waits for a change of the daemon's state, at most for the given seconds. ``wake`` is called when
        the page may take lines.
        """
        self.trouble: GpushareError | None = None
        self._follow = follow
        self._newest_token = newest_token
        self._changed = changed
        self._wake = wake
        self._lines = LogLines()
        self._is_first = True
        self._is_over = False
        self._is_due = False
        self._begun = ""
        self._taken_at = -PAGE_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Follow the log until this is cancelled."""
        try:
            while True:
                token = ""
                try:
                    token = await self._newest_token()
                    while await self._read():
                        continue
                except GpushareError as error:
                    self.trouble = error
                    self._wake()
                await self._wait_for_change(token)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def news(self) -> dict[str, Any]:
        """Return the members of an event with the lines that the page lacks; empty if there is nothing to send now."""
        if not self._is_due:
            return {}
        self._is_due, self._taken_at = False, time.monotonic()
        lines, begun = self._lines.take(), self._lines.begun
        if not lines and begun == self._begun and not self._is_over:
            return {}
        news: dict[str, Any] = {"lines": lines}
        if self._is_first:
            news["first"] = True
        if begun != self._begun:
            news["begun"] = begun
        if self._is_over:
            news["end"] = True
        self._is_first, self._begun = False, begun
        return news

    async def _read(self) -> bool:
        """Read the log to its end; return True if the log must be opened anew because this feed is too far behind."""
        self._lines, self._is_first, self._is_over, self._begun = LogLines(), True, False, ""
        second, size, behind = time.monotonic(), 0, 0
        async with aclosing(self._follow()) as chunks:
            async for chunk in chunks:
                self.trouble = None
                self._lines.add(chunk.data, stderr=chunk.stderr)
                self._schedule_wake()
                size += len(chunk.data)
                remaining_seconds = second + 1 - time.monotonic()
                if remaining_seconds > 0 and size <= BYTES_A_SECOND:
                    continue
                behind = behind + 1 if size > BYTES_A_SECOND else 0
                if behind > MAX_BEHIND:
                    return True
                await asyncio.sleep(max(0.0, remaining_seconds))
                second, size = time.monotonic(), 0
        self._lines.end()
        self._is_over = True
        self._schedule_wake()
        return False

    async def _wait_for_change(self, token: str) -> None:
        """Wait until the lease or job has another token: its container may have started, or started again."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                if await self._newest_token() != token:
                    return
            except GpushareError as error:
                self.trouble = error
                self._wake()
            await self._changed(AGAIN_WITHOUT_CHANGE_SECONDS)

    def _schedule_wake(self) -> None:
        if self._timer is None:
            wait = self._taken_at + PAGE_SECONDS - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._is_due = True
        self._wake()
