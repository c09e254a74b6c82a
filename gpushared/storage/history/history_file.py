"""Keep the history's file: blocking, for one thread only; and reach it from the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from gpushared.domain.accounting.replay import QueueThen
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.storage.history import history_queries as queries
from gpushared.storage.history.history_export import ExportKind, ExportPage, export
from gpushared.storage.history.history_jobs import jobs, put_jobs, resumption_of_jobs, with_waits_of_jobs
from gpushared.storage.history.history_parts import (
    MAX_GPUS_OF_SOURCE,
    Attempt,
    HistoryPart,
    HistoryPosition,
    LeaseOfJournal,
    leases_of_jobs,
    part_after,
    position_of,
)
from gpushared.storage.history.history_replay import queue_then
from gpushared.storage.history.history_schema import SCHEMA, TEXTS
from gpushared.storage.history.history_waits import waits
from gpushared.storage.history.hour_use import HOUR_MS, HourUse, merged
from gpushared.storage.history.records import (
    HistoryBatch,
    HistoryFilter,
    Holding,
    JobBatch,
    JobHistory,
    JobResumption,
    KeepHistory,
    LeaseAccount,
    LeaseHistory,
    LeaseWait,
    Point,
    Resumption,
    SeriesKey,
    SeriesName,
    SourceName,
)
from gpushared.storage.sqlite.file import SqliteFile
from gpushared.storage.sqlite.file_calls import Calls

HOURS_PER_DAY = 24
OPEN_SECONDS = 120.0
"""The first call checks the whole file, which may have some hundred MB."""
PRUNE_STEP_HOURS = 24 * 7
"""Each prune drops the minutes of so many hours at most, so that it takes some milliseconds."""
MAX_SERIES_KNOWN = 100_000

_LEASE_COLUMNS = tuple(column.name for column in fields(LeaseSummary))
_USE_COLUMNS = tuple(column.name for column in fields(HourUse))
_PUT_LEASE = f"""INSERT OR REPLACE INTO lease (source, {", ".join(_LEASE_COLUMNS)})
    VALUES ({", ".join("?" * (1 + len(_LEASE_COLUMNS)))})"""  # noqa: S608 - constants
_PUT_USE = f"""INSERT OR REPLACE INTO use_hour (series, {", ".join(_USE_COLUMNS)})
    VALUES ({", ".join("?" * (1 + len(_USE_COLUMNS)))})"""  # noqa: S608 - constants
_PUT_GPU = f"""INSERT OR REPLACE INTO gpu SELECT ?1, ?2, ?3, ?4, ?5
    WHERE (SELECT count(*) FROM gpu WHERE source = ?1 AND id != ?2) < {MAX_GPUS_OF_SOURCE}"""  # noqa: S608 - constants
_PUT_SOURCE = """INSERT INTO source (node, journal, seen_ms, ahead_ms) VALUES (?, ?, ?, ?)
    ON CONFLICT (node, journal) DO UPDATE SET seen_ms = max(seen_ms, excluded.seen_ms),
    ahead_ms = excluded.ahead_ms"""
_SOURCE = "SELECT number FROM source WHERE node = ? AND journal = ?"
_PUT_SERIES = "INSERT OR IGNORE INTO series (source, lease, gpu) VALUES (?, ?, ?)"
_SERIES = "SELECT number FROM series WHERE source = ? AND lease = ? AND gpu = ?"


_SUM_DROPPED = """INSERT INTO dropped_hours
    SELECT series, sum(seen_permille_ms), sum(active_permille_ms), sum(idle_permille_ms),
           sum(used_permille_ms), max(use_max_permille), sum(memory_seen_mib_ms), sum(memory_used_mib_ms)
    FROM use_hour WHERE hour < ? GROUP BY series
    ON CONFLICT (series) DO UPDATE SET
        seen_permille_ms = seen_permille_ms + excluded.seen_permille_ms,
        active_permille_ms = active_permille_ms + excluded.active_permille_ms,
        idle_permille_ms = idle_permille_ms + excluded.idle_permille_ms,
        used_permille_ms = used_permille_ms + excluded.used_permille_ms,
        use_max_permille = max(use_max_permille, excluded.use_max_permille),
        memory_seen_mib_ms = memory_seen_mib_ms + excluded.memory_seen_mib_ms,
        memory_used_mib_ms = memory_used_mib_ms + excluded.memory_used_mib_ms"""


class HistoryFile(SqliteFile):
    """Keep the history. Raises HistoryUnavailable (then nothing happened), or ConfigError."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        super().__init__(path, SCHEMA, TEXTS, busy_seconds=busy_seconds)
        self._series: dict[tuple[int, str, str], int] = {}
        self._thinned_to = 0

    # --- writing ---------------------------------------------------------------------------------------

    def write(self, batch: HistoryBatch) -> None:
        """Write a batch durably, or nothing of it."""
        try:
            with self._writing() as db:
                self._put(db, batch)
        except BaseException:
            self._series.clear()  # the numbers in it may have been rolled back
            raise

    def _put(self, db: sqlite3.Connection, batch: HistoryBatch) -> None:
        name = batch.source
        db.execute(_PUT_SOURCE, (name.node, name.journal, batch.at_ms, batch.ahead_ms))
        (source,) = db.execute(_SOURCE, (name.node, name.journal)).fetchone()
        _close_older_sources(db, name.node, source)
        db.executemany(
            _PUT_GPU,
            [(source, *astuple(gpu)) for gpu in batch.gpus],
        )
        db.executemany(_PUT_LEASE, [(source, *astuple(lease)) for lease in batch.leases])
        db.executemany(
            "INSERT OR REPLACE INTO span VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(source, number, *_span_row(span)) for number, span in batch.spans],
        )
        # Numbers below zero are of spans that another journal has closed, before this one was put back.
        db.execute("DELETE FROM span WHERE source = ? AND number < 0", (source,))
        _put_open_spans(db, source, batch)
        db.executemany(
            "INSERT OR REPLACE INTO wait VALUES (?, ?, ?, ?)",
            [(source, lease, reason, ms) for (lease, reason), ms in batch.waits.items()],
        )
        self._put_uses(db, source, batch.uses)
        (written,) = db.execute("SELECT batch FROM source WHERE number = ?", (source,)).fetchone()
        if batch.number > written:
            self._put_uses(db, source, batch.growth, grows=True)
            db.execute("UPDATE source SET batch = ? WHERE number = ?", (batch.number, source))

    def _series_number(self, db: sqlite3.Connection, source: int, lease: str, gpu: str) -> int:
        key = (source, lease, gpu)
        if len(self._series) > MAX_SERIES_KNOWN:
            self._series.clear()
        if key not in self._series:
            db.execute(_PUT_SERIES, key)
            (self._series[key],) = db.execute(_SERIES, key).fetchone()
        return self._series[key]

    def _put_uses(
        self,
        db: sqlite3.Connection,
        source: int,
        uses: Mapping[SeriesKey, Sequence[HourUse]],
        *,
        grows: bool = False,
    ) -> None:
        (first_hour,) = db.execute("SELECT first_hour FROM kept").fetchone()
        for (lease, gpu), hours in uses.items():
            # An hour that was dropped is in the sums already.
            recent_hours = [hour for hour in hours if hour.hour >= first_hour]
            series = self._series_number(db, source, lease, gpu)
            if grows:
                recent_hours = [_grown(db, series, hour) for hour in recent_hours]
            # Not astuple: it would copy the minutes.
            rows = [(series, *(getattr(hour, name) for name in _USE_COLUMNS)) for hour in recent_hours]
            db.executemany(_PUT_USE, rows)
            if peaks := [hour.memory_max_mib for hour in recent_hours if hour.memory_ms]:
                db.execute(
                    "UPDATE series SET peak_mib = ?1 WHERE number = ?2 AND coalesce(peak_mib, -1) < ?1",
                    (max(peaks), series),
                )

    def write_jobs(self, batch: JobBatch) -> None:
        """Write jobs durably, or none of them. Writing a batch again changes nothing."""
        with self._writing() as db:
            put_jobs(db, batch)

    def prune(self, keep: KeepHistory, now_ms: int) -> None:
        """Drop the minutes and the hours that are too old."""
        hour = now_ms // HOUR_MS
        oldest_minutes = hour - keep.minutes_days * HOURS_PER_DAY
        oldest_hours = hour - keep.hours_days * HOURS_PER_DAY
        with self._writing() as db:
            db.execute(_SUM_DROPPED, (oldest_hours,))
            db.execute("DELETE FROM use_hour WHERE hour < ?", (oldest_hours,))
            db.execute("UPDATE kept SET first_hour = max(first_hour, ?)", (oldest_hours,))
            first = self._thinned_to or (db.execute("SELECT min(hour) FROM use_hour").fetchone()[0] or hour)
            until = min(oldest_minutes, first + PRUNE_STEP_HOURS)
            db.execute(
                "UPDATE use_hour SET minutes = x'' WHERE hour >= ? AND hour < ? AND minutes != x''",
                (first, until),
            )
        self._thinned_to = max(first, until)

    # --- reading ---------------------------------------------------------------------------------------

    def part(self, position: HistoryPosition, pool: str, realm: str) -> HistoryPart | None:
        """Return the part after the place, for the coordinator of the pool; None if there is nothing yet."""
        with self._reading() as db:
            return part_after(db, position, pool, realm)

    def position(self, node: str) -> HistoryPosition:
        """Return how far the node's history has come here."""
        with self._reading() as db:
            return position_of(db, node)

    def leases_of_jobs(self, node: str, jobs: Collection[str]) -> dict[Attempt, LeaseOfJournal]:
        """Return the journal and the lease of each attempt of these jobs that are known of the node."""
        with self._reading() as db:
            return leases_of_jobs(db, node, jobs)

    def resume_jobs(self) -> JobResumption:
        with self._reading() as db:
            return resumption_of_jobs(db)

    def jobs(self, query: HistoryFilter, limit: int) -> list[JobHistory]:
        with self._reading() as db:
            return jobs(db, query, limit)

    def resume(self, name: SourceName) -> Resumption:
        """Return what the node's recorder goes on with. A node that has a new name takes its rows along."""
        with self._writing() as db:
            db.execute("UPDATE OR IGNORE source SET node = ? WHERE journal = ?", (name.node, name.journal))
        with self._reading() as db:
            return queries.resumption(db, name)

    def accounts(self, query: HistoryFilter) -> list[LeaseAccount]:
        with self._reading() as db:
            return queries.accounts(db, query)

    def waits(self, query: HistoryFilter) -> list[LeaseWait]:
        with self._reading() as db:
            return with_waits_of_jobs(db, query, waits(db, query))

    def leases(self, query: HistoryFilter, limit: int) -> list[LeaseHistory]:
        with self._reading() as db:
            return queries.leases(db, query, limit)

    def points(
        self, series: SeriesName, since_ms: int, until_ms: int, *, by_hour: bool = False
    ) -> list[Point]:
        with self._reading() as db:
            return queries.points(db, series, since_ms, until_ms, by_hour=by_hour)

    def holdings(self, query: HistoryFilter, limit: int) -> list[Holding]:
        with self._reading() as db:
            return queries.holdings(db, query, limit)

    def queue_then(self, source: int, lease: str) -> QueueThen | None:
        with self._reading() as db:
            return queue_then(db, source, lease)

    def export(self, kind: ExportKind, query: HistoryFilter, after: str) -> ExportPage:
        with self._reading() as db:
            return export(db, kind, query, after)


def _close_older_sources(db: sqlite3.Connection, node: str, source: int) -> None:
    """End the spans and leases that older journals of the node left open, because no report on them will come."""
    for old, seen_ms in db.execute(
        """SELECT number, seen_ms FROM source WHERE node = ? AND number != ?
           AND (EXISTS (SELECT 1 FROM lease WHERE lease.source = number AND ended_at IS NULL)
                OR EXISTS (SELECT 1 FROM open_span WHERE open_span.source = number))""",
        (node, source),
    ).fetchall():
        db.execute(
            """INSERT OR REPLACE INTO span
               SELECT source, -rowid, lease, project, start_ms, end_ms, gpu, permille, memory_mib
               FROM open_span WHERE source = ?""",
            (old,),
        )
        db.execute("DELETE FROM open_span WHERE source = ?", (old,))
        db.execute(
            "UPDATE lease SET ended_at = ?, outcome = 'unknown' WHERE source = ? AND ended_at IS NULL",
            (seen_ms / 1000, old),
        )


def _put_open_spans(db: sqlite3.Connection, source: int, batch: HistoryBatch) -> None:
    if batch.open_spans is None:
        db.executemany(
            "DELETE FROM open_span WHERE source = ? AND lease = ? AND gpu IS ? AND start_ms = ?",
            [(source, span.lease, span.gpu, span.start_ms) for _, span in batch.spans],
        )
        return
    db.execute("DELETE FROM open_span WHERE source = ?", (source,))
    db.executemany(
        "INSERT INTO open_span VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(source, *_span_row(span)) for span in batch.open_spans],
    )


def _grown(db: sqlite3.Connection, series: int, growth: HourUse) -> HourUse:
    row = db.execute(
        f"SELECT {queries.USE} FROM use_hour u WHERE hour = ? AND series = ?",  # noqa: S608 - constants
        (growth.hour, series),
    ).fetchone()
    return growth if row is None else merged(queries.hour_of(row), growth)


def _span_row(span: Span) -> tuple[LeaseId, str, int, int, str | None, int, int]:
    where = (span.gpu, span.permille, span.memory_bytes // MIB)
    return span.lease, span.project, span.start_ms, span.end_ms, *where


class SqliteHistory(Calls):
    """Keep the history in the file ``path``, opened by the first call.

    Every call raises ``HistoryUnavailable`` (then nothing happened), ``TimedOut`` (the outcome is unknown;
    writing the same batch again is right in both cases), or ``ConfigError``.
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 15.0, busy_seconds: float = 5.0) -> None:
        super().__init__("history", path, TEXTS, timeout_seconds=timeout_seconds, open_seconds=OPEN_SECONDS)
        self._store = HistoryFile(path, busy_seconds=busy_seconds)

    async def write(self, batch: HistoryBatch) -> None:
        await self._call(lambda: self._store.write(batch))

    async def write_jobs(self, batch: JobBatch) -> None:
        await self._call(lambda: self._store.write_jobs(batch))

    async def resume_jobs(self) -> JobResumption:
        return await self._read(self._store.resume_jobs)

    async def jobs(self, query: HistoryFilter, limit: int) -> list[JobHistory]:
        return await self._read(lambda: self._store.jobs(query, limit))

    async def prune(self, keep: KeepHistory, now_ms: int) -> None:
        await self._call(lambda: self._store.prune(keep, now_ms))

    async def part(self, position: HistoryPosition, pool: str, realm: str) -> HistoryPart | None:
        return await self._read(lambda: self._store.part(position, pool, realm))

    async def position(self, node: str) -> HistoryPosition:
        return await self._read(lambda: self._store.position(node))

    async def leases_of_jobs(self, node: str, jobs: Collection[str]) -> dict[Attempt, LeaseOfJournal]:
        return await self._read(lambda: self._store.leases_of_jobs(node, jobs)) if jobs else {}

    async def resume(self, name: SourceName) -> Resumption:
        return await self._call(lambda: self._store.resume(name))

    async def accounts(self, query: HistoryFilter) -> list[LeaseAccount]:
        return await self._read(lambda: self._store.accounts(query))

    async def waits(self, query: HistoryFilter) -> list[LeaseWait]:
        return await self._read(lambda: self._store.waits(query))

    async def leases(self, query: HistoryFilter, limit: int) -> list[LeaseHistory]:
        return await self._read(lambda: self._store.leases(query, limit))

    async def points(
        self, series: SeriesName, since_ms: int, until_ms: int, *, by_hour: bool = False
    ) -> list[Point]:
        return await self._read(lambda: self._store.points(series, since_ms, until_ms, by_hour=by_hour))

    async def holdings(self, query: HistoryFilter, limit: int) -> list[Holding]:
        return await self._read(lambda: self._store.holdings(query, limit))

    async def queue_then(self, source: int, lease: str) -> QueueThen | None:
        return await self._read(lambda: self._store.queue_then(source, lease))

    async def export(self, kind: ExportKind, query: HistoryFilter, after: str) -> ExportPage:
        return await self._read(lambda: self._store.export(kind, query, after))

    async def close(self) -> None:
        """Finish the earlier calls, then release the file. Later calls are refused."""
        await self._close(self._store.close)
