"""The ``Store`` port over SQLite, for one coordinator, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpushared.domain.errors import TimedOut
from gpushared.journal.worker import Worker
from gpushared.pool.changes import MAX_CHANGES, ChangeLog
from gpushared.pool.store import Change, Contents, Record, StoreUnavailable, Transaction
from gpushared.pool.store_file import StoreFile

T = TypeVar("T")

MAX_WAITING_CALLS = 256
MAX_READS = 64
"""Reads that wait in the thread's queue; more wait before it, so that a flood leaves room for commits."""
OPEN_SECONDS = 120.0
"""The first call checks the whole file."""


class SqliteStore:
    """The store in the file ``path``, opened by the first call. Readers need not lead.

    Errors of every call besides the port's: ConfigError where the file is not one that this version can use.
    A commit that ``TimedOut`` has an end, whichever, before any later call is answered.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_seconds: float = 15.0,
        busy_seconds: float = 5.0,
        max_changes: int = MAX_CHANGES,
    ) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._max_changes = max_changes
        self._file = StoreFile(path, busy_seconds=busy_seconds)
        self._worker = Worker("store", limit=MAX_WAITING_CALLS)
        self._reads = asyncio.Semaphore(MAX_READS)
        self._log: ChangeLog | None = None
        self._opened = False
        self._closed = False

    async def lead(self, above: int = 0) -> int:
        return await self._call(lambda: self._file.lead(above))

    async def load(self, prefix: str = "") -> Contents:
        return await self._read(lambda: self._file.load(prefix))

    async def page(
        self, prefix: str, limit: int, *, after: str = "", reverse: bool = False
    ) -> tuple[tuple[str, Record], ...]:
        return await self._read(lambda: self._file.page(prefix, limit, after, reverse=reverse))

    async def count(self, prefix: str = "") -> int:
        return await self._read(lambda: self._file.count(prefix))

    async def commit(self, transaction: Transaction) -> int:
        transaction.check()
        log = await self._changes()
        home = asyncio.get_running_loop()

        def work() -> int:
            revision, changes = self._file.commit(transaction)
            # From here, so that those who follow hear of a commit that nobody waits for any more.
            with suppress(RuntimeError):  # the event loop is closed
                home.call_soon_threadsafe(log.add, changes)
            return revision

        return await self._call(work)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Change]:
        log = await self._changes()
        async for change in log.follow(prefix, after):
            yield change

    async def close(self) -> None:
        """Finish what was asked, then let go of file and lock. Calls after it are refused."""
        if self._closed:
            return
        self._closed = True
        if self._log is not None:
            self._log.close()
        await self._in_thread(self._file.close)
        # Full: as many calls came back late as the queue holds; the thread is a daemon and ends with us.
        with suppress(queue.Full):
            self._worker.finish()

    async def _changes(self) -> ChangeLog:
        """The changes since the store was first used here."""
        if self._log is None:
            base = await self._call(self._file.revision)
            if self._log is None:  # unless somebody else was here meanwhile
                self._log = ChangeLog(base, limit=self._max_changes)
        return self._log

    async def _read(self, work: Callable[[], T]) -> T:
        async with self._reads:
            return await self._call(work)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="the daemon is stopping")
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            future = self._worker.submit(work)
        except queue.Full:
            raise self._too_slow(f"{MAX_WAITING_CALLS} calls wait for the store") from None
        seconds = self._timeout_seconds if self._opened else max(OPEN_SECONDS, self._timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                answer = await asyncio.wrap_future(future)
                self._opened = True
                return answer
        except TimeoutError:
            if future.cancel():
                raise self._too_slow("the store is busy with an earlier call") from None
            raise TimedOut(
                f"the store did not answer in {seconds:g} s",
                hint=f"is the disk of {self._path} healthy? see `dmesg`",
            ) from None

    def _too_slow(self, message: str) -> StoreUnavailable:
        return StoreUnavailable(message, hint=f"is the disk of {self._path} healthy? see `dmesg`")
