"""The pool's store in one SQLite file: blocking, for one thread only."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from gpushared.domain.errors import ConfigError
from gpushared.pool.changes import changes_of
from gpushared.pool.store import Change, Conflict, Contents, Deposed, Record, StoreUnavailable, Transaction
from gpushared.pool.store_trouble import beyond_this_connection, damaged, translated

APPLICATION_ID = 0x6770706C
"""``gppl`` in ASCII."""
WAL_KEPT_BYTES = 16 * 1024 * 1024
AFTER_ALL = "\U0010ffff"
"""Behind every key that begins with what stands before it."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE record (key TEXT PRIMARY KEY NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('revision', 0), ('epoch', 0)",
    ),
)
VERSION = len(_MIGRATIONS)

_PUT = """
    INSERT INTO record (key, revision, value) VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, value = excluded.value"""
_SELECT = "SELECT key, revision, value FROM record WHERE key >= ? AND key < ?"


class StoreFile:
    """One connection, opened when first needed and again after trouble that is tied to it.

    Every method raises StoreUnavailable (nothing happened) or, where the file is not for this version,
    ConfigError. Whoever leads holds a lock on a file beside it, which the kernel drops with the process.
    """

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self._path = path
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._lock: int | None = None

    def lead(self, above: int) -> int:
        if self._lock is None:
            self._lock = self._locked()
        with self._writing() as db:
            epoch = max(_meta(db, "epoch"), above) + 1
            db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch,))
            return epoch

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
        order = f"{_SELECT} ORDER BY key {'DESC' if reverse else 'ASC'} LIMIT ?"
        with self._reading() as db:
            rows = db.execute(order, (lowest, highest, max(0, limit))).fetchall()
        return tuple((key, Record(value, revision)) for key, revision, value in rows)

    def count(self, prefix: str) -> int:
        with self._reading() as db:
            query = "SELECT count(*) FROM record WHERE key >= ? AND key < ?"
            (count,) = db.execute(query, (prefix, prefix + AFTER_ALL)).fetchone()
            assert isinstance(count, int)
            return count

    def commit(self, transaction: Transaction) -> tuple[int, Sequence[Change]]:
        """The revision, and what changed. Raises Deposed, Conflict."""
        if self._lock is None:
            raise Deposed("this coordinator does not lead", hint="it must lead before it writes")
        with self._writing() as db:
            _check_epoch(db, transaction.epoch)
            _compare(db, transaction)
            revision = _meta(db, "revision")
            deleted = [key for key in transaction.deletes if _revision_of(db, key)]
            if not transaction.puts and not deleted:
                return revision, ()
            revision += 1
            db.executemany(_PUT, [(key, revision, value) for key, value in transaction.puts.items()])
            db.executemany("DELETE FROM record WHERE key = ?", [(key,) for key in deleted])
            db.execute("UPDATE meta SET value = ? WHERE key = 'revision'", (revision,))
        return revision, changes_of(transaction.puts, deleted, revision)

    def close(self) -> None:
        """Let go of file and lock; errors do not matter any more, everything committed is safe."""
        self._disconnect()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    # --- transactions ----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """All of it sees the same moment."""
        with self._guarded():
            db = self._opened()
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:  # some errors end it
                    db.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._guarded():
            db = self._opened()
            self._check_same_file()
            db.execute("BEGIN IMMEDIATE")
            with db:
                yield db

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Errors of SQLite and of the file system as ours; a connection that cannot recover is closed.

        After a full disk or a failed write the connection is kept: what was not committed is then
        overwritten in the log, where reopening could find it whole and bring it back to life.
        """
        try:
            with translated(self._path):
                yield
        except StoreUnavailable as error:
            if beyond_this_connection(error.__cause__):
                self._disconnect()
            raise

    # --- the connection --------------------------------------------------------------------------------

    def _locked(self) -> int:
        """The lock's file, open and locked. Raises Deposed where another process has it."""
        path = Path(f"{self._path}.lock")
        with translated(self._path):
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
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            return lock

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._file is None:
                _create_file(self._path)
            else:
                self._check_same_file()
            self._connection = self._connect()
            self._file = _identity(self._path)
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a store that vanished must not come back as an empty one.
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
        )
        try:
            _prepare(connection, self._path)
            _migrate(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _check_same_file(self) -> None:
        """Writing on into a file that was moved or deleted would be writing into nothing."""
        try:
            same = _identity(self._path) == self._file
        except FileNotFoundError:
            same = False
        if not same:
            raise StoreUnavailable(
                f"the store {self._path} was moved, replaced or deleted while in use",
                hint="put it back, or restart the coordinator to begin with what is there",
            )


def _create_file(path: Path) -> None:
    """An empty file that survives a power cut, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            f"{path} cannot have a write-ahead log (mode {mode})",
            hint="put the state directory on a local disk",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, str(verdict))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to ``VERSION`` in one transaction. Raises ConfigError for what is not ours or newer."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = _checked_version(connection, path)
        for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise ConfigError(
            f"{path} is a database of another program",
            hint="give the coordinator a state directory of its own",
        )
    if version > VERSION:
        raise ConfigError(
            f"the store {path} has version {version}, this program knows up to {VERSION}",
            hint="install the newer gpushared again",
        )
    assert isinstance(version, int)
    return version


def _meta(db: sqlite3.Connection, key: str) -> int:
    (value,) = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    assert isinstance(value, int)
    return value


def _check_epoch(db: sqlite3.Connection, epoch: int) -> None:
    newest = _meta(db, "epoch")
    if epoch != newest:
        raise Deposed(
            f"this coordinator leads no more: its epoch is {epoch}, the store's is {newest}",
            hint="is the same store used twice?",
        )


def _compare(db: sqlite3.Connection, transaction: Transaction) -> None:
    for key, expected in (transaction.compares or {}).items():
        found = _revision_of(db, key)
        if found != expected:
            raise Conflict(
                f"{key} is at revision {found}, not at {expected}", hint="it was changed; load it again"
            )


def _revision_of(db: sqlite3.Connection, key: str) -> int:
    """0 where there is none."""
    row = db.execute("SELECT revision FROM record WHERE key = ?", (key,)).fetchone()
    return row[0] if row else 0
