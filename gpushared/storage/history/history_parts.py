"""Cut a node's history into parts for the coordinator of its pool, each after the place of the one before.

Spans and leases that are over never change, so a place in them is all that a coordinator needs to go on after
a cut link. The newest hours may still grow and are sent again. Leases that are not over go in every round,
and what they hold now goes with the last part of the round, read in the same moment as the last spans.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, TypeVar

from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.storage.history.hour_use import HourUse
from gpushared.storage.history.records import GpuFacts, HistoryBatch, SourceName

ROWS = 1000
"""Bound the rows of a part, without what leases hold now: about 250 KB, and a tenth of that compressed."""
MAX_OPEN_SPANS = 20_000
MAX_GPUS_OF_SOURCE = 512
"""More GPUs of a source are not described: a node could invent as many as the disk holds."""
MAX_TEXT = 256
"""Texts are cut to this length on their way to a coordinator."""

T = TypeVar("T")
Attempt = tuple[str, int]
"""A job's id, and the number of its attempt."""
LeaseOfJournal = tuple[int, str]
"""A journal of a node, and the id of a lease in it."""

_SUMMARY = ", ".join(column.name for column in fields(LeaseSummary))
_SPAN = "lease, project, start_ms, end_ms, gpu, permille, memory_mib"


@dataclass(frozen=True, slots=True)
class HistoryPosition:
    """Say how far a node's history has gone to the coordinator; the default is its beginning.

    ``ended_at`` and ``lease`` are the place among the leases that are over, ``hour`` and ``series`` the place
    among the hours, ``open_lease`` the place among the leases that are not over.
    """

    journal: int = 0
    span: int = 0
    ended_at: float = 0.0
    lease: str = ""
    hour: int = 0
    series: int = 0
    open_lease: str = ""


@dataclass(frozen=True, slots=True)
class HourSums:
    """Hold an hour's sums of ``HourUse``, without its minutes."""

    hour: int
    seen_permille_ms: int
    active_permille_ms: int
    idle_permille_ms: int
    used_permille_ms: int
    use_max_permille: int
    memory_seen_mib_ms: int
    memory_used_mib_ms: int
    memory_ms: int
    memory_max_mib: int
    energy_mj: int


@dataclass(frozen=True, slots=True)
class SeriesHours:
    lease: str
    gpu: str
    hours: tuple[HourSums, ...]


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """Hold one part of a node's history. ``open_spans`` are told in the last part of a journal only.

    ``next`` is the place after this part, from which the next round begins if there is no ``more``.
    ``realm`` is the realm of the node's own users.
    """

    journal: int
    at_ms: int
    ahead_ms: int
    next: HistoryPosition
    more: bool
    realm: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    leases: tuple[LeaseSummary, ...] = ()
    spans: tuple[tuple[int, Span], ...] = ()
    open_spans: tuple[Span, ...] = ()
    waits: tuple[tuple[LeaseId, str, int], ...] = ()
    uses: tuple[SeriesHours, ...] = ()

    def batch(self, node: str) -> HistoryBatch:
        """Return what a coordinator writes of the part, as rows of this node."""
        return HistoryBatch(
            SourceName(node, self.journal),
            self.at_ms,
            self.ahead_ms,
            self.gpus,
            self.leases,
            self.spans,
            None if self.more and self.next.journal == self.journal else self.open_spans,
            {(lease, reason): ms for lease, reason, ms in self.waits},
            {(series.lease, series.gpu): [_hour_use(hour) for hour in series.hours] for series in self.uses},
        )


def _hour_use(sums: HourSums) -> HourUse:
    hour = HourUse(*astuple(sums))
    hour.minutes = bytearray()
    return hour


def plain(text: str) -> str:
    """Return a text of a history as it can be shown: cut, and without characters that are not printable."""
    if len(text) <= MAX_TEXT and text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])


def with_plain_texts(record: T) -> T:
    """Return a record whose own texts are plain, without a look into the records within it."""
    # Any: a record of any kind; its fields say which of them are texts.
    data: Any = record
    values = {column.name: getattr(data, column.name) for column in fields(data)}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    changed = {name: plain(text) for name, text in texts.items() if text != plain(text)}
    return replace(data, **changed) if changed else record


# --- the node's side -----------------------------------------------------------------------------------


def part_after(
    db: sqlite3.Connection, position: HistoryPosition, pool: str, realm: str
) -> HistoryPart | None:
    """Return the part after a place, for the coordinator of ``pool``; None if nothing was recorded yet.

    A place in a journal that this file does not know is taken for the beginning. The journals come one after
    the other, the one that was written last as the last.
    """
    sources = db.execute(
        "SELECT number, journal, seen_ms, ahead_ms FROM source ORDER BY seen_ms, number"
    ).fetchall()
    if not sources:
        return None
    journals = [journal for _, journal, _, _ in sources]
    is_known = position.journal in journals
    index = journals.index(position.journal) if is_known else 0
    source, journal, seen_ms, ahead_ms = sources[index]
    reader = _Reader(db, source, position if is_known else HistoryPosition(journal))
    more = reader.read()
    after = reader.position
    if not more:
        newer = journals[index + 1 :]
        after = HistoryPosition(newer[0]) if newer else _next_round(after)
        more = bool(newer)
    return HistoryPart(
        journal=journal,
        at_ms=seen_ms,
        ahead_ms=ahead_ms,
        next=after,
        more=more,
        realm=realm,
        gpus=reader.gpus(),
        leases=tuple(_for_pool(lease, pool) for lease in reader.leases),
        spans=tuple(reader.spans),
        open_spans=tuple(reader.open_spans),
        waits=reader.waits(),
        uses=reader.uses(),
    )


def _next_round(after: HistoryPosition) -> HistoryPosition:
    """Return the place for the next round: leases that ended at the same time, and the newest hours, again."""
    return replace(after, lease="", hour=max(0, after.hour - 1), series=0, open_lease="")


def _for_pool(lease: LeaseSummary, pool: str) -> LeaseSummary:
    """Return what the coordinator may know: image and names only of the pool's own jobs."""
    if not pool or lease.pool != pool:
        lease = replace(lease, image="", container_name="", outcome_text="", job="", attempt=0, pool="")
    return with_plain_texts(lease)


class _Reader:
    """Read one part of one source, and know the place after it."""

    def __init__(self, db: sqlite3.Connection, source: int, position: HistoryPosition) -> None:
        self.position = position
        self.spans: list[tuple[int, Span]] = []
        self.open_spans: list[Span] = []
        self.leases: list[LeaseSummary] = []
        self._hours: list[tuple[str, str, HourSums]] = []
        self._db = db
        self._source = source
        self._limit = ROWS

    def read(self) -> bool:
        """Read until the part is full, and return True if it is: then there may be more."""
        for step in (self._read_spans, self._read_ended, self._read_hours, self._read_open):
            step()
            if self._limit <= 0:
                return True
        # The numbers below zero are of spans that a newer journal left open, as the coordinator has them.
        rows = self._rows(
            f"""SELECT {_SPAN} FROM open_span WHERE source = :source
                UNION ALL SELECT {_SPAN} FROM span WHERE source = :source AND number < 0
                LIMIT {MAX_OPEN_SPANS}"""  # noqa: S608 - constants
        )
        self.open_spans = [_span(row) for row in rows]
        return False

    def _rows(self, query: str, **values: object) -> Sequence[tuple[Any, ...]]:
        return self._db.execute(query, {"source": self._source, "limit": self._limit, **values}).fetchall()

    def _read_spans(self) -> None:
        rows = self._rows(
            f"""SELECT number, {_SPAN} FROM span WHERE source = :source AND number > :number
                ORDER BY number LIMIT :limit""",  # noqa: S608 - constants
            number=max(0, self.position.span),
        )
        self.spans = [(number, _span(row)) for number, *row in rows]
        self._limit -= len(rows)
        if rows:
            self.position = replace(self.position, span=rows[-1][0])

    def _read_ended(self) -> None:
        rows = self._rows(
            f"""SELECT {_SUMMARY} FROM lease WHERE source = :source AND ended_at IS NOT NULL
                AND (ended_at, lease) > (:ended_at, :lease)
                ORDER BY ended_at, lease LIMIT :limit""",  # noqa: S608 - constants
            ended_at=self.position.ended_at,
            lease=self.position.lease,
        )
        self._take_leases(rows)
        if rows:
            last = self.leases[-1]
            self.position = replace(self.position, ended_at=last.ended_at or 0.0, lease=last.lease)

    def _read_open(self) -> None:
        rows = self._rows(
            f"""SELECT {_SUMMARY} FROM lease WHERE source = :source AND ended_at IS NULL AND lease > :lease
                ORDER BY lease LIMIT :limit""",  # noqa: S608 - constants
            lease=self.position.open_lease,
        )
        self._take_leases(rows)
        if rows:
            self.position = replace(self.position, open_lease=self.leases[-1].lease)

    def _take_leases(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self.leases += [LeaseSummary(*row) for row in rows]
        self._limit -= len(rows)

    def _read_hours(self) -> None:
        columns = ", ".join(f"u.{column.name}" for column in fields(HourSums))
        rows = self._rows(
            f"""SELECT u.series, s.lease, s.gpu, {columns} FROM use_hour u JOIN series s ON s.number = u.series
                WHERE s.source = :source AND (u.hour, u.series) > (:hour, :series)
                ORDER BY u.hour, u.series LIMIT :limit""",  # noqa: S608 - constants
            hour=self.position.hour,
            series=self.position.series,
        )
        self._hours = [(lease, gpu, HourSums(*row)) for _, lease, gpu, *row in rows]
        self._limit -= len(rows)
        if rows:
            self.position = replace(self.position, hour=self._hours[-1][2].hour, series=rows[-1][0])

    def gpus(self) -> tuple[GpuFacts, ...]:
        rows = self._rows(
            f"""SELECT id, label, model, memory_mib FROM gpu WHERE source = :source
                LIMIT {MAX_GPUS_OF_SOURCE}"""  # noqa: S608 - constants
        )
        return tuple(GpuFacts(*row) for row in rows)

    def waits(self) -> tuple[tuple[LeaseId, str, int], ...]:
        return tuple(
            (lease.lease, reason, ms)
            for lease in self.leases
            for reason, ms in self._rows(
                "SELECT reason, ms FROM wait WHERE source = :source AND lease = :lease", lease=lease.lease
            )
        )

    def uses(self) -> tuple[SeriesHours, ...]:
        by_series: dict[tuple[str, str], list[HourSums]] = defaultdict(list)
        for lease, gpu, hour in self._hours:
            by_series[lease, gpu].append(hour)
        return tuple(SeriesHours(lease, gpu, tuple(hours)) for (lease, gpu), hours in by_series.items())


def _span(row: Sequence[Any]) -> Span:
    lease, project, start_ms, end_ms, gpu, permille, memory_mib = row
    return Span(lease, project, start_ms, end_ms, gpu, permille, memory_mib * MIB)


# --- the coordinator's side ----------------------------------------------------------------------------


def position_of(db: sqlite3.Connection, node: str) -> HistoryPosition:
    """Return how far the history of a node has come here, to begin a round from."""
    row = db.execute(
        "SELECT number, journal FROM source WHERE node = ? ORDER BY seen_ms DESC, number DESC LIMIT 1",
        (node,),
    ).fetchone()
    if row is None:
        return HistoryPosition()
    source, journal = row
    (span,) = db.execute("SELECT max(number) FROM span WHERE source = ?", (source,)).fetchone()
    (ended_at,) = db.execute("SELECT max(ended_at) FROM lease WHERE source = ?", (source,)).fetchone()
    hour = db.execute(
        """SELECT u.hour FROM use_hour u JOIN series s ON s.number = u.series WHERE s.source = ?
           ORDER BY u.hour DESC LIMIT 1""",
        (source,),
    ).fetchone()
    newest = HistoryPosition(journal, max(0, span or 0), ended_at or 0.0, hour=hour[0] if hour else 0)
    return _next_round(newest)


def leases_of_jobs(db: sqlite3.Connection, node: str, jobs: Collection[str]) -> dict[Attempt, LeaseOfJournal]:
    """Return the journal and the lease of each attempt of these jobs that are known of the node."""
    leases = {}
    for job in jobs:
        rows = db.execute(
            """SELECT attempt, journal, lease FROM lease JOIN source ON source.number = lease.source
               WHERE job = ? AND job != '' AND node = ?""",
            (job, node),
        )
        leases.update({(job, attempt): (journal, lease) for attempt, journal, lease in rows})
    return leases
