"""Keep the journal's file, its leases as JSON, blocking; and reach it from the event loop: the ``Journal`` port."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpushared.domain.model.errors import JournalUnavailable
from gpushared.domain.model.gpu import Drained, GpuId
from gpushared.domain.model.lease import STORY_KEPT_IN_MEMORY, Ended, Lease, LeaseId, StoryEntry, state_name
from gpushared.domain.model.span import Span
from gpushared.ports import JournalSnapshot, JournalWrite, PastLeases
from gpushared.storage.journal.rows import (
    load_attempts,
    load_contacts,
    load_projects,
    save_attempts,
    save_projects,
)
from gpushared.storage.records import RecordError, from_json, to_json
from gpushared.storage.sqlite.file import FileSchema, FileTexts, SqliteFile
from gpushared.storage.sqlite.file_calls import Calls

TEXTS = FileTexts(
    noun="the journal",
    program="the daemon",
    error=JournalUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="restore it, or move it away and restart: running containers are found again by their labels",
    if_newer="install the newer gpushared again, or move the journal away to begin an empty one",
)

APPLICATION_ID = 0x67707573
"""The number is ``gpus`` in ASCII."""

_RANDOM = "abs(random() % 9007199254740992)"
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: leases, their stories, the counter
    (
        """CREATE TABLE lease (
            sequence INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            owner_uid INTEGER NOT NULL,
            state TEXT NOT NULL,
            ended_at REAL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX lease_open ON lease (sequence) WHERE ended_at IS NULL",
        "CREATE INDEX lease_ended ON lease (ended_at) WHERE ended_at IS NOT NULL",
        """CREATE TABLE story (
            number INTEGER PRIMARY KEY,
            lease INTEGER NOT NULL REFERENCES lease (sequence) ON DELETE CASCADE,
            at REAL NOT NULL,
            state TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX story_lease ON story (lease)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('next_sequence', 1)",
    ),
    # 2: drained GPUs
    (
        """CREATE TABLE drained (
            gpu TEXT PRIMARY KEY,
            reason TEXT NOT NULL,
            since REAL NOT NULL,
            by TEXT NOT NULL,
            sick INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    # 3: projects' use, their turns, and projects that were set at run time
    (
        """CREATE TABLE usage (
            project TEXT NOT NULL,
            bucket INTEGER NOT NULL,
            amount INTEGER NOT NULL,
            PRIMARY KEY (project, bucket)
        ) WITHOUT ROWID""",
        "CREATE TABLE turn (project TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE project (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
    # 4: attempts to run jobs, and the coordinators that ordered them
    (
        """CREATE TABLE attempt (
            coordinator TEXT NOT NULL,
            job TEXT NOT NULL,
            number INTEGER NOT NULL,
            final_at REAL,
            body TEXT NOT NULL,
            PRIMARY KEY (coordinator, job, number)
        )""",
        "CREATE INDEX attempt_final ON attempt (final_at) WHERE final_at IS NOT NULL",
        "CREATE TABLE contact (coordinator TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
    # 5: spans of holding and waiting that the history has not taken yet
    (
        """CREATE TABLE span (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            lease TEXT NOT NULL,
            project TEXT NOT NULL,
            start_ms INTEGER NOT NULL,
            end_ms INTEGER NOT NULL,
            gpu TEXT,
            permille INTEGER NOT NULL,
            memory_bytes INTEGER NOT NULL
        )""",
        f"INSERT INTO meta VALUES ('identity', {_RANDOM})",  # noqa: S608 - a constant
    ),
)

SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)
VERSION = SCHEMA.version

KEEP_ENDED = 100_000
"""Keep this many finished leases for lists: about 150 MB with stories of ten lines."""
PRUNE_EVERY = 10
PRUNE_STEP = 20
"""Prune more than ``PRUNE_EVERY`` leases, so that a lowered limit is reached in time, in some milliseconds.
"""

KEEP_SPANS = 200_000
"""A history that takes no spans must not fill the disk: about 20 MB."""
PAST_STEP = 2000
"""Read this many rows of finished leases before a commit may come in between."""

_PUT_LEASE = """
    INSERT INTO lease (sequence, id, owner_uid, state, ended_at, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
    SET state = excluded.state, ended_at = excluded.ended_at, body = excluded.body"""
_PUT_ENTRY = """
    INSERT INTO story (lease, at, state, text) VALUES ((SELECT sequence FROM lease WHERE id = ?), ?, ?, ?)"""
_PUT_SEQUENCE = "UPDATE meta SET value = ? WHERE key = 'next_sequence'"
_PUT_DRAINED = "INSERT INTO drained (gpu, reason, since, by, sick) VALUES (?, ?, ?, ?, ?)"
_PUT_SPAN = """
    INSERT INTO span (lease, project, start_ms, end_ms, gpu, permille, memory_bytes)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_NEW_IDENTITY = f"UPDATE meta SET value = {_RANDOM} WHERE key = 'identity'"  # noqa: S608 - a constant
_PRUNE_SPANS = "DELETE FROM span WHERE number <= (SELECT max(number) FROM span) - ?"
_PAST = """
    SELECT ended_at, sequence, CASE
        WHEN ? NOT IN ('', json_extract(body, '$.owner_name')) THEN NULL
        WHEN ? != '[]' AND json_extract(body, '$.state.outcome.kind') NOT IN (SELECT value FROM json_each(?))
        THEN NULL ELSE body END
    FROM lease WHERE ended_at >= ? AND ended_at <= ? AND (ended_at, sequence) < (?, ?)
    ORDER BY ended_at DESC, sequence DESC LIMIT ?"""
_PRUNE = """
    DELETE FROM lease WHERE sequence IN (
        SELECT sequence FROM lease WHERE ended_at IS NOT NULL ORDER BY ended_at, sequence LIMIT ?)"""


class JournalFile(SqliteFile):
    """Keep leases in the file.

    Raises JournalUnavailable (then nothing happened), or ConfigError for another version.
    """

    def __init__(self, path: Path, *, keep_ended: int, busy_seconds: float) -> None:
        super().__init__(
            path,
            SCHEMA,
            TEXTS,
            busy_seconds=busy_seconds,
            # Two daemons on one journal would lease the same GPU twice. Set before WAL, this needs no shared
            # memory.
            before_wal=("locking_mode = EXCLUSIVE",),
            after_wal=("foreign_keys = ON",),
        )
        self._keep_ended = keep_ended
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
                load_projects(db),
                load_attempts(db),
                load_contacts(db),
            )

    def commit(self, writes: Sequence[JournalWrite]) -> None:
        if not writes:
            return
        # A lease that changes twice in one transaction is written once, in its last state.
        leases = {lease.id: lease for write in writes for lease in write.leases}
        with self._writing() as db:
            db.executemany(_PUT_LEASE, [_lease_row(lease) for lease in leases.values()])
            db.executemany(_PUT_ENTRY, [_entry_row(*entry) for write in writes for entry in write.entries])
            db.execute(_PUT_SEQUENCE, (writes[-1].next_sequence,))
            for drained in [write.drained for write in writes if write.drained is not None][-1:]:
                db.execute("DELETE FROM drained")
                db.executemany(_PUT_DRAINED, [_drained_row(*item) for item in drained.items()])
            save_projects(db, [write.accounts for write in writes if write.accounts is not None])
            save_attempts(db, writes)
            db.executemany(_PUT_SPAN, [_span_row(span) for write in writes for span in write.spans])
            self._prune_now_and_then(db, sum(isinstance(lease.state, Ended) for lease in leases.values()))

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

    def past_step(self, query: PastLeases, limit: int) -> tuple[list[Lease], int, tuple[float, int] | None]:
        """Return matching leases of the next rows, how many more match, and where to continue."""
        at, sequence = query.before or (sys.float_info.max, sys.maxsize)
        outcomes = json.dumps(sorted(query.outcomes))
        conditions = (_storable(query.owner), outcomes, outcomes)
        with self._reading() as db:
            rows = db.execute(_PAST, (*conditions, query.since, at, at, sequence, PAST_STEP)).fetchall()
        bodies = [body for _, _, body in rows if body is not None]
        page = bodies[: max(0, limit)]
        last = (rows[-1][0], rows[-1][1]) if len(rows) == PAST_STEP else None
        return [lease_from_json(body) for body in page], len(bodies) - len(page), last

    def identity(self, newest_span: int) -> int:
        with self._reading() as db:
            row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'span'").fetchone()
        if newest_span > (row[0] if row else 0):
            with self._writing() as db:
                db.execute(_NEW_IDENTITY)
                # Numbers of spans go on, so that the same test finds the next older copy.
                db.execute("DELETE FROM sqlite_sequence WHERE name = 'span'")
                db.execute("INSERT INTO sqlite_sequence VALUES ('span', ?)", (newest_span,))
        with self._reading() as db:
            (number,) = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
            return int(number)

    def spans(self, limit: int) -> tuple[tuple[int, Span], ...]:
        with self._reading() as db:
            rows = db.execute(
                """SELECT number, lease, project, start_ms, end_ms, gpu, permille, memory_bytes
                   FROM span ORDER BY number LIMIT ?""",
                (limit,),
            )
            return tuple((number, Span(*span)) for number, *span in rows)

    def forget_spans(self, newest: int) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM span WHERE number <= ?", (newest,))

    # --- pieces ----------------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with super()._guarded():
            try:
                yield
            except RecordError as error:
                problem = f"holds a lease that this version cannot read: {error}"
                raise TEXTS.trouble(self._path, problem, "install the version that wrote it") from error

    def _with_story(self, db: sqlite3.Connection, lease: Lease) -> Lease:
        return replace(lease, story=_story(db, lease.id, limit=STORY_KEPT_IN_MEMORY))

    def _prune_now_and_then(self, db: sqlite3.Connection, ended: int) -> None:
        self._ended_since_prune += ended
        if self._ended_since_prune < PRUNE_EVERY:
            return
        self._ended_since_prune = 0
        (count,) = db.execute("SELECT count(*) FROM lease WHERE ended_at IS NOT NULL").fetchone()
        db.execute(_PRUNE, (min(PRUNE_STEP, max(0, count - self._keep_ended)),))
        db.execute(_PRUNE_SPANS, (KEEP_SPANS,))


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


def _span_row(span: Span) -> tuple[str, str, int, int, str | None, int, int]:
    where = (span.gpu, span.permille, span.memory_bytes)
    return span.lease, _storable(span.project), span.start_ms, span.end_ms, *where


def _storable(text: str) -> str:
    r"""Return the text as UTF-8 can hold it.

    Half a surrogate pair, which JSON lets through, becomes ``\ud83d``.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def lease_to_json(lease: Lease) -> str:
    """Return the lease without its story, as ASCII. Raises RecordError for a time that is no number.

    The story has its own table: a lease that changes state must not rewrite its whole story.
    """
    return to_json(Lease, lease)


def lease_from_json(text: str) -> Lease:
    """Return the lease with an empty story. Raises RecordError."""
    return from_json(Lease, text)


class SqliteJournal(Calls):
    """Keep the journal in the file ``path``, opened by the first call.

    Every call may raise three errors:

    - ``JournalUnavailable``: nothing of the call happened, and nothing of it will.
    - ``TimedOut``: a call did not return in ``timeout_seconds`` (a disk that hangs), so that the outcome of a
      commit is unknown. To go on as if the commit had not happened is wrong: commit the same leases again
      before anything else (at worst a line of a story then stands twice), or end and load.
    - ``ConfigError``: the file is no journal that this version can use; trying again is of no use.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_ended: int = KEEP_ENDED,
        timeout_seconds: float = 15.0,
        busy_seconds: float = 5.0,
    ) -> None:
        super().__init__("journal", path, TEXTS, timeout_seconds=timeout_seconds)
        self._store = JournalFile(path, keep_ended=keep_ended, busy_seconds=busy_seconds)

    async def load(self) -> JournalSnapshot:
        """Return unfinished leases, by sequence, each with the newest part of its story."""
        return await self._call(self._store.load)

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """Write all of ``writes`` in one transaction, which is durable on return."""
        batch = tuple(writes)
        await self._call(lambda: self._store.commit(batch))

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        return await self._read(lambda: self._store.story(lease))

    async def lease(self, lease: LeaseId) -> Lease | None:
        return await self._read(lambda: self._store.lease(lease))

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        return await self._read(lambda: self._store.ended(limit))

    async def identity(self, newest_span: int = 0) -> int:
        return await self._call(lambda: self._store.identity(newest_span))

    async def spans(self, limit: int) -> tuple[tuple[int, Span], ...]:
        return await self._read(lambda: self._store.spans(limit))

    async def forget_spans(self, newest: int) -> None:
        await self._call(lambda: self._store.forget_spans(newest))

    async def past(self, query: PastLeases, limit: int) -> tuple[tuple[Lease, ...], int]:
        """Return past leases, read a few thousand rows at a time, so that no commit waits for a long read."""
        leases: list[Lease] = []
        more, before = 0, query.before
        while True:
            step = partial(self._store.past_step, replace(query, before=before), limit - len(leases))
            page, beyond, before = await self._read(step)
            leases += page
            more += beyond
            if before is None:
                return tuple(leases), more

    async def close(self) -> None:
        """Finish the earlier calls, then release the file. Later calls are refused."""
        await self._close(self._store.close)
