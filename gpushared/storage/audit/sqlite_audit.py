"""Reach the audit's file without ever blocking the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpushared.storage.audit.audit_file import (
    WORDS,
    AuditFile,
    Keep,
    Numbered,
    Search,
)
from gpushared.storage.sqlite.file_calls import Calls


class SqliteAudit(Calls):
    """Keep the audit in the file ``path``, opened by the first call.

    Errors of every call: ``AuditUnavailable`` (nothing of it happened), ``TimedOut`` (nobody knows; writing
    the same numbers again is right in both cases), ``ConfigError`` (the file is not for this version).
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 15.0, busy_seconds: float = 5.0) -> None:
        super().__init__("audit", path, WORDS, timeout_seconds=timeout_seconds)
        self._store = AuditFile(path, busy_seconds=busy_seconds)

    async def newest(self) -> int:
        """Return the number of the newest line, 0 without any."""
        return await self._call(self._store.newest)

    async def write(self, lines: Sequence[Numbered], keep: Keep, now: float) -> None:
        """Write lines, which are durable on return. Lines whose numbers exist already stay as they are."""
        batch = tuple(lines)
        await self._call(lambda: self._store.write(batch, keep, now))

    async def prune(self, keep: Keep, now: float) -> None:
        await self._call(lambda: self._store.prune(keep, now))

    async def search(self, wanted: Search) -> tuple[Numbered, ...]:
        return await self._read(lambda: self._store.search(wanted))

    async def close(self) -> None:
        """Finish the earlier calls, then let go of the file. Later calls are refused."""
        await self._close(self._store.close)
