"""Choose the sources of a query, and the spans and the leases that it looks at.

Each source keeps the time of its node's clock that counts time. A query takes and gives the time of day, so
it looks at one source after the other, each through a window of its own.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpushared.storage.history.records import HistoryFilter

_SPANS = """(SELECT source, lease, project, start_ms, end_ms, gpu, permille, memory_mib, 0 AS open FROM span
    WHERE source = :source AND end_ms > :since
    UNION ALL SELECT source, lease, project, start_ms, end_ms, gpu, permille, memory_mib, 1 FROM open_span
    WHERE source = :source)"""
_SPANS_OF_LEASE = _SPANS.replace("FROM span", "FROM span INDEXED BY span_lease").replace(
    "source = :source", "source = :source AND lease = :lease"
)
"""SQLite itself would look at all spans of the source."""
CLIPPED = "(min(s.end_ms, :until) - max(s.start_ms, :since))"
PROJECT = "coalesce(nullif(s.project, ''), l.project)"
"""A coordinator keeps no project of a span: the span counts to the project of its lease."""
WITHIN_LEASE = """s.start_ms >= l.created_at * 1000 - 60000
    AND (l.ended_at IS NULL OR s.end_ms <= l.ended_at * 1000 + 60000)"""
"""Else a node could let a lease of a job hold GPUs for years in which the job was not there."""


@dataclass(frozen=True, slots=True)
class Source:
    """Hold a source, and the window of a query in the source's own time."""

    number: int
    node: str
    ahead_ms: int
    seen_ms: int
    since_ms: int
    until_ms: int

    def day(self, ms: int) -> int:
        return ms + self.ahead_ms

    def ended_day(self, ended_at: float | None) -> float:
        """Return the end of a lease in milliseconds of the time of day, for ever if it is not over."""
        return math.inf if ended_at is None else self.day(round(ended_at * 1000))


def sources(db: sqlite3.Connection, query: HistoryFilter) -> Iterator[Source]:
    rows = db.execute("SELECT number, node, ahead_ms, seen_ms FROM source ORDER BY number").fetchall()
    for number, node, ahead, seen in rows:
        if query.node in {"", node} and query.source in {None, number}:
            yield Source(number, node, ahead, seen, query.since_ms - ahead, query.until_ms - ahead)


_CONDITIONS = {
    "owner": "l.owner = :owner",
    "owner_uid": "l.owner_uid = :owner_uid",
    "project": "l.project = :project",
    "lease_class": "l.lease_class = :lease_class",
    "lease": "l.lease = :lease",
    "job": "l.job = :job AND l.job != ''",
}


def conditions(source: Source, query: HistoryFilter) -> tuple[str, dict[str, object]]:
    """Return what a query adds to its conditions to select leases ``l``, and its values."""
    where, values = chosen(_CONDITIONS, query)
    return where, {**values, "source": source.number, "since": source.since_ms, "until": source.until_ms}


def chosen(conditions: Mapping[str, str], query: HistoryFilter) -> tuple[str, dict[str, object]]:
    """Return the conditions of the fields that the filter gives, each after an AND, and the values of all."""
    values: dict[str, object] = {name: getattr(query, name) for name in conditions}
    texts = (text for name, text in conditions.items() if values[name] not in ("", None))
    return "".join(f" AND {text}" for text in texts), values


def spans_of(query: HistoryFilter) -> str:
    """Return the table of spans ``s`` with an end in the window of a source, open ones too."""
    return _SPANS_OF_LEASE if query.lease else _SPANS
