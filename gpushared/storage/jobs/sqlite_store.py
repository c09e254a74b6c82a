"""The ``Store`` port over SQLite, for one coordinator, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from gpushared.ports.job_store import (
    Contents,
    Record,
    StoreChange,
    Transaction,
)
from gpushared.storage.jobs.job_file import MAX_CHANGES, WORDS, ChangeLog, StoreFile
from gpushared.storage.sqlite.file_calls import Calls
from gpushared.storage.sqlite.trouble import FileWords

OPEN_SECONDS = 120.0
"""The first call checks the whole file."""


class SqliteStore(Calls):
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
        words: FileWords = WORDS,
        leads_unwritten: bool = False,
    ) -> None:
        """``leads_unwritten``: where nobody else could lead, do so on a full disk, too."""
        super().__init__("store", path, words, timeout_seconds=timeout_seconds, open_seconds=OPEN_SECONDS)
        self._max_changes = max_changes
        self._file = StoreFile(path, busy_seconds=busy_seconds, words=words, leads_unwritten=leads_unwritten)
        self._log: ChangeLog | None = None

    async def lead(self, above: int = 0) -> int:
        return await self._call(lambda: self._file.lead(above))

    async def epoch(self) -> int:
        return await self._read(self._file.epoch)

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

    async def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        log = await self._changes()
        async for change in log.follow(prefix, after):
            yield change

    async def close(self) -> None:
        """Finish what was asked, then let go of file and lock. Calls after it are refused."""
        if self._log is not None:
            self._log.close()
        await self._close(self._file.close)

    async def _changes(self) -> ChangeLog:
        """The changes since the store was first used here."""
        if self._log is None:
            base = await self._call(self._file.revision)
            if self._log is None:  # unless somebody else was here meanwhile
                self._log = ChangeLog(base, limit=self._max_changes)
        return self._log
