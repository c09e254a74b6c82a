"""The ``Journal`` port over SQLite, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpushared.domain.errors import JournalUnavailable, TimedOut
from gpushared.domain.lease import Lease, LeaseId, StoryEntry
from gpushared.journal.store import KEEP_ENDED, Store
from gpushared.journal.worker import Worker
from gpushared.ports import JournalSnapshot, JournalWrite

T = TypeVar("T")

MAX_WAITING_CALLS = 256
MAX_READS = 64
"""Reads that wait in the thread's queue; more wait before it, so that a flood leaves room for commits."""


class SqliteJournal:
    """The journal in the file ``path``, opened by the first call.

    Errors of every call:
    ``JournalUnavailable``: nothing of it happened, and nothing of it will.
    ``TimedOut``: a call that had begun did not come back in ``timeout_seconds`` (a disk that hangs), so
    nobody knows whether a commit happened. Going on as if it had not is wrong: commit the same leases again
    before anything else (at worst a line of a story then stands twice), or end and load.
    ``ConfigError``: the file is no journal that this version can use; trying again is of no use.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_ended: int = KEEP_ENDED,
        timeout_seconds: float = 15.0,
        busy_seconds: float = 5.0,
    ) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._store = Store(path, keep_ended=keep_ended, busy_seconds=busy_seconds)
        self._worker = Worker("journal", limit=MAX_WAITING_CALLS)
        self._closed = False
        self._reads = asyncio.Semaphore(MAX_READS)

    async def load(self) -> JournalSnapshot:
        """Leases that are not over, by sequence, each with the newest part of its story."""
        return await self._call(self._store.load)

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """All of ``writes`` in one transaction; durable when it comes back."""
        batch = tuple(writes)
        await self._call(lambda: self._store.commit(batch))

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        return await self._read(lambda: self._store.story(lease))

    async def lease(self, lease: LeaseId) -> Lease | None:
        return await self._read(lambda: self._store.lease(lease))

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        return await self._read(lambda: self._store.ended(limit))

    async def close(self) -> None:
        """Finish what was asked, then let go of the file. Calls after it are refused."""
        if self._closed:
            return
        self._closed = True
        await self._in_thread(self._store.close)
        # Full: as many calls came back late as the queue holds; the thread is a daemon and ends with us.
        with suppress(queue.Full):
            self._worker.finish()

    async def _read(self, work: Callable[[], T]) -> T:
        async with self._reads:
            return await self._call(work)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise JournalUnavailable("the journal is closed", hint="the daemon is stopping")
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            future = self._worker.submit(work)
        except queue.Full:
            raise self._too_slow(f"{MAX_WAITING_CALLS} calls wait for the journal") from None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if future.cancel():
                raise self._too_slow("the journal is busy with an earlier call") from None
            raise TimedOut(
                f"the journal did not answer in {self._timeout_seconds:g} s",
                hint=f"is the disk of {self._path} healthy? see `dmesg`",
            ) from None

    def _too_slow(self, message: str) -> JournalUnavailable:
        return JournalUnavailable(message, hint=f"is the disk of {self._path} healthy? see `dmesg`")
