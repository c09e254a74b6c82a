"""Read the queue as it was while a lease waited for the first time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from gpushared.domain.accounting.replay import GpuThen, OthersPart, QueueThen

ROOM_REASONS = frozenset({"resources", "queue_order", "class_order", "fair_share"})
"""A wait for these reasons only would have been shorter if there had been room earlier."""
NOT_YET = frozenset({"held", "begin_time", "after_lease"})
"""Nobody keeps room for a request that waits for these reasons only."""


def queue_then(db: sqlite3.Connection, source: int, lease: str) -> QueueThen | None:
    """Return the queue of the lease's first wait; None if it did not wait, or also for other reasons."""
    spans = db.execute(
        """SELECT start_ms, end_ms, gpu FROM span INDEXED BY span_lease
           WHERE source = ?1 AND lease = ?2
           UNION ALL SELECT start_ms, end_ms, gpu FROM open_span WHERE source = ?1 AND lease = ?2
           ORDER BY start_ms""",
        (source, lease),
    ).fetchall()
    if not spans:
        return None
    began, ended, gpu = spans[0]
    first = {gpu for start, _, gpu in spans if start == ended and gpu is not None}
    reasons = _reasons(db, source, lease)
    if gpu is not None or not first or not reasons or not reasons <= ROOM_REASONS:
        return None
    gpus = [_gpu(db, source, lease, gpu_id, began, ended) for gpu_id in sorted(first)]
    return QueueThen(began, ended, gpus, list(_ahead(db, source, lease, began, ended)))


def _reasons(db: sqlite3.Connection, source: int, lease: str) -> set[str]:
    rows = db.execute("SELECT reason FROM wait WHERE source = ? AND lease = ?", (source, lease))
    return {reason for (reason,) in rows}


def _gpu(db: sqlite3.Connection, source: int, lease: str, gpu: str, since_ms: int, until_ms: int) -> GpuThen:
    row = db.execute("SELECT memory_mib FROM gpu WHERE source = ? AND id = ?", (source, gpu)).fetchone()
    rows = db.execute(
        """SELECT start_ms, end_ms, permille, memory_mib FROM
               (SELECT * FROM span WHERE source = ?1 AND end_ms > ?2)
           WHERE gpu = ?3 AND lease != ?4 AND start_ms < ?5
           UNION ALL
           SELECT start_ms, end_ms, permille, memory_mib FROM open_span
           WHERE source = ?1 AND gpu = ?3 AND lease != ?4 AND start_ms < ?5""",
        (source, since_ms, gpu, lease, until_ms),
    )
    return GpuThen(0 if row is None else row[0], [OthersPart(*row) for row in rows])


def _ahead(
    db: sqlite3.Connection, source: int, lease: str, since_ms: int, until_ms: int
) -> Iterator[tuple[int, int]]:
    """Yield the waits of leases that asked earlier, or whose wait was over earlier."""
    rows = db.execute(
        """SELECT s.lease, s.start_ms, s.end_ms FROM
               (SELECT lease, start_ms, end_ms, gpu, 0 AS open FROM span WHERE source = ?1 AND end_ms > ?2
                UNION ALL SELECT lease, start_ms, end_ms, gpu, 1 FROM open_span WHERE source = ?1) s
           JOIN lease l ON l.source = ?1 AND l.lease = s.lease
           WHERE s.gpu IS NULL AND s.lease != ?3 AND s.start_ms < ?4
           AND (l.created_at < (SELECT created_at FROM lease WHERE source = ?1 AND lease = ?3)
                OR (s.end_ms <= ?4 AND NOT s.open))""",
        (source, since_ms, lease, until_ms),
    ).fetchall()
    for other, start, end in rows:
        reasons = _reasons(db, source, other)
        if not reasons or not reasons <= NOT_YET:
            yield start, end
