"""Read how long leases waited within a time, and why."""

from __future__ import annotations

import sqlite3
from typing import Any

from gpushared.storage.history.history_sources import (
    CLIPPED,
    WITHIN_LEASE,
    Source,
    conditions,
    sources,
    spans_of,
)
from gpushared.storage.history.records import HistoryFilter, LeaseWait

_ASKED = """l.lease, l.job, l.owner, l.project, l.lease_class, l.gpu_count, l.memory_bytes,
    coalesce(l.memory_permille, l.compute_permille)"""
_AT_ONCE = f"""SELECT {_ASKED}, CAST(l.created_at * 1000 AS INTEGER), 0, 0 FROM lease l
    WHERE l.source = :source AND l.created_at * 1000 >= :since AND l.created_at * 1000 < :until
    AND NOT EXISTS (SELECT 1 FROM span s INDEXED BY span_lease WHERE s.source = :source
                    AND s.lease = l.lease AND s.gpu IS NULL AND s.end_ms > s.start_ms)
    AND l.lease NOT IN (SELECT lease FROM open_span WHERE source = :source AND gpu IS NULL)"""  # noqa: S608 - constants
"""Choose the leases that never waited."""


def waits(db: sqlite3.Connection, query: HistoryFilter) -> list[LeaseWait]:
    """Return the wait of each lease that waited or was made in the time."""
    waits: list[LeaseWait] = []
    for source in sources(db, query):
        where, values = conditions(source, query)
        rows = db.execute(
            f"""SELECT {_ASKED}, min(s.start_ms), sum({CLIPPED}), max(s.open)
                FROM {spans_of(query)} s JOIN lease l ON l.source = s.source AND l.lease = s.lease
                WHERE s.gpu IS NULL AND s.start_ms < :until AND s.end_ms > :since
                AND s.end_ms > s.start_ms AND {WITHIN_LEASE} {where}
                GROUP BY s.lease
                UNION ALL {_AT_ONCE} {where}""",  # noqa: S608 - constants
            values,
        ).fetchall()
        waits += [_wait(db, source, *row) for row in rows]
    return waits


# Any: a row has what the columns hold.
def _wait(db: sqlite3.Connection, source: Source, lease: Any, job: Any, *row: Any) -> LeaseWait:
    owner, project, lease_class, gpu_count, memory_bytes, share, began_ms, waited_ms, still = row
    reasons: dict[str, int] = {}
    if waited_ms:
        named = "SELECT reason, ms FROM wait WHERE source = ? AND lease = ?"
        reasons = dict(db.execute(named, (source.number, lease)).fetchall())
    return LeaseWait(
        node=source.node,
        lease=lease,
        owner=owner,
        project=project,
        lease_class=lease_class,
        gpu_count=gpu_count,
        memory_bytes=memory_bytes,
        share_permille=share,
        began_ms=source.day(began_ms),
        waited_ms=waited_ms,
        waits_still=bool(still),
        reasons=reasons,
        job=job,
    )
