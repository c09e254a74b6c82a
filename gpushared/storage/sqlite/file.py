"""Keep a database in one file, migrate older files, and translate SQLite's result codes into our words.

``PRAGMA user_version`` is the number of migrations a file has seen. A released migration is never changed;
the next one is appended.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpushared.daemon.files import sync_folder
from gpushared.domain.model.errors import ConfigError, Unavailable

WAL_KEPT_BYTES = 16 * 1024 * 1024
PRIMARY_CODE_MASK = 0xFF

_BEYOND_THE_CONNECTION = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,  # a connection that was opened on a read-only file stays read-only
    }
)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAYBE_NO_ROOM = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
PROBE_BYTES = 64 * 1024
"""Write more than the first size of SQLite's file of shared memory."""
_DAMAGED = "is damaged"
_UNKNOWN = ("is not usable", "see the log")


@dataclass(frozen=True, slots=True)
class FileSchema:
    """Define the tables of one kind of file."""

    application_id: int
    """This number distinguishes our files from other SQLite files: four letters in ASCII."""
    migrations: tuple[tuple[str, ...], ...]
    """These are the statements of each migration, oldest first."""

    @property
    def version(self) -> int:
        return len(self.migrations)


def migrate(connection: sqlite3.Connection, path: Path, schema: FileSchema, texts: FileTexts) -> None:
    """Bring the file to the schema's version in one transaction.

    Raises ConfigError for a file of a newer version and for a database of another program.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = checked_version(connection, path, schema, texts)
        for number, statements in enumerate(schema.migrations[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if version == 0:
            connection.execute(f"PRAGMA application_id = {schema.application_id}")


def checked_version(connection: sqlite3.Connection, path: Path, schema: FileSchema, texts: FileTexts) -> int:
    """Return how many migrations the file has seen. Raises ConfigError as ``migrate``."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != schema.application_id and (tables or application or version):
        raise ConfigError(
            f"{path} is a database of another program",
            hint=f"give {texts.program} a state directory of its own",
        )
    if version > schema.version:
        raise ConfigError(
            f"{texts.noun} {path} has version {version}, this program knows up to {schema.version}",
            hint=texts.if_newer,
        )
    assert isinstance(version, int)
    return version


class SqliteFile:
    """Hold one connection, opened when first needed and again after trouble that is tied to it.

    Reads and writes inside ``_reading`` and ``_writing`` raise the error of the file's words (then nothing
    happened) or, if the file is not for this version, ConfigError. ``before_wal`` and ``after_wal`` are
    pragmas of the connection, besides the pragmas that every file has.

    If a file cannot be opened because its disk is full, a copy of it in memory is read; each write tries to
    open the file again.
    """

    def __init__(
        self,
        path: Path,
        schema: FileSchema,
        texts: FileTexts,
        *,
        busy_seconds: float,
        before_wal: Sequence[str] = (),
        after_wal: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._schema = schema
        self._texts = texts
        self._busy_seconds = busy_seconds
        self._before_wal = before_wal
        self._after_wal = after_wal
        self._connection: sqlite3.Connection | None = None
        self._copy: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def close(self) -> None:
        """Close the file; errors do not matter any more, because every commit is durable."""
        self._disconnect()

    # --- transactions ----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction, in which all reads see the same moment."""
        with self._guarded():
            db = self._readable()
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
        """Translate errors of SQLite and of the file system, and close a connection that cannot recover.

        After a full disk or a failed write the connection stays open: the uncommitted part is then
        overwritten in the log, while reopening could find that part whole and restore it.
        """
        try:
            with translated(self._path, self._texts):
                yield
        except self._texts.error as error:
            if is_beyond_this_connection(error.__cause__):
                self._disconnect()
            raise

    # --- the connection --------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._file is None:
                _create_file(self._path)
            else:
                self._check_same_file()
            self._connection = self._connect()
            self._file = _identity(self._path)
            self._drop_copy()
        return self._connection

    def _readable(self) -> sqlite3.Connection:
        if self._copy is None:
            try:
                return self._opened()
            except (sqlite3.Error, OSError) as error:
                if not is_for_want_of_room(error, self._path):
                    raise
                self._copy = self._copied()
                if self._copy is None:
                    raise
        return self._copy

    def _copied(self) -> sqlite3.Connection | None:
        """Return a copy of the file, migrated to this schema; None if the file holds nothing yet.

        A process that has the file alone needs no shared memory of SQLite, which would need room on the disk.
        """
        source = self._raw_connection()
        try:
            source.execute("PRAGMA locking_mode = EXCLUSIVE")
            if checked_version(source, self._path, self._schema, self._texts) == 0:
                return None
            copy = sqlite3.connect(":memory:", isolation_level=None)
            source.backup(copy)
        finally:
            source.close()
        migrate(copy, self._path, self._schema, self._texts)
        return copy

    def _drop_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    def _connect(self) -> sqlite3.Connection:
        connection = self._raw_connection()
        try:
            self._prepare(connection)
            migrate(connection, self._path, self._schema, self._texts)
        except BaseException:
            connection.close()
            raise
        return connection

    def _raw_connection(self) -> sqlite3.Connection:
        # mode=rw: a file that vanished must not come back as an empty one.
        return sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in self._before_wal:
            connection.execute(f"PRAGMA {pragma}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise self._texts.error(
                f"{self._path} cannot have a write-ahead log (mode {mode})",
                hint="put the state directory on a local disk",
            )
        for pragma in ("synchronous = FULL", f"journal_size_limit = {WAL_KEPT_BYTES}", *self._after_wal):
            connection.execute(f"PRAGMA {pragma}")
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise self._texts.damaged(self._path, str(result))

    def _disconnect(self) -> None:
        self._drop_copy()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _check_same_file(self) -> None:
        """Raise an error if the file was moved or deleted: later writes would be lost."""
        try:
            same = _identity(self._path) == self._file
        except FileNotFoundError:
            same = False
        if not same:
            raise self._texts.trouble(
                self._path,
                "was moved, replaced or deleted while in use",
                f"put it back, or restart {self._texts.program} to begin with what is there",
            )


def _create_file(path: Path) -> None:
    """Make an empty file that survives a power cut, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    sync_folder(path.parent)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class FileTexts:
    """Name one kind of file in messages such as ``the journal /var/... is damaged``, with a hint for each trouble."""

    noun: str
    """This is the noun with its article: ``the journal``."""
    program: str
    """This is the program that holds the file: ``the daemon``."""
    error: type[Unavailable]
    """This error is raised when the file cannot be used now."""
    if_busy: str
    if_damaged: str
    if_newer: str

    def trouble(self, path: Path, problem: str, hint: str) -> Unavailable:
        return self.error(f"{self.noun} {path} {problem}", hint=hint)

    def damaged(self, path: Path, detail: str) -> Unavailable:
        """Return the error for damage that SQLite found but did not raise."""
        return self.trouble(path, f"{_DAMAGED}: {detail}", self.if_damaged)


@contextmanager
def translated(path: Path, texts: FileTexts) -> Iterator[None]:
    """Raise errors of SQLite and of the file system as ``texts.error``."""
    try:
        yield
    except sqlite3.Error as error:
        code = sqlite3.SQLITE_FULL if is_for_want_of_room(error, path) else _primary_code(error)
        problem, hint = _problems(texts).get(code, _UNKNOWN)
        raise texts.trouble(path, f"{problem}: {error}", hint) from error
    except OSError as error:
        if is_for_want_of_room(error, path):
            problem, hint = _problems(texts)[sqlite3.SQLITE_FULL]
            raise texts.trouble(path, problem, hint) from error
        hint = f"{texts.program} needs write access to its folder, and space there"
        raise texts.trouble(path, f"cannot be opened: {error.strerror}", hint) from error


def is_for_want_of_room(error: BaseException | None, path: Path) -> bool:
    """Return True if a full disk causes a file's error, which SQLite mostly reports as an I/O error."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    if not isinstance(error, sqlite3.Error):
        return False
    code = _primary_code(error)
    return code == sqlite3.SQLITE_FULL or (code in _MAYBE_NO_ROOM and not _has_room(path.parent))


def _has_room(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno not in _NO_ROOM
    return True


def is_beyond_this_connection(error: BaseException | None) -> bool:
    """Return True if only opening the file again can help."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) in _BEYOND_THE_CONNECTION


def _problems(texts: FileTexts) -> dict[int, tuple[str, str]]:
    """Return the problem of the file, and the hint, by primary result code."""
    program = texts.program
    damaged = (_DAMAGED, texts.if_damaged)
    not_writable = ("cannot be written", f"{program} needs write access to the file and its folder")
    access = f"{program} needs read and write access to the file and its folder"
    return {
        sqlite3.SQLITE_BUSY: ("is in use by another process", texts.if_busy),
        sqlite3.SQLITE_CANTOPEN: ("cannot be opened", access),
        sqlite3.SQLITE_CONSTRAINT: ("contradicts what was to be written", "please report this with the log"),
        sqlite3.SQLITE_CORRUPT: damaged,
        sqlite3.SQLITE_FULL: (
            "cannot grow: the disk is full",
            f"free some space; {program} goes on by itself then",
        ),
        sqlite3.SQLITE_IOERR: ("cannot be read or written", "is the disk healthy? see `dmesg`"),
        sqlite3.SQLITE_NOTADB: damaged,
        sqlite3.SQLITE_PERM: not_writable,
        sqlite3.SQLITE_READONLY: not_writable,
    }


def _primary_code(error: sqlite3.Error) -> int:
    # Errors raised by Python's module itself carry no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & PRIMARY_CODE_MASK
