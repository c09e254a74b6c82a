"""Put SQLite's result codes (https://www.sqlite.org/rescode.html) into our words."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.model.errors import Unavailable

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
"""The size is more than SQLite's file of shared memory has at first."""
_DAMAGED = "is damaged"
_UNKNOWN = ("is not usable", "see the log")


@dataclass(frozen=True, slots=True)
class FileWords:
    """Name one kind of file in messages: ``the journal /var/...

    is damaged``, with a hint for each trouble.
    """

    noun: str
    """The noun with its article: ``the journal``."""
    program: str
    """The program that holds the file: ``the daemon``."""
    error: type[Unavailable]
    """The error that is raised when the file cannot be used now."""
    if_busy: str
    if_damaged: str
    if_newer: str

    def trouble(self, path: Path, what: str, hint: str) -> Unavailable:
        return self.error(f"{self.noun} {path} {what}", hint=hint)

    def damaged(self, path: Path, detail: str) -> Unavailable:
        """Return the error for damage that SQLite found but did not raise."""
        return self.trouble(path, f"{_DAMAGED}: {detail}", self.if_damaged)


@contextmanager
def translated(path: Path, words: FileWords) -> Iterator[None]:
    """Raise errors of SQLite and of the file system as ``words.error``."""
    try:
        yield
    except sqlite3.Error as error:
        code = sqlite3.SQLITE_FULL if is_for_want_of_room(error, path) else _primary_code(error)
        what, hint = _told(words).get(code, _UNKNOWN)
        raise words.trouble(path, f"{what}: {error}", hint) from error
    except OSError as error:
        if is_for_want_of_room(error, path):
            what, hint = _told(words)[sqlite3.SQLITE_FULL]
            raise words.trouble(path, what, hint) from error
        hint = f"{words.program} needs write access to its folder, and space there"
        raise words.trouble(path, f"cannot be opened: {error.strerror}", hint) from error


def is_for_want_of_room(error: BaseException | None, path: Path) -> bool:
    """Return True if a full disk is behind a file's error. SQLite mostly calls that an I/O error."""
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


def _told(words: FileWords) -> dict[int, tuple[str, str]]:
    """Return the trouble of the file, and the hint, by primary result code."""
    program = words.program
    damaged = (_DAMAGED, words.if_damaged)
    not_writable = ("cannot be written", f"{program} needs write access to the file and its folder")
    access = f"{program} needs read and write access to the file and its folder"
    return {
        sqlite3.SQLITE_BUSY: ("is in use by another process", words.if_busy),
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
