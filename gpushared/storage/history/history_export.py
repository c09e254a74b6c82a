"""Read the history's rows page by page. The key of a page's last row leads to the next page."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gpushared.domain.accounting.account import MIB_MS_PER_GIB_HOUR, PERMILLE_MS_PER_GPU_HOUR, Account
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown
from gpushared.storage.history.history_queries import SUMMARY, USE, hour_of, lease_history
from gpushared.storage.history.history_sources import PROJECT, WITHIN_LEASE, Source, conditions, sources
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS, HourUse
from gpushared.storage.history.records import HistoryFilter, LeaseHistory

LEASES_PER_PAGE = 500
SPANS_PER_PAGE = 5000
HOURS_PER_PAGE = 2000
HOURS_OF_MINUTES_PER_PAGE = 100
MJ_PER_WH = 3_600_000

Value = str | int | float | None
Row = Mapping[str, Value]


class ExportKind(StrEnum):
    """Name what is exported."""

    LEASES = "leases"
    SPANS = "spans"
    HOURS = "hours"
    MINUTES = "minutes"


_TOKENS: Mapping[ExportKind, re.Pattern[str]] = {
    ExportKind.LEASES: re.compile(r"[0-9]{1,18}:.+", re.DOTALL),
    ExportKind.SPANS: re.compile(r"[0-9]{1,18}:-?[0-9]{1,18}"),
    ExportKind.HOURS: re.compile(r"[0-9]{1,18}:[0-9]{1,18}\.[0-9]{1,18}"),
    ExportKind.MINUTES: re.compile(r"[0-9]{1,18}:[0-9]{1,18}\.[0-9]{1,18}"),
}
"""A page token has the number of a source and the key of its last row; SQLite's numbers have 18 digits and more."""
_OF_SERIES = ("node", "lease", "owner", "project", "gpu", "at")
COLUMNS: Mapping[ExportKind, Sequence[str]] = {
    ExportKind.LEASES: (
        *("node", "lease", "owner_uid", "owner", "project", "class", "image", "container_name"),
        *("job", "attempt", "pool", "gpu_count", "memory_bytes", "memory_permille", "compute_permille"),
        *("asked_models", "isolation", "priority", "time_limit_seconds"),
        *("outcome", "outcome_text", "exit_code", "preemptions", "begun_anew", "restarts"),
        *("created_at", "started_at", "ended_at", "waited_seconds", "ran_seconds", "gpus", "models"),
        *("held_gpu_hours", "well_used_gpu_hours", "too_big_gpu_hours", "idle_gpu_hours", "unseen_gpu_hours"),
        *("held_gib_hours", "use_of_held_ratio", "memory_of_held_ratio", "use_max_ratio"),
        *("peak_mib", "held_mib"),
    ),
    ExportKind.SPANS: (
        *("node", "lease", "owner", "project", "kind", "start_at", "end_at", "is_open"),
        *("gpu", "gpu_permille", "memory_mib"),
    ),
    ExportKind.HOURS: (
        *_OF_SERIES,
        *("seen_gpu_hours", "active_gpu_hours", "idle_gpu_hours", "used_gpu_hours", "use_max_ratio"),
        *("memory_seen_gib_hours", "memory_used_gib_hours", "memory_max_mib", "energy_wh"),
    ),
    ExportKind.MINUTES: (
        *_OF_SERIES,
        *("seen_seconds", "use_mean_ratio", "use_max_ratio", "memory_mean_mib", "memory_max_mib"),
        "power_watts",
    ),
}


@dataclass(frozen=True, slots=True)
class ExportPage:
    """Hold rows by their columns; ``after`` leads to the next page, and is empty at the end."""

    rows: Sequence[Row]
    after: str = ""


Reader = Callable[[sqlite3.Connection, Source, HistoryFilter, str], tuple[list[Row], str]]


def export(db: sqlite3.Connection, kind: ExportKind, query: HistoryFilter, after: str) -> ExportPage:
    """Return the next page of rows of the time, with those of open leases as they are now."""
    if after and not _TOKENS[kind].fullmatch(after):
        raise RequestError(
            f"{shown(after)} is not a page token of {kind}", hint="give the one of the page before"
        )
    first, _, key = after.partition(":")
    for source in sources(db, query):
        if source.number < int(first or 0):
            continue
        rows, last = _READERS[kind](db, source, query, key if str(source.number) == first else "")
        if last:
            return ExportPage(rows, f"{source.number}:{last}")
    return ExportPage([])


def _leases(db: sqlite3.Connection, source: Source, query: HistoryFilter, key: str) -> tuple[list[Row], str]:
    where, values = conditions(source, query)
    rows = db.execute(
        f"""SELECT {SUMMARY} FROM lease l WHERE l.source = :source AND l.lease > :key
            AND (l.ended_at IS NULL OR l.ended_at * 1000 >= :since) AND l.created_at * 1000 < :until {where}
            ORDER BY l.lease LIMIT {LEASES_PER_PAGE}""",  # noqa: S608 - constants
        {**values, "key": key},
    ).fetchall()
    leases = [lease_history(db, source, LeaseSummary(*row)) for row in rows]
    return [_lease_row(lease) for lease in leases], leases[-1].summary.lease if leases else ""


def _lease_row(lease: LeaseHistory) -> Row:
    columns = asdict(lease.summary)
    columns["class"], columns["asked_models"] = columns.pop("lease_class"), columns.pop("models")
    for name in ("created_at", "ended_at"):
        del columns[name]
    return {
        "node": lease.node,
        **columns,
        "created_at": _seconds(lease.created_ms),
        "started_at": _seconds(lease.started_ms),
        "ended_at": _seconds(lease.ended_ms),
        "waited_seconds": _seconds(lease.waited_ms),
        "ran_seconds": _seconds(lease.run_ms),
        "gpus": ",".join(lease.gpu_labels),
        "models": ",".join(lease.models),
        **_figures(lease.account),
        "use_max_ratio": lease.use_max_ratio,
        "peak_mib": lease.peak_mib,
        "held_mib": lease.held_mib,
    }


def _figures(account: Account) -> Row:
    return {
        "held_gpu_hours": account.gpu_hours,
        "well_used_gpu_hours": account.well_used_hours,
        "too_big_gpu_hours": account.too_big_hours,
        "idle_gpu_hours": account.idle_hours,
        "unseen_gpu_hours": account.unseen_hours,
        "held_gib_hours": account.memory_gib_hours,
        "use_of_held_ratio": account.use_of_held_ratio,
        "memory_of_held_ratio": account.memory_of_held_ratio,
    }


def _spans(db: sqlite3.Connection, source: Source, query: HistoryFilter, key: str) -> tuple[list[Row], str]:
    """Return spans in the order of their numbers; before the first one the open spans."""
    where, values = conditions(source, query)
    columns = f"s.lease, l.owner, {PROJECT}, s.start_ms, s.end_ms, s.gpu, s.permille, s.memory_mib"
    within = f"s.start_ms < :until AND s.end_ms > :since AND {WITHIN_LEASE} {where}"
    joined = "JOIN lease l ON l.source = s.source AND l.lease = s.lease"
    closed = db.execute(
        f"""SELECT s.number, {columns} FROM span s {joined}
            WHERE s.source = :source AND s.number > :key AND {within}
            ORDER BY s.number LIMIT {SPANS_PER_PAGE}""",  # noqa: S608 - constants
        {**values, "key": int(key or -(2**62))},
    ).fetchall()
    rows: list[Row] = []
    if not key:
        still_open = db.execute(
            f"SELECT {columns} FROM open_span s {joined} WHERE s.source = :source AND {within}",  # noqa: S608 - constants
            values,
        )
        rows = [_span_row(source, row, is_open=True) for row in still_open]
    rows += [_span_row(source, row[1:], is_open=False) for row in closed]
    return rows, str(closed[-1][0]) if closed else "0" if rows else ""


# Any: a row has what the columns hold.
def _span_row(source: Source, row: Sequence[Any], *, is_open: bool) -> Row:
    lease, owner, project, start, end, gpu, permille, memory_mib = row
    return {
        "node": source.node,
        "lease": lease,
        "owner": owner,
        "project": project,
        "kind": "waited" if gpu is None else "held",
        "start_at": _seconds(source.day(start)),
        "end_at": _seconds(source.day(end)),
        "is_open": int(is_open),
        "gpu": gpu,
        "gpu_permille": permille,
        "memory_mib": memory_mib,
    }


def _hour_rows(
    db: sqlite3.Connection, source: Source, query: HistoryFilter, key: str, limit: int
) -> tuple[list[tuple[Row, HourUse]], str]:
    """Return hours of leases on GPUs, and of GPUs as a whole if no owner is chosen; each with its names.

    They come series by series, so that a page is read without the rows of other pages and other sources.
    """
    where, values = conditions(source, query)
    hour, _, series = key.partition(".")
    of_gpus = "OR series.lease = ''" if not where else ""
    rows = db.execute(
        f"""SELECT u.series, series.lease, coalesce(l.owner, ''), coalesce(l.project, ''), series.gpu, {USE}
            FROM series NOT INDEXED
            LEFT JOIN lease l ON l.source = series.source AND l.lease = series.lease
            CROSS JOIN use_hour u INDEXED BY use_hour_series ON u.series = series.number
            WHERE series.source = :source AND series.number >= :series
            AND (series.number > :series OR u.hour > :hour)
            AND u.hour >= :since / {HOUR_MS} AND u.hour < (:until + {HOUR_MS} - 1) / {HOUR_MS}
            AND ((l.lease IS NOT NULL {where}) {of_gpus})
            ORDER BY series.number, u.hour LIMIT :limit""",  # noqa: S608 - constants
        {**values, "hour": int(hour or -1), "series": int(series or 0), "limit": limit},
    ).fetchall()
    hours: list[tuple[Row, HourUse]] = [
        ({"node": source.node, "lease": lease, "owner": owner, "project": project, "gpu": gpu}, hour_of(row))
        for _, lease, owner, project, gpu, *row in rows
    ]
    return hours, f"{hours[-1][1].hour}.{rows[-1][0]}" if rows else ""


def _hours(db: sqlite3.Connection, source: Source, query: HistoryFilter, key: str) -> tuple[list[Row], str]:
    hours, last = _hour_rows(db, source, query, key, HOURS_PER_PAGE)
    return [
        {
            **names,
            "at": _seconds(source.day(hour.hour * HOUR_MS)),
            "seen_gpu_hours": hour.seen_permille_ms / PERMILLE_MS_PER_GPU_HOUR,
            "active_gpu_hours": hour.active_permille_ms / PERMILLE_MS_PER_GPU_HOUR,
            "idle_gpu_hours": hour.idle_permille_ms / PERMILLE_MS_PER_GPU_HOUR,
            "used_gpu_hours": hour.used_permille_ms / PERMILLE_MS_PER_GPU_HOUR,
            "use_max_ratio": hour.use_max_permille / 1000 if hour.seen_permille_ms else None,
            "memory_seen_gib_hours": hour.memory_seen_mib_ms / MIB_MS_PER_GIB_HOUR,
            "memory_used_gib_hours": hour.memory_used_mib_ms / MIB_MS_PER_GIB_HOUR,
            "memory_max_mib": hour.memory_max_mib if hour.memory_ms else None,
            "energy_wh": hour.energy_mj / MJ_PER_WH,
        }
        for names, hour in hours
    ], last


def _minutes(db: sqlite3.Connection, source: Source, query: HistoryFilter, key: str) -> tuple[list[Row], str]:
    hours, last = _hour_rows(db, source, query, key, HOURS_OF_MINUTES_PER_PAGE)
    rows: list[Row] = []
    for names, hour in hours:
        for number, minute in hour.seen_minutes():
            at_ms = hour.hour * HOUR_MS + number * MINUTE_MS
            if source.since_ms <= at_ms < source.until_ms:
                rows.append({**names, "at": _seconds(source.day(at_ms)), **asdict(minute)})
    return rows, last


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


_READERS: Mapping[ExportKind, Reader] = {
    ExportKind.LEASES: _leases,
    ExportKind.SPANS: _spans,
    ExportKind.HOURS: _hours,
    ExportKind.MINUTES: _minutes,
}
