"""The journal's file: blocking, for one thread only."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from gpushared.domain.errors import JournalUnavailable
from gpushared.domain.gpu import Drained, GpuId
from gpushared.domain.lease import (
    STORY_KEPT_IN_MEMORY,
    Ended,
    Lease,
    LeaseId,
    StoryEntry,
    state_name,
)
from gpushared.journal import attempts, schema, standing
from gpushared.journal.codec import lease_from_json, lease_to_json
from gpushared.journal.trouble import damaged, is_beyond_this_connection, translated
from gpushared.ports import JournalSnapshot, JournalWrite

KEEP_ENDED = 100_000
"""Leases that are over and still listed: about 150 MB with stories of ten lines."""
PRUNE_EVERY = 10
PRUNE_STEP = 20
"""More than ``PRUNE_EVERY``, so that a lowered limit is reached in time, few enough for some milliseconds."""
WAL_KEPT_BYTES = 16 * 1024 * 1024

_PUT_LEASE = """
    INSERT INTO lease (sequence, id, owner_uid, state, ended_at, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
    SET state = excluded.state, ended_at = excluded.ended_at, body = excluded.body"""
_PUT_ENTRY = """
    INSERT INTO story (lease, at, state, text) VALUES ((SELECT sequence FROM lease WHERE id = ?), ?, ?, ?)"""
_PUT_SEQUENCE = "UPDATE meta SET value = ? WHERE key = 'next_sequence'"
_PUT_DRAINED = "INSERT INTO drained (gpu, reason, since, by, sick) VALUES (?, ?, ?, ?, ?)"
_PRUNE = """
    DELETE FROM lease WHERE sequence IN (
        SELECT sequence FROM lease WHERE ended_at IS NOT NULL ORDER BY ended_at, sequence LIMIT ?)"""


class Store:
    """One connection, opened when first needed and again after trouble that is tied to it.

    Every method raises JournalUnavailable (nothing happened) or, where the file is not for this version,
    ConfigError.
    """

    def __init__(self, path: Path, *, keep_ended: int, busy_seconds: float) -> None:
        self._path = path
        self._keep_ended = keep_ended
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._ended_since_prune = 0

    # --- what the port offers --------------------------------------------------------------------------

    def load(self) -> JournalSnapshot:
        with self._reading() as db:
            rows = db.execute("SELECT body FROM lease WHERE ended_at IS NULL ORDER BY sequence").fetchall()
            (following,) = db.execute("SELECT value FROM meta WHERE key = 'next_sequence'").fetchone()
            leases = (lease_from_json(body) for (body,) in rows)
            stories = tuple(self._with_story(db, lease) for lease in leases)
            return JournalSnapshot(
                stories,
                following,
                _drained(db),
                standing.load(db),
                attempts.load_attempts(db),
                attempts.load_contacts(db),
            )

    def commit(self, writes: Sequence[JournalWrite]) -> None:
        if not writes:
            return
        # A lease that changes twice in one transaction is written once, as it is at the end.
        leases = {lease.id: lease for write in writes for lease in write.leases}
        with self._writing() as db:
            db.executemany(_PUT_LEASE, [_lease_row(lease) for lease in leases.values()])
            db.executemany(_PUT_ENTRY, [_entry_row(*entry) for write in writes for entry in write.entries])
            db.execute(_PUT_SEQUENCE, (writes[-1].next_sequence,))
            for drained in [write.drained for write in writes if write.drained is not None][-1:]:
                db.execute("DELETE FROM drained")
                db.executemany(_PUT_DRAINED, [_drained_row(*one) for one in drained.items()])
            standing.save(db, [write.standing for write in writes if write.standing is not None])
            attempts.save(db, writes)
            self._prune_now_and_then(db, sum(isinstance(x.state, Ended) for x in leases.values()))

    def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        with self._reading() as db:
            return _story(db, lease, limit=-1)

    def lease(self, lease: LeaseId) -> Lease | None:
        with self._reading() as db:
            row = db.execute("SELECT body FROM lease WHERE id = ?", (_storable(lease),)).fetchone()
            return self._with_story(db, lease_from_json(row[0])) if row else None

    def ended(self, limit: int) -> tuple[Lease, ...]:
        with self._reading() as db:
            rows = db.execute(
                """SELECT body FROM lease WHERE ended_at IS NOT NULL
                   ORDER BY ended_at DESC, sequence DESC LIMIT ?""",
                (max(0, min(limit, sys.maxsize)),),
            )
            return tuple(lease_from_json(body) for (body,) in rows)

    def close(self) -> None:
        """Let go of the file; errors do not matter any more, everything committed is safe."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    # --- transactions ----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._guarded():
            yield self._opened()

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
        except JournalUnavailable as error:
            if is_beyond_this_connection(error.__cause__):
                self.close()
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
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a journal that vanished must not come back as an empty one.
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
        )
        try:
            _prepare(connection, self._path)
            schema.migrate(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_same_file(self) -> None:
        """Writing on into a file that was moved or deleted would be writing into nothing."""
        try:
            same = _identity(self._path) == self._file
        except FileNotFoundError:
            same = False
        if not same:
            raise JournalUnavailable(
                f"the journal {self._path} was moved, replaced or deleted while in use",
                hint="put it back, or restart the daemon to begin with what is there",
            )

    # --- pieces ----------------------------------------------------------------------------------------

    def _with_story(self, db: sqlite3.Connection, lease: Lease) -> Lease:
        return replace(lease, story=_story(db, lease.id, limit=STORY_KEPT_IN_MEMORY))

    def _prune_now_and_then(self, db: sqlite3.Connection, ended: int) -> None:
        self._ended_since_prune += ended
        if self._ended_since_prune < PRUNE_EVERY:
            return
        self._ended_since_prune = 0
        (count,) = db.execute("SELECT count(*) FROM lease WHERE ended_at IS NOT NULL").fetchone()
        db.execute(_PRUNE, (min(PRUNE_STEP, max(0, count - self._keep_ended)),))


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
    # Exclusive: two daemons on one journal would sell the same GPU twice. Before WAL: then no shared memory.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalUnavailable(
            f"{path} cannot have a write-ahead log (mode {mode})",
            hint="put the state directory on a local disk",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, str(verdict))


def _drained(db: sqlite3.Connection) -> dict[GpuId, Drained]:
    rows = db.execute("SELECT gpu, reason, since, by, sick FROM drained ORDER BY gpu").fetchall()
    return {GpuId(gpu): Drained(reason, since, by, bool(sick)) for gpu, reason, since, by, sick in rows}


def _drained_row(gpu: GpuId, drained: Drained) -> tuple[str, str, float, str, bool]:
    return gpu, _storable(drained.reason), drained.since, _storable(drained.by), drained.sick


def _story(db: sqlite3.Connection, lease: LeaseId, *, limit: int) -> tuple[StoryEntry, ...]:
    rows = db.execute(
        """SELECT at, story.state, text FROM story JOIN lease ON lease.sequence = story.lease
           WHERE lease.id = ? ORDER BY number DESC LIMIT ?""",
        (_storable(lease), limit),
    ).fetchall()
    return tuple(StoryEntry(*row) for row in reversed(rows))


def _lease_row(lease: Lease) -> tuple[int, str, int, str, float | None, str]:
    ended_at = lease.state.at if isinstance(lease.state, Ended) else None
    return (
        lease.sequence,
        lease.id,
        lease.owner_uid,
        state_name(lease.state),
        ended_at,
        lease_to_json(lease),
    )


def _entry_row(lease: LeaseId, entry: StoryEntry) -> tuple[str, float, str, str]:
    return lease, entry.at, entry.state, _storable(entry.text)


def _storable(text: str) -> str:
    r"""The text as UTF-8 can hold it: half a surrogate pair, which JSON lets through, becomes ``\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
