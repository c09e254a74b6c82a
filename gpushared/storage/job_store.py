"""Keep jobs in one SQLite file, blocking; and reach it from the event loop: a coordinator's ``JobStore``."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gpushared.domain.model.errors import Unavailable
from gpushared.ports.job_store import (
    Conflict,
    Contents,
    Deposed,
    Record,
    StoreChange,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.high_water import HighWater, HighWaterMark
from gpushared.storage.sqlite.file import FileSchema, FileTexts, SqliteFile, is_for_want_of_room, translated
from gpushared.storage.sqlite.file_calls import Calls

log = logging.getLogger(__name__)

MARK_SECONDS = 5.0
APPLICATION_ID = 0x6770706C
"""The number is ``gppl`` in ASCII."""
AFTER_ALL = "\U0010ffff"
"""This character sorts behind every key that begins with the text before it."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE record (key TEXT PRIMARY KEY NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('revision', 0), ('epoch', 0)",
    ),
)
SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)
VERSION = SCHEMA.version

TEXTS = FileTexts(
    noun="the store",
    program="the coordinator",
    error=StoreUnavailable,
    if_busy="does something else hold it open?",
    if_damaged="restore a copy, or move it away and restart: "
    "nodes then report what runs, and outboxes what waits",
    if_newer="install the newer gpushared again",
)
NODE_TEXTS = replace(
    TEXTS,
    noun="the node's job store",
    program="the daemon",
    if_busy="is another gpushared running on this node?",
    if_damaged="restore a copy, or move it away and restart: "
    "jobs that run are found again, those that wait are lost",
)

_ROW = "(?, ?, ?)"
_PUT = """
    INSERT INTO record (key, revision, value) VALUES {}
    ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, value = excluded.value"""
_SELECT = "SELECT key, revision, value FROM record WHERE key >= ? AND key < ?"
MAX_CHANGES = 4096
MAX_CHANGE_BYTES = 16 * 1024 * 1024
OPEN_SECONDS = 120.0
"""Give the first call this long, because it checks the whole file."""


class StoreFile(SqliteFile):
    """Keep records.

    The leader holds a lock on a file beside the database; the kernel drops it with the process.

    Every method raises StoreUnavailable (then nothing happened), or ConfigError if the file is not for this
    version.
    """

    def __init__(
        self, path: Path, *, busy_seconds: float, texts: FileTexts = TEXTS, leads_unwritten: bool = False
    ) -> None:
        """Lead on a full disk too if ``leads_unwritten``; the next commit then writes the epoch."""
        super().__init__(path, SCHEMA, texts, busy_seconds=busy_seconds)
        self._lock: int | None = None
        self._leads_unwritten = leads_unwritten
        self._epoch_to_write = 0

    def lead(self, above: int) -> int:
        if self._lock is None:
            self._lock = self._locked()
        try:
            with self._writing() as db:
                epoch = max(_meta(db, "epoch"), above, self._epoch_to_write) + 1
                _write_epoch(db, epoch)
        except StoreUnavailable as error:
            if not self._leads_unwritten or not is_for_want_of_room(error.__cause__, self._path):
                raise
            with self._reading() as db:
                epoch = max(_meta(db, "epoch"), above, self._epoch_to_write) + 1
            self._epoch_to_write = epoch
        else:
            self._epoch_to_write = 0
        return epoch

    def epoch(self) -> int:
        with self._reading() as db:
            return _meta(db, "epoch")

    def revision(self) -> int:
        with self._reading() as db:
            return _meta(db, "revision")

    def load(self, prefix: str) -> Contents:
        with self._reading() as db:
            rows = db.execute(_SELECT, (prefix, prefix + AFTER_ALL)).fetchall()
            records = {key: Record(value, revision) for key, revision, value in rows}
            return Contents(_meta(db, "revision"), records)

    def page(self, prefix: str, limit: int, after: str, *, reverse: bool) -> tuple[tuple[str, Record], ...]:
        lowest, highest = prefix, prefix + AFTER_ALL
        if after and reverse:
            highest = min(highest, after)
        elif after:
            lowest = max(lowest, after + "\0")
        query = f"{_SELECT} ORDER BY key {'DESC' if reverse else 'ASC'} LIMIT ?"
        with self._reading() as db:
            rows = db.execute(query, (lowest, highest, max(0, limit))).fetchall()
        return tuple((key, Record(value, revision)) for key, revision, value in rows)

    def count(self, prefix: str) -> int:
        with self._reading() as db:
            query = "SELECT count(*) FROM record WHERE key >= ? AND key < ?"
            (count,) = db.execute(query, (prefix, prefix + AFTER_ALL)).fetchone()
            assert isinstance(count, int)
            return count

    def commit(self, transaction: Transaction) -> tuple[int, Sequence[StoreChange]]:
        """Write the transaction; return the revision and the changes. Raises Deposed, Conflict."""
        if self._lock is None:
            raise Deposed("this coordinator does not lead", hint="it must lead before it writes")
        with self._writing() as db:
            if self._epoch_to_write:
                _write_epoch(db, self._epoch_to_write)
            _check_epoch(db, transaction.epoch)
            _compare(db, transaction)
            revision = _meta(db, "revision")
            deleted = [key for key in transaction.deletes if _revision_of(db, key)]
            if not transaction.puts and not deleted:
                return revision, ()
            revision += 1
            _put_all(db, transaction.puts, revision)
            db.executemany("DELETE FROM record WHERE key = ?", [(key,) for key in deleted])
            db.execute("UPDATE meta SET value = ? WHERE key = 'revision'", (revision,))
        self._epoch_to_write = 0
        return revision, changes_of(transaction.puts, deleted, revision)

    def fill(self, contents: Contents, epoch: int) -> None:
        """Replace all records in one transaction, with their revisions."""
        rows = ((key, record.revision, record.value) for key, record in contents.records.items())
        with self._writing() as db:
            db.execute("DELETE FROM record")
            db.executemany(_PUT.format(_ROW), rows)
            db.execute("UPDATE meta SET value = ? WHERE key = 'revision'", (contents.revision,))
            _write_epoch(db, epoch)

    def close(self) -> None:
        """Release file and lock; errors do not matter any more, because every commit is durable."""
        super().close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _locked(self) -> int:
        """Return the lock's file, open and locked. Raises Deposed if another process has the lock."""
        path = Path(f"{self._path}.lock")
        with translated(self._path, self._texts):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
                os.close(lock)
                raise Deposed(
                    f"another coordinator leads with {self._path} (process {holder})",
                    hint="one store serves one coordinator: stop that one, "
                    "or give this one a state directory of its own",
                ) from None
            except OSError:
                os.close(lock)
                raise
            with suppress(OSError):  # the number is only for people; a full disk must not prevent leading
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            return lock


def _meta(db: sqlite3.Connection, key: str) -> int:
    (value,) = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    assert isinstance(value, int)
    return value


def _write_epoch(db: sqlite3.Connection, epoch: int) -> None:
    db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch,))


def _check_epoch(db: sqlite3.Connection, epoch: int) -> None:
    newest = _meta(db, "epoch")
    if epoch != newest:
        raise Deposed(
            f"this coordinator leads no more: its epoch is {epoch}, the store's is {newest}",
            hint="is the same store used twice?",
        )


def _compare(db: sqlite3.Connection, transaction: Transaction) -> None:
    for key, expected in (transaction.compares or {}).items():
        revision = _revision_of(db, key)
        if revision != expected:
            raise Conflict(
                f"{key} is at revision {revision}, not at {expected}", hint="it was changed; load it again"
            )


def _put_all(db: sqlite3.Connection, puts: Mapping[str, bytes], revision: int) -> None:
    """Write records in one statement.

    SQLite's thread gives CPython's lock away in each step of a statement. While the event loop is busy, the
    thread waits milliseconds to get the lock back, so it must not do that for each record.
    """
    if puts:
        values = [value for key, body in puts.items() for value in (key, revision, body)]
        db.execute(_PUT.format(", ".join([_ROW] * len(puts))), values)


def _revision_of(db: sqlite3.Connection, key: str) -> int:
    """Return the record's revision, or 0 without a record."""
    row = db.execute("SELECT revision FROM record WHERE key = ?", (key,)).fetchone()
    return row[0] if row else 0


class ChangeLog:
    """Keep recent changes on one event loop. All kept changes came after the revision ``base``."""

    def __init__(self, base: int, *, limit: int = MAX_CHANGES, limit_bytes: int = MAX_CHANGE_BYTES) -> None:
        self._base = base
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._newest: deque[StoreChange] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, changes: Sequence[StoreChange]) -> None:
        """Add the changes of one transaction."""
        for change in changes:
            self._newest.append(change)
            self._bytes += _size(change)
        while self._newest and (len(self._newest) > self._limit or self._bytes > self._limit_bytes):
            self._forget_oldest()
        self._wake()

    def close(self) -> None:
        """End all followers with StoreUnavailable."""
        self._closed = True
        self._wake()

    async def follow(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        """Follow the changes below a prefix, as ``Store.watch`` does."""
        while True:
            changed = self._changed
            for change in self._since(after):
                after = change.revision
                if change.key.startswith(prefix):
                    yield change
            if changed is self._changed:
                await changed.wait()

    def _since(self, after: int) -> list[StoreChange]:
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="the daemon is stopping")
        if after < self._base:
            raise Conflict(f"changes after revision {after} are not kept any more", hint="load again")
        return [change for change in self._newest if change.revision > after]

    def _forget_oldest(self) -> None:
        """Forget all changes of the oldest transaction: half of a transaction would be useless."""
        self._base = self._newest[0].revision
        while self._newest and self._newest[0].revision == self._base:
            self._bytes -= _size(self._newest.popleft())

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def changes_of(puts: Mapping[str, bytes], deleted: Sequence[str], revision: int) -> tuple[StoreChange, ...]:
    """Return the changes of one transaction."""
    return (
        *(StoreChange(key, value, revision) for key, value in puts.items()),
        *(StoreChange(key, None, revision) for key in deleted),
    )


def _size(change: StoreChange) -> int:
    return len(change.key) + len(change.value or b"")


class SqliteStore(Calls):
    """Keep the store in the file ``path``, opened by the first call. Readers need not lead.

    Every call also raises ConfigError if this version cannot use the file. A commit that ``TimedOut`` is
    decided, either way, before any later call is answered.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_seconds: float = 15.0,
        busy_seconds: float = 5.0,
        max_changes: int = MAX_CHANGES,
        texts: FileTexts = TEXTS,
        leads_unwritten: bool = False,
        mark: Path | None = None,
    ) -> None:
        """Lead on a full disk too if ``leads_unwritten``, where nobody else could lead.

        ``mark`` is a file that is not restored with the store, and tells that an old copy was put back.
        """
        super().__init__("store", path, texts, timeout_seconds=timeout_seconds, open_seconds=OPEN_SECONDS)
        self._max_changes = max_changes
        self._file = StoreFile(path, busy_seconds=busy_seconds, texts=texts, leads_unwritten=leads_unwritten)
        self._log: ChangeLog | None = None
        self._mark = None if mark is None else HighWaterMark(mark)
        self._led: HighWater | None = None
        """The epoch with which this process leads, and the newest revision that it knows."""
        self._first_revision = 0
        self._keeps_mark = False
        """True once the coordinator has stored that it doubts an old copy: then the mark may forget that."""

    async def lead(self, above: int = 0) -> int:
        if self._mark is not None:
            above = max(above, await self._mark.before_leading(await self.epoch()))
        epoch = await self._call(lambda: self._file.lead(above))
        revision = await self._read(self._file.revision)
        if self._led is None:
            self._first_revision = revision
        self._led = HighWater(epoch, revision)
        return epoch

    async def lost(self) -> NoReturn:
        """Keep the mark for ever: the kernel keeps the lock as long as the process lives."""
        self._keeps_mark = True
        while True:
            try:
                await self._keep_mark()
            except Unavailable as error:
                log.warning("the mark of the store is not kept: %s", error)
            await asyncio.sleep(MARK_SECONDS)

    async def is_behind(self) -> bool | None:
        return None if self._mark is None else self._mark.is_ahead_of(self._first_revision)

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
        changes_log = await self._changes()
        home = asyncio.get_running_loop()

        def work() -> int:
            revision, changes = self._file.commit(transaction)
            # The thread adds the changes, so that followers also receive a commit that nobody waits for any
            # more.
            with suppress(RuntimeError):  # the event loop is closed
                home.call_soon_threadsafe(changes_log.add, changes)
            return revision

        revision = await self._call(work)
        if self._led is not None:
            self._led = HighWater(transaction.epoch, max(revision, self._led.revision))
        return revision

    async def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        changes_log = await self._changes()
        async for change in changes_log.follow(prefix, after):
            yield change

    async def close(self) -> None:
        """Finish the earlier calls, then release file and lock. Later calls are refused."""
        if self._log is not None:
            self._log.close()
        with suppress(Unavailable):
            await self._keep_mark()
        await self._close(self._file.close)

    async def _keep_mark(self) -> None:
        if self._mark is not None and self._led is not None and self._keeps_mark:
            await self._mark.keep(self._led.epoch, self._led.revision)

    async def _changes(self) -> ChangeLog:
        """Return the changes since the first use of the store in this process."""
        if self._log is None:
            base = await self._call(self._file.revision)
            if self._log is None:  # another task may have made the log meanwhile
                self._log = ChangeLog(base, limit=self._max_changes)
        return self._log
