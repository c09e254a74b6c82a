"""Implement the ``Journal`` port with SQLite, without ever blocking the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpushared.domain.model.lease import Lease, LeaseId, StoryEntry
from gpushared.ports import JournalSnapshot, JournalWrite, PastLeases
from gpushared.storage.journal.journal_file import KEEP_ENDED, WORDS, JournalFile
from gpushared.storage.sqlite.file_calls import Calls


class SqliteJournal(Calls):
    """Keep the journal in the file ``path``, opened by the first call.

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
        super().__init__("journal", path, WORDS, timeout_seconds=timeout_seconds)
        self._store = JournalFile(path, keep_ended=keep_ended, busy_seconds=busy_seconds)

    async def load(self) -> JournalSnapshot:
        """Return leases that are not over, by sequence, each with the newest part of its story."""
        return await self._call(self._store.load)

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """Write all of ``writes`` in one transaction, which is durable on return."""
        batch = tuple(writes)
        await self._call(lambda: self._store.commit(batch))

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        return await self._read(lambda: self._store.story(lease))

    async def lease(self, lease: LeaseId) -> Lease | None:
        return await self._read(lambda: self._store.lease(lease))

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        return await self._read(lambda: self._store.ended(limit))

    async def past(self, which: PastLeases, limit: int) -> tuple[tuple[Lease, ...], int]:
        """Return past leases, read a few thousand rows at a time, so that no commit waits for a long look."""
        leases: list[Lease] = []
        more, before = 0, which.before
        while True:
            step = partial(self._store.past_step, replace(which, before=before), limit - len(leases))
            found, beyond, before = await self._read(step)
            leases += found
            more += beyond
            if before is None:
                return tuple(leases), more

    async def close(self) -> None:
        """Finish the earlier calls, then let go of the file. Later calls are refused."""
        await self._close(self._store.close)
