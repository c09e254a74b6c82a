"""Convert a node's history to bytes for its coordinator and back, and check that it is possible.

A part is compressed JSON of the records. The bounds of ``bounds`` hold for each number, and the ones here
for the sizes and for what numbers must be to each other, because one node must not spoil the sums of all.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.span import Span
from gpushared.jobs import bounds
from gpushared.pool.link import codec
from gpushared.storage.history.history_parts import (
    MAX_OPEN_SPANS,
    MAX_TEXT,
    ROWS,
    HistoryPart,
    HistoryPosition,
)
from gpushared.storage.records import RecordError, from_json, to_json

T = TypeVar("T")

MAX_PART_BYTES = 8 << 20
MAX_GPUS_KNOWN = 10_000
MAX_WAITS = 50 * ROWS
AHEAD_MS = 60_000
"""A span may end so long after the part was made, because spans are rounded and clocks are read twice."""


def position_bytes(position: HistoryPosition) -> bytes:
    return to_json(HistoryPosition, position).encode()


def read_position(data: bytes) -> HistoryPosition:
    """Read a place in a history. Raises Unreadable, RequestError."""
    return _read(HistoryPosition, data, "a place in a history")


def part_bytes(part: HistoryPart | None) -> bytes:
    """Return a part compressed, or no bytes for no part."""
    return b"" if part is None else zlib.compress(to_json(HistoryPart, part).encode(), level=1)


def read_part(data: bytes) -> HistoryPart | None:
    """Read a part, None from no bytes. Raises Unreadable, and RequestError for an impossible part."""
    if not data:
        return None
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_PART_BYTES)
    except zlib.error as error:
        raise codec.Unreadable(f"a part of a history that cannot be unpacked: {error}") from error
    if not reader.eof:
        raise codec.Unreadable("a part of a history that is cut off, or too long")
    part = _read(HistoryPart, text, "a part of a history")
    _check(part)
    return part


def _read(kind: type[T], data: bytes, what: str) -> T:
    try:
        record = from_json(kind, codec.read_text(data))
    except (RecordError, RequestError) as error:
        raise codec.Unreadable(f"{what} that this version cannot read: {error}"[:MAX_TEXT]) from error
    bounds.check_record(record)
    return record


def _check(part: HistoryPart) -> None:
    hours = sum(len(one.hours) for one in part.uses)
    for count, most, what in (
        (len(part.spans), ROWS, "spans"),
        (len(part.leases), ROWS, "leases"),
        (hours, ROWS, "hours"),
        (len(part.uses), ROWS, "series"),
        (len(part.open_spans), MAX_OPEN_SPANS, "open spans"),
        (len(part.waits), MAX_WAITS, "waits"),
        (len(part.gpus), MAX_GPUS_KNOWN, "GPUs"),
    ):
        if count > most:
            raise RequestError(f"{count} {what} in one part of a history, and at most {most} are possible")
    for span in (*(span for _, span in part.spans), *part.open_spans):
        _check_span(span, part.at_ms + AHEAD_MS)
    for lease in part.leases:
        _check_summary(lease)
    for reason in {reason for _, reason, _ in part.waits}:
        _check_text(reason)
    for gpu in part.gpus:
        _check_text(gpu.id, gpu.label, gpu.model)
    for series in part.uses:
        _check_text(series.lease, series.gpu)
    _check_text(part.realm, part.next.lease, part.next.open_lease)


def _check_span(span: Span, latest_ms: int) -> None:
    if not span.start_ms <= span.end_ms <= latest_ms:
        raise RequestError(f"a span from {span.start_ms} to {span.end_ms} cannot be")
    _check_text(span.lease, span.project, span.gpu or "")


def _check_summary(lease: LeaseSummary) -> None:
    _check_text(
        *(lease.lease, lease.owner, lease.project, lease.lease_class, lease.image, lease.container_name),
        *(lease.job, lease.pool, lease.models, lease.isolation, lease.outcome, lease.outcome_text),
    )


def _check_text(*texts: str) -> None:
    for text in texts:
        if len(text) > MAX_TEXT or not text.isprintable():
            raise RequestError("a text of a history that nobody can be shown")
