"""SQLite's result codes (https://www.sqlite.org/rescode.html) in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushared.domain.errors import JournalUnavailable
from gpushared.records import RecordError

PRIMARY_CODE_MASK = 0xFF

_BEYOND_THE_CONNECTION = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,  # a connection that was opened on a read-only file stays read-only
    }
)

_DAMAGED = (
    "is damaged",
    "restore it, or move it away and restart: running containers are found again by their labels",
)
_NOT_WRITABLE = ("cannot be written", "the daemon needs write access to the file and its folder")

_WORDS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("is in use by another process", "is another gpushared running on this node?"),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "the daemon needs read and write access to the file and its folder",
    ),
    sqlite3.SQLITE_CONSTRAINT: ("contradicts what was to be written", "please report this with the log"),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: (
        "cannot grow: the disk is full",
        "free some space; the daemon goes on by itself then",
    ),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "is the disk healthy? see `dmesg`"),
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite, the file system and the codec raise as JournalUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        what, hint = _WORDS.get(_primary_code(error), ("is not usable", "see the log"))
        raise JournalUnavailable(f"the journal {path} {what}: {error}", hint=hint) from error
    except OSError as error:
        raise JournalUnavailable(
            f"the journal {path} cannot be opened: {error.strerror}",
            hint="the daemon needs write access to its folder, and space there",
        ) from error
    except RecordError as error:
        raise JournalUnavailable(
            f"the journal {path} holds a lease that this version cannot read: {error}",
            hint="install the version that wrote it",
        ) from error


def damaged(path: Path, detail: str) -> JournalUnavailable:
    """For damage that SQLite found but did not raise."""
    what, hint = _DAMAGED
    return JournalUnavailable(f"the journal {path} {what}: {detail}", hint=hint)


def is_beyond_this_connection(error: BaseException | None) -> bool:
    """Whether only opening the file again can help."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) in _BEYOND_THE_CONNECTION


def _primary_code(error: sqlite3.Error) -> int:
    # Errors raised by Python's module itself carry no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & PRIMARY_CODE_MASK
