"""SQLite's result codes (https://www.sqlite.org/rescode.html) in the words of a coordinator's store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushared.pool.store import StoreUnavailable

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
    "restore a copy, or move it away and restart: nodes then report what runs, and outboxes what waits",
)
_NOT_WRITABLE = ("cannot be written", "the coordinator needs write access to the file and its folder")
_WORDS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("is in use by another process", "does something else hold it open?"),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "the coordinator needs read and write access to the file and its folder",
    ),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: (
        "cannot grow: the disk is full",
        "free some space; the coordinator goes on by itself then",
    ),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "is the disk healthy? see `dmesg`"),
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite and the file system raise as StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        what, hint = _WORDS.get(_primary_code(error), ("is not usable", "see the log"))
        raise StoreUnavailable(f"the store {path} {what}: {error}", hint=hint) from error
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be opened: {error.strerror}",
            hint="the coordinator needs write access to its folder, and space there",
        ) from error


def damaged(path: Path, detail: str) -> StoreUnavailable:
    """For damage that SQLite found but did not raise."""
    what, hint = _DAMAGED
    return StoreUnavailable(f"the store {path} {what}: {detail}", hint=hint)


def beyond_this_connection(error: BaseException | None) -> bool:
    """Whether only opening the file again can help."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) in _BEYOND_THE_CONNECTION


def _primary_code(error: sqlite3.Error) -> int:
    # Errors raised by Python's module itself carry no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & PRIMARY_CODE_MASK
