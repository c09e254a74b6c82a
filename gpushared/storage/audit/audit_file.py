"""Keep the audit's file with its table: blocking, for one thread only; and reach it from the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.model.errors import AuditUnavailable, Code
from gpushared.storage.audit.line import FACTS, AuditLine, Origin
from gpushared.storage.sqlite.file import FileSchema, FileTexts, SqliteFile
from gpushared.storage.sqlite.file_calls import Calls

TEXTS = FileTexts(
    noun="the audit",
    program="the daemon",
    error=AuditUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="move it away and restart: a new one is begun",
    if_newer="install the newer gpushared again, or move the audit away to begin an empty one",
)

APPLICATION_ID = 0x67706175
"""The number is ``gpau`` in ASCII."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: lines
    (
        """CREATE TABLE line (
            number INTEGER PRIMARY KEY,
            at REAL NOT NULL,
            uid INTEGER NOT NULL,
            user TEXT NOT NULL,
            pid INTEGER NOT NULL,
            executable TEXT NOT NULL,
            method TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            container TEXT NOT NULL,
            name TEXT NOT NULL,
            digest TEXT NOT NULL,
            status INTEGER NOT NULL,
            code TEXT NOT NULL,
            text TEXT NOT NULL,
            more INTEGER NOT NULL
        )""",
        "CREATE INDEX line_uid ON line (uid, number)",
        "CREATE INDEX line_at ON line (at)",
        "CREATE INDEX line_container ON line (container) WHERE container != ''",
        "CREATE INDEX line_name ON line (name) WHERE name != ''",
    ),
)

SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)
VERSION = SCHEMA.version

MAX_PAGE = 1000
PRUNE_EVERY = 500
PRUNE_STEP = 2000
"""Prune more than ``PRUNE_EVERY`` lines, so that a lowered limit is reached in time, in some milliseconds."""
DAY_SECONDS = 86400.0

_COLUMNS = f"number, at, uid, user, pid, executable, {', '.join(FACTS)}"
# If a write answered too late, the next call writes its line again.
_PUT = f"INSERT OR IGNORE INTO line ({_COLUMNS}) VALUES ({', '.join('?' * 15)})"  # noqa: S608 - constants
_FULLEST = "SELECT uid FROM line GROUP BY uid ORDER BY count(*) DESC, uid LIMIT 1"
_PRUNE_UID = (
    "DELETE FROM line WHERE number IN (SELECT number FROM line WHERE uid = ? ORDER BY number LIMIT ?)"
)
# Names tell callers without a uid on this machine apart. The table has no index for the names, and hardly
# ever has many such callers.
_FULLEST_USER = "SELECT user FROM line WHERE uid = ? GROUP BY user ORDER BY count(*) DESC, user LIMIT 1"
_PRUNE_USER = """DELETE FROM line WHERE number IN
    (SELECT number FROM line WHERE uid = ? AND user = ? ORDER BY number LIMIT ?)"""
_PRUNE_OLD = "DELETE FROM line WHERE number IN (SELECT number FROM line WHERE at < ? ORDER BY at LIMIT ?)"

NumberedLine = tuple[int, AuditLine]
"""Lines have numbers in the order of their arrival, over restarts."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Bound the kept lines by age and number."""

    days: int
    rows: int


@dataclass(frozen=True, slots=True)
class Search:
    """Select lines; empty and None select all. The newest ``limit`` count, or with ``after`` the oldest."""

    uid: int | None = None
    user: str = ""
    """Select by a name, or by a uid in digits."""
    since: float | None = None
    refused: bool = False
    container: str = ""
    """Select by a container's name or (beginning of an) id, or by another name in a line."""
    after: int | None = None
    before: int | None = None
    limit: int = 100
    hides_missing: bool = False
    """Leave out looks at others' objects. A look at a missing object makes no line, so a user who searches
    their own lines would otherwise find out which objects exist."""


class AuditFile(SqliteFile):
    """Keep lines in the file.

    Raises AuditUnavailable (then nothing happened), or ConfigError for another version.
    """

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        super().__init__(path, SCHEMA, TEXTS, busy_seconds=busy_seconds)
        self._since_prune = 0

    def newest(self) -> int:
        """Return the number of the newest line, 0 without any."""
        with self._reading() as db:
            (number,) = db.execute("SELECT coalesce(max(number), 0) FROM line").fetchone()
            return int(number)

    def write(self, lines: Sequence[NumberedLine], keep: Keep, now: float) -> None:
        """Write all lines in one transaction."""
        with self._writing() as db:
            db.executemany(_PUT, [_row(*line) for line in lines])
            self._since_prune += len(lines)
            if self._since_prune >= PRUNE_EVERY:
                _prune(db, keep, now)
        if self._since_prune >= PRUNE_EVERY:
            self._since_prune = 0

    def prune(self, keep: Keep, now: float) -> None:
        """Delete lines that are too old or too many, some of them at a time."""
        with self._writing() as db:
            _prune(db, keep, now)

    def search(self, query: Search) -> tuple[NumberedLine, ...]:
        """Return the lines, oldest first."""
        where, values = _conditions(query)
        order = "DESC" if query.after is None else "ASC"
        statement = f"SELECT {_COLUMNS} FROM line WHERE {where} ORDER BY number {order} LIMIT ?"  # noqa: S608 - only conditions of ours; the values are bound
        with self._reading() as db:
            rows = db.execute(statement, (*values, min(max(query.limit, 1), MAX_PAGE))).fetchall()
        return tuple(map(_line, rows if query.after is not None else reversed(rows)))


def _prune(db: sqlite3.Connection, keep: Keep, now: float) -> None:
    """Delete old lines first, then lines of the user with the most lines.

    No user can therefore push out other users' lines.
    """
    db.execute(_PRUNE_OLD, (now - keep.days * DAY_SECONDS, PRUNE_STEP))
    (count,) = db.execute("SELECT count(*) FROM line").fetchone()
    if count > keep.rows:
        (uid,) = db.execute(_FULLEST).fetchone()
        rows = min(PRUNE_STEP, count - keep.rows)
        if uid >= 0:
            db.execute(_PRUNE_UID, (uid, rows))
            return
        (user,) = db.execute(_FULLEST_USER, (uid,)).fetchone()
        db.execute(_PRUNE_USER, (uid, user, rows))


def _conditions(query: Search) -> tuple[str, list[object]]:
    clauses: list[tuple[str, Sequence[object]]] = [("1", ())]
    if query.uid is not None:
        clauses.append(("uid = ?", (query.uid,)))
    if query.user:
        number = int(query.user) if query.user.isascii() and query.user.isdigit() else None
        clauses.append(("(user = ? OR uid = ?)", (query.user, number and min(number, 2**63 - 1))))
    if query.since is not None:
        clauses.append(("at >= ?", (query.since,)))
    if query.refused:
        clauses.append(("code != ''", ()))
    if query.hides_missing:
        clauses.append(("NOT (code = ? AND method IN ('GET', 'HEAD'))", (Code.NOT_FOUND,)))
    if query.container:
        clauses.append(_about(query.container))
    if query.after is not None:
        clauses.append(("number > ?", (query.after,)))
    if query.before is not None:
        clauses.append(("number < ?", (query.before,)))
    return " AND ".join(text for text, _ in clauses), [value for _, values in clauses for value in values]


def _about(name: str) -> tuple[str, Sequence[object]]:
    """Select lines with this name, or about the container of this id, or about one that had this name."""
    return (
        """(name = ? OR (container >= ? AND container < ?) OR container IN
            (SELECT container FROM line WHERE name = ? AND container != ''))""",
        (name, name, f"{name}\U0010ffff", name),
    )


def _row(number: int, line: AuditLine) -> tuple[object, ...]:
    origin = (line.origin.pid, line.origin.executable)
    return number, line.at, line.uid, line.user, *origin, *(getattr(line, name) for name in FACTS)


def _line(row: tuple[object, ...]) -> NumberedLine:
    number, at, uid, user, pid, executable, *facts = row
    return number, AuditLine(at, uid, user, Origin(pid, executable), *facts)  # type: ignore[arg-type,return-value]  # as the table has them


class SqliteAudit(Calls):
    """Keep the audit in the file ``path``, opened by the first call.

    Every call raises ``AuditUnavailable`` (then nothing happened), ``TimedOut`` (the outcome is unknown;
    writing the same numbers again is right in both cases), or ``ConfigError`` (the file is not for this
    version).
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 15.0, busy_seconds: float = 5.0) -> None:
        super().__init__("audit", path, TEXTS, timeout_seconds=timeout_seconds)
        self._store = AuditFile(path, busy_seconds=busy_seconds)

    async def newest(self) -> int:
        """Return the number of the newest line, 0 without any."""
        return await self._call(self._store.newest)

    async def write(self, lines: Sequence[NumberedLine], keep: Keep, now: float) -> None:
        """Write lines, which are durable on return. Lines whose numbers exist already stay as they are."""
        batch = tuple(lines)
        await self._call(lambda: self._store.write(batch, keep, now))

    async def prune(self, keep: Keep, now: float) -> None:
        await self._call(lambda: self._store.prune(keep, now))

    async def search(self, query: Search) -> tuple[NumberedLine, ...]:
        return await self._read(lambda: self._store.search(query))

    async def close(self) -> None:
        """Finish the earlier calls, then release the file. Later calls are refused."""
        await self._close(self._store.close)
