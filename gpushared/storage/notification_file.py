"""Keep the notifications that wait for their delivery, and the events that were told, in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.model.errors import OutboxUnavailable
from gpushared.storage.sqlite.file import FileSchema, FileTexts, SqliteFile
from gpushared.storage.sqlite.file_calls import Calls

TEXTS = FileTexts(
    noun="the file of notifications",
    program="the daemon",
    error=OutboxUnavailable,
    if_busy="is another daemon running here?",
    if_damaged="move it away and restart: a new one is begun, and what waited in it is not told",
    if_newer="install the newer gpushared again, or move the file away",
)
APPLICATION_ID = 0x67706E6F
"""The number is ``gpno`` in ASCII."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: events, deliveries, targets
    (
        """CREATE TABLE event (
            subject TEXT NOT NULL,
            kind TEXT NOT NULL,
            occasion TEXT NOT NULL,
            at REAL NOT NULL,
            body TEXT NOT NULL,
            number INTEGER PRIMARY KEY,
            UNIQUE (subject, kind, occasion)
        )""",
        "CREATE INDEX event_at ON event (at)",
        """CREATE TABLE delivery (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            event INTEGER NOT NULL,
            target TEXT NOT NULL,
            owner TEXT NOT NULL,
            at REAL NOT NULL,
            tries INTEGER NOT NULL
        )""",
        "CREATE INDEX delivery_target ON delivery (target, tries, number)",
        "CREATE INDEX delivery_owner ON delivery (owner, number)",
        "CREATE INDEX delivery_event ON delivery (event)",
        "CREATE TABLE target (name TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID",
    ),
)
SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)

FILE_ITSELF = ""
"""The file's own row among the targets tells since when there is a file."""
EVENTS_KEPT_SECONDS = 8 * 86400.0
"""An event is recognised for this long, and for as long as its lease lives."""
SHRINK_STEP = 100
"""Drop at most so many of one owner before looking again who has the most."""
_PUT_EVENT = """INSERT OR IGNORE INTO event (subject, kind, occasion, at, body) VALUES (?, ?, ?, ?, ?)"""
_PUT_DELIVERY = "INSERT INTO delivery (event, target, owner, at, tries) VALUES (?, ?, ?, ?, 0)"
_FULLEST = "SELECT owner FROM delivery GROUP BY owner ORDER BY count(*) DESC, owner LIMIT 1"
_OLDEST = "SELECT number, target FROM delivery WHERE owner = ? ORDER BY number LIMIT ?"
_OLD = "SELECT number, target FROM delivery WHERE at < ?"
_OLD_EVENTS = "SELECT number, subject FROM event WHERE at < ? AND number NOT IN (SELECT event FROM delivery)"


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Hold an event with the targets that are told, and its owner for the bounds."""

    subject: str
    kind: str
    occasion: str
    body: str
    owner: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Hold one delivery that waits. ``tries`` counts those that failed."""

    number: int
    body: str
    at: float
    tries: int


@dataclass(frozen=True, slots=True)
class OutboxContents:
    """Hold the file's contents at a start: the events it knows, and since when the file and each target exist."""

    since: float
    targets: Mapping[str, float]
    known_events: tuple[tuple[str, str, str], ...]
    waiting: tuple[str, ...]
    """The targets with deliveries that wait."""


DroppedByTarget = Mapping[str, int]
"""The number of deliveries that were dropped, by target."""


class NotificationFile(SqliteFile):
    """Keep events and deliveries. Raises OutboxUnavailable, or ConfigError for another version."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        super().__init__(path, SCHEMA, TEXTS, busy_seconds=busy_seconds)

    def contents(self, now: float) -> OutboxContents:
        """Return the contents; a new file begins at ``now``."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO target VALUES (?, ?)", (FILE_ITSELF, now))
            targets = dict(db.execute("SELECT name, since FROM target").fetchall())
            known_events = tuple(db.execute("SELECT subject, kind, occasion FROM event").fetchall())
            waiting = tuple(name for (name,) in db.execute("SELECT DISTINCT target FROM delivery").fetchall())
        return OutboxContents(targets.pop(FILE_ITSELF), targets, known_events, waiting)

    def keep_targets(self, names: Collection[str], now: float) -> None:
        """Record since when each configured target exists, and forget the others with their deliveries."""
        with self._writing() as db:
            stored = {name for (name,) in db.execute("SELECT name FROM target").fetchall()} - {FILE_ITSELF}
            db.executemany("INSERT INTO target VALUES (?, ?)", [(name, now) for name in {*names} - stored])
            gone = [(name,) for name in stored - {*names}]
            db.executemany("DELETE FROM target WHERE name = ?", gone)
            db.executemany("DELETE FROM delivery WHERE target = ?", gone)

    def add(self, events: Sequence[NewEvent], now: float, most: int) -> DroppedByTarget:
        """Write events with their deliveries; an event that is known already stays as it is.

        Of more than ``most`` waiting deliveries the oldest of the owner with the most of them are dropped.
        """
        with self._writing() as db:
            for event in events:
                row = (event.subject, event.kind, event.occasion, now, event.body)
                cursor = db.execute(_PUT_EVENT, row)
                if cursor.rowcount == 1:
                    rows = [(cursor.lastrowid, target, event.owner, now) for target in event.targets]
                    db.executemany(_PUT_DELIVERY, rows)
            return _shrunk(db, most)

    def next_of(self, target: str) -> Delivery | None:
        """Return the delivery to try next: of those that failed least often the oldest.

        So a receiver that answers with an error to one notification still gets the others.
        """
        with self._reading() as db:
            row = db.execute(
                """SELECT delivery.number, body, delivery.at, tries FROM delivery
                JOIN event ON event.number = delivery.event
                WHERE target = ? ORDER BY tries, delivery.number LIMIT 1""",
                (target,),
            ).fetchone()
        return None if row is None else Delivery(*row)

    def remove(self, number: int) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM delivery WHERE number = ?", (number,))

    def failed(self, number: int) -> None:
        with self._writing() as db:
            db.execute("UPDATE delivery SET tries = tries + 1 WHERE number = ?", (number,))

    def prune(self, now: float, oldest: float, live: Collection[str]) -> DroppedByTarget:
        """Drop deliveries from before ``oldest``, and forget old events but those of the ``live`` subjects."""
        with self._writing() as db:
            dropped = _dropped(db, db.execute(_OLD, (oldest,)).fetchall())
            old = db.execute(_OLD_EVENTS, (now - EVENTS_KEPT_SECONDS,)).fetchall()
            gone = [(number,) for number, subject in old if subject not in live]
            db.executemany("DELETE FROM event WHERE number = ?", gone)
        return dropped


def _shrunk(db: sqlite3.Connection, most: int) -> DroppedByTarget:
    (count,) = db.execute("SELECT count(*) FROM delivery").fetchone()
    dropped: Counter[str] = Counter()
    while (surplus := count - most - dropped.total()) > 0:
        (owner,) = db.execute(_FULLEST).fetchone()
        dropped += _dropped(db, db.execute(_OLDEST, (owner, min(surplus, SHRINK_STEP))).fetchall())
    return dropped


def _dropped(db: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> Counter[str]:
    """Delete the rows, and count them by target."""
    db.executemany("DELETE FROM delivery WHERE number = ?", [(number,) for number, _ in rows])
    return Counter(target for _, target in rows)


class SqliteNotifications(Calls):
    """Keep the notifications in the file ``path``, opened by the first call.

    Every call raises ``OutboxUnavailable`` (then nothing happened), ``TimedOut`` (the outcome is unknown;
    writing the same events again is right in both cases), or ``ConfigError`` (the file is not for this
    version).
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 15.0, busy_seconds: float = 5.0) -> None:
        super().__init__("notifications", path, TEXTS, timeout_seconds=timeout_seconds)
        self._store = NotificationFile(path, busy_seconds=busy_seconds)

    async def contents(self, now: float) -> OutboxContents:
        return await self._call(lambda: self._store.contents(now))

    async def keep_targets(self, names: Collection[str], now: float) -> None:
        await self._call(lambda: self._store.keep_targets(names, now))

    async def add(self, events: Sequence[NewEvent], now: float, most: int) -> DroppedByTarget:
        return await self._call(lambda: self._store.add(events, now, most))

    async def next_of(self, target: str) -> Delivery | None:
        return await self._read(lambda: self._store.next_of(target))

    async def remove(self, number: int) -> None:
        await self._call(lambda: self._store.remove(number))

    async def failed(self, number: int) -> None:
        await self._call(lambda: self._store.failed(number))

    async def prune(self, now: float, oldest: float, live: Collection[str]) -> DroppedByTarget:
        return await self._call(lambda: self._store.prune(now, oldest, live))

    async def close(self) -> None:
        """Finish the earlier calls, then release the file. Later calls are refused."""
        await self._close(self._store.close)
