"""Read the history's tables: accounts, leases and series, each within a time."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from gpushared.domain.accounting.account import Account, too_big_permille_ms
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.storage.history.history_sources import (
    CLIPPED,
    PROJECT,
    WITHIN_LEASE,
    Source,
    conditions,
    sources,
    spans_of,
)
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS, HourUse, Minute
from gpushared.storage.history.records import (
    HistoryFilter,
    Holding,
    LeaseAccount,
    LeaseHistory,
    Point,
    Resumption,
    SeriesName,
    SourceName,
)

SUMMARY = ", ".join(f"l.{column.name}" for column in fields(LeaseSummary))
USE = ", ".join(f"u.{column.name}" for column in fields(HourUse))
_USE_SUMS = ", ".join(f"u.{column.name}" for column in fields(HourUse) if column.name != "minutes")
_TOTAL = "CAST(total({}) AS INTEGER)"
"""Sum without an error for the impossible figures of a malicious node; sums of sane ones are exact."""
_USED = (
    *("active_permille_ms", "idle_permille_ms", "used_permille_ms"),
    *("memory_seen_mib_ms", "memory_used_mib_ms"),
)


def resumption(db: sqlite3.Connection, name: SourceName) -> Resumption:
    """Return what a recorder goes on with."""
    row = db.execute(
        "SELECT number, batch FROM source WHERE node = ? AND journal = ?", (name.node, name.journal)
    ).fetchone()
    if row is None:
        return Resumption(None, 0, 0, {})
    source, batch = row
    (newest,) = db.execute("SELECT max(ended_at) FROM lease WHERE source = ?", (source,)).fetchone()
    (span,) = db.execute("SELECT max(number) FROM span WHERE source = ?", (source,)).fetchone()
    waits = db.execute(
        """SELECT wait.lease, reason, ms FROM wait JOIN lease l ON l.source = wait.source AND l.lease = wait.lease
           WHERE wait.source = ? AND l.ended_at IS NULL""",
        (source,),
    )
    return Resumption(newest, max(0, span or 0), batch, {(lease, reason): ms for lease, reason, ms in waits})


def accounts(db: sqlite3.Connection, query: HistoryFilter) -> list[LeaseAccount]:
    """Return the account of each lease on each GPU, for what was held in the time."""
    accounts = []
    for source in sources(db, query):
        uses = _uses(db, source, query.lease)
        where, values = conditions(source, query)
        rows = db.execute(
            f"""SELECT s.lease, l.owner, {PROJECT}, l.lease_class, s.gpu,
                       coalesce(g.label, ''), coalesce(g.model, ''), series.number, series.peak_mib,
                       {_TOTAL.format(f"s.permille * {CLIPPED}")}, {_TOTAL.format(f"s.memory_mib * {CLIPPED}")},
                       sum({CLIPPED})
                FROM {spans_of(query)} s JOIN lease l ON l.source = s.source AND l.lease = s.lease
                LEFT JOIN gpu g ON g.source = s.source AND g.id = s.gpu
                LEFT JOIN series ON series.source = s.source AND series.lease = s.lease
                    AND series.gpu = s.gpu
                WHERE s.gpu IS NOT NULL AND s.start_ms < :until AND s.end_ms > :since {where}
                AND {WITHIN_LEASE}
                GROUP BY s.lease, s.gpu, s.project""",  # noqa: S608 - constants
            values,
        )
        for lease, owner, project, lease_class, _gpu, label, model, *figures in rows:
            series, peak, permille_ms, mib_ms, ms = figures
            # The use of a lease is counted once, even if its project changed.
            used = uses.pop(series, Account())
            account = used + Account(permille_ms, mib_ms)
            too_big = too_big_permille_ms(used.active_permille_ms, mib_ms / max(1, ms), peak)
            account = replace(account, too_big_permille_ms=too_big)
            accounts.append(
                LeaseAccount(
                    *(source.number, source.node, lease, owner, project, lease_class, label, model),
                    account=account,
                    peak_mib=peak,
                )
            )
    return accounts


def leases(db: sqlite3.Connection, query: HistoryFilter, limit: int) -> list[LeaseHistory]:
    """Return the leases that ended in the time, the newest end first.

    If ``query`` names a lease or a job, leases that are not over are there too.
    """
    matches: list[tuple[Source, LeaseSummary]] = []
    ended = "l.ended_at >= :since / 1000.0 AND l.ended_at < :until / 1000.0"
    order = "l.ended_at DESC"
    if query.lease or query.job:
        ended, order = f"(l.ended_at IS NULL OR ({ended}))", f"l.ended_at IS NULL DESC, {order}"
    for source in sources(db, query):
        where, values = conditions(source, query)
        outcome = "AND l.outcome = :outcome" if query.outcome else ""
        rows = db.execute(
            f"""SELECT {SUMMARY} FROM lease l WHERE l.source = :source AND {ended} {where} {outcome}
                ORDER BY {order} LIMIT :limit""",  # noqa: S608 - constants
            {**values, "limit": limit, "outcome": query.outcome},
        )
        matches += [(source, LeaseSummary(*row)) for row in rows]
    matches.sort(key=lambda match: match[0].ended_day(match[1].ended_at), reverse=True)
    return [lease_history(db, *match) for match in matches[:limit]]


def points(
    db: sqlite3.Connection, series: SeriesName, since_ms: int, until_ms: int, *, by_hour: bool
) -> list[Point]:
    """Return the minutes of a series that meet a time, or its hours.

    An hour whose minutes were dropped is one point.
    """
    points: list[Point] = []
    for source in sources(db, HistoryFilter(since_ms, until_ms, node=series.node, source=series.source)):
        minutes = "x''" if by_hour else "u.minutes"
        rows = db.execute(
            f"""SELECT {_USE_SUMS}, {minutes} FROM series JOIN use_hour u ON u.series = series.number
                WHERE series.source = ? AND series.lease = ? AND series.gpu = ?
                AND u.hour >= ? AND u.hour * {HOUR_MS} < ? ORDER BY u.hour""",  # noqa: S608 - constants
            (source.number, series.lease, series.gpu, source.since_ms // HOUR_MS, source.until_ms),
        )
        points += [
            Point(source.day(at_ms), length_ms, minute)
            for row in rows
            for at_ms, length_ms, minute in _points_of(hour_of(row))
            if source.since_ms < at_ms + length_ms and at_ms < source.until_ms
        ]
    return points


def holdings(db: sqlite3.Connection, query: HistoryFilter, limit: int) -> list[Holding]:
    """Return who held which GPU in the time, open spans too, the newest beginning first."""
    holdings: list[Holding] = []
    for source in sources(db, query):
        where, values = conditions(source, query)
        rows = db.execute(
            f"""SELECT s.lease, l.owner, {PROJECT}, s.gpu, max(s.start_ms, :since), min(s.end_ms, :until),
                       s.permille, s.memory_mib
                FROM {spans_of(query)} s JOIN lease l ON l.source = s.source AND l.lease = s.lease
                WHERE s.gpu IS NOT NULL AND s.start_ms < :until AND s.end_ms > :since AND {WITHIN_LEASE} {where}
                ORDER BY s.start_ms DESC LIMIT :limit""",  # noqa: S608 - constants
            {**values, "limit": limit},
        )
        holdings += [
            Holding(lease, owner, project, gpu, source.day(since), source.day(until), permille, mib)
            for lease, owner, project, gpu, since, until, permille, mib in rows
        ]
    return holdings


# --- pieces --------------------------------------------------------------------------------------------


def _uses(db: sqlite3.Connection, source: Source, lease: str) -> dict[int, Account]:
    """Return what each series of the source, or of one lease in it, used in the window."""
    since, until = source.since_ms, min(source.until_ms, source.seen_ms + HOUR_MS)
    first, last = -(-since // HOUR_MS), until // HOUR_MS
    chosen = "series.source = :source AND " + ("series.lease = :lease" if lease else "series.lease != ''")
    values = {"source": source.number, "lease": lease}
    summed = ", ".join(_TOTAL.format(f"u.{name}") for name in _USED)
    rows = db.execute(
        f"""SELECT u.series, {summed} FROM use_hour u JOIN series ON series.number = u.series
            WHERE u.hour >= :first AND u.hour < :last AND {chosen} GROUP BY u.series""",  # noqa: S608 - constants
        {**values, "first": first, "last": last},
    )
    uses: dict[int, Account] = defaultdict(Account)
    for series, active, idle, used, seen_mib, used_mib in rows:
        uses[series] = _used(active, idle, used, seen_mib, used_mib)
    edges = {hour for hour in (since // HOUR_MS, last) if not first <= hour < last and hour * HOUR_MS < until}
    for edge in edges:
        rows = db.execute(
            f"""SELECT u.series, {USE} FROM use_hour u JOIN series ON series.number = u.series
                WHERE u.hour = :edge AND {chosen}""",  # noqa: S608 - constants
            {**values, "edge": edge},
        )
        for series, *row in rows:
            uses[series] += _part_of(hour_of(row), since, until, source.seen_ms)
    return uses


def _used(active: int, idle: int, used: int, memory_seen: int, memory_used: int) -> Account:
    return Account(
        active_permille_ms=active,
        idle_permille_ms=idle,
        used_permille_ms=used,
        memory_seen_mib_ms=memory_seen,
        memory_used_mib_ms=memory_used,
    )


def _part_of(hour: HourUse, since_ms: int, until_ms: int, seen_ms: int) -> Account:
    """Return the part of an hour that lies in a time: each sum by its own minutes.

    A sum of which no minute is known is cut as if all minutes were alike. The hour that was under way at
    ``seen_ms`` is known up to then only.
    """
    begin = hour.hour * HOUR_MS
    minutes = [(begin + number * MINUTE_MS, minute) for number, minute in hour.seen_minutes()]
    even = _inside_and_whole(((at_ms, minute.seen_seconds) for at_ms, minute in minutes), since_ms, until_ms)
    if not even[1]:
        known_minutes = range(begin, min(begin + HOUR_MS, max(seen_ms, begin + MINUTE_MS)), MINUTE_MS)
        even = _inside_and_whole(((at_ms, 1) for at_ms in known_minutes), since_ms, until_ms)
    parts = []
    for name, weight in _WEIGHTS.items():
        weights = ((at_ms, weight(minute)) for at_ms, minute in minutes)
        inside, whole = _inside_and_whole(weights, since_ms, until_ms)
        inside, whole = (inside, whole) if whole else even
        parts.append(getattr(hour, name) * inside // whole)
    return _used(*parts)


def _inside_and_whole(weights: Iterable[tuple[int, int]], since_ms: int, until_ms: int) -> tuple[int, int]:
    inside = whole = 0
    for at_ms, weight in weights:
        whole += weight
        inside += weight if since_ms <= at_ms < until_ms else 0
    return inside, whole


_WEIGHTS: Mapping[str, Callable[[Minute], int]] = {
    "active_permille_ms": lambda minute: minute.seen_seconds if minute.use_max_ratio else 0,
    "idle_permille_ms": lambda minute: 0 if minute.use_max_ratio else minute.seen_seconds,
    "used_permille_ms": lambda minute: round((minute.use_mean_ratio or 0) * 1000) * minute.seen_seconds,
    "memory_seen_mib_ms": lambda minute: int(minute.memory_mean_mib is not None),
    "memory_used_mib_ms": lambda minute: minute.memory_mean_mib or 0,
}
"""Say how much of an hour's sum a minute has, in the order of ``_used``."""


def lease_history(db: sqlite3.Connection, source: Source, summary: LeaseSummary) -> LeaseHistory:
    held_by = "FROM {} s {} JOIN lease l USING (source, lease) WHERE source = ?1 AND lease = ?2"
    columns = "s.start_ms, s.end_ms, s.gpu, s.permille, s.memory_mib"
    spans = db.execute(
        f"""SELECT {columns} {held_by.format("span", "INDEXED BY span_lease")} AND {WITHIN_LEASE}
            UNION ALL SELECT {columns} {held_by.format("open_span", "")} AND {WITHIN_LEASE}
            ORDER BY 1""",
        (source.number, summary.lease),
    ).fetchall()
    held_spans = [span for span in spans if span[2] is not None]
    runs = {(start, end) for start, end, *_ in held_spans}
    use = _life(db, source, summary.lease)
    account = Account(
        sum(permille * (end - start) for start, end, _, permille, _ in held_spans),
        sum(mib * (end - start) for start, end, _, _, mib in held_spans),
    )
    at_once: dict[tuple[int, int], int] = defaultdict(int)
    for start, end, _, _, mib in held_spans:
        at_once[start, end] += mib
    gpus = sorted({gpu for _, _, gpu, _, _ in held_spans})
    names = dict[str, tuple[str, str]]()
    for gpu in gpus:
        row = db.execute(
            "SELECT label, model FROM gpu WHERE source = ? AND id = ?", (source.number, gpu)
        ).fetchone()
        if row is not None:
            names[gpu] = row
    labels = sorted({label for label, _ in names.values()})
    account = account + use.account
    too_big = too_big_permille_ms(
        use.account.active_permille_ms, max(at_once.values(), default=0), use.peak_mib
    )
    return LeaseHistory(
        source=source.number,
        node=source.node,
        summary=summary,
        created_ms=source.day(round(summary.created_at * 1000)),
        started_ms=source.day(held_spans[0][0]) if held_spans else None,
        ended_ms=None if summary.ended_at is None else source.day(round(summary.ended_at * 1000)),
        run_ms=sum(end - start for start, end in runs),
        waited_ms=sum(end - start for start, end, gpu, _, _ in spans if gpu is None),
        account=replace(account, too_big_permille_ms=too_big),
        use_max_ratio=use.max_ratio,
        peak_mib=use.peak_mib,
        held_mib=max(at_once.values(), default=None),
        gpus=tuple(GpuId(gpu) for gpu in gpus),
        gpu_labels=tuple(labels),
        models=tuple(sorted({model for _, model in names.values()})),
    )


class _Life(NamedTuple):
    """Hold what a lease used over its life, on all its GPUs."""

    account: Account
    max_ratio: float | None
    peak_mib: int | None


def _life(db: sqlite3.Connection, source: Source, lease: LeaseId) -> _Life:
    account, greatest = Account(), list[float]()
    series = db.execute(
        "SELECT number, peak_mib FROM series WHERE source = ? AND lease = ?", (source.number, lease)
    ).fetchall()
    for number, _ in series:
        for table in ("use_hour", "dropped_hours"):
            row = db.execute(
                f"""SELECT {", ".join(map(_TOTAL.format, _USED))}, max(use_max_permille), max(seen_permille_ms)
                    FROM {table} WHERE series = ?""",  # noqa: S608 - constants
                (number,),
            ).fetchone()
            *sums, max_permille, seen = (figure or 0 for figure in row)
            account += _used(*sums)
            greatest += [max_permille / 1000] if seen else []
    peaks = [peak for _, peak in series if peak is not None]
    return _Life(account, max(greatest, default=None), sum(peaks) if peaks else None)


# Any: a row has what the columns hold.
def hour_of(row: Sequence[Any]) -> HourUse:
    hour = HourUse(*row[:-1])
    hour.minutes = bytearray(row[-1])
    return hour


def _points_of(hour: HourUse) -> Iterator[tuple[int, int, Minute]]:
    """Yield the beginning, the length and the figures of each point of an hour."""
    begin = hour.hour * HOUR_MS
    if hour.minutes:
        for number, minute in hour.seen_minutes():
            yield begin + number * MINUTE_MS, MINUTE_MS, minute
        return
    seen = hour.seen_permille_ms
    memory_ms = hour.memory_ms
    yield (
        begin,
        HOUR_MS,
        Minute(
            seen_seconds=60,
            use_mean_ratio=hour.used_permille_ms / seen if seen else None,
            use_max_ratio=hour.use_max_permille / 1000 if seen else None,
            memory_mean_mib=hour.memory_used_mib_ms // memory_ms if memory_ms else None,
            memory_max_mib=hour.memory_max_mib if memory_ms else None,
            power_watts=None,
        ),
    )
