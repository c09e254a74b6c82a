"""Convert a node's history to bytes for its coordinator and back, and check that it is possible.

A part is compressed JSON of the records. The bounds of ``bounds`` hold for each number, and the ones here
for the sizes and for what numbers must be to each other, because one node must not spoil the sums of all.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TypeVar

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import LeaseId
from gpushared.jobs import bounds
from gpushared.pool.link import codec
from gpushared.storage.history.history_parts import (
    MAX_GPUS_OF_SOURCE,
    MAX_OPEN_SPANS,
    MAX_TEXT,
    ROWS,
    HistoryPart,
    HistoryPosition,
    plain,
    with_plain_texts,
)
from gpushared.storage.history.hour_use import HOUR_MS
from gpushared.storage.records import RecordError, from_json, to_json

T = TypeVar("T")

MAX_PART_BYTES = 8 << 20
MAX_WAITS = 50 * ROWS
AHEAD_MS = 60_000
"""A span may end so long after the part was made, because spans are rounded and clocks are read twice."""
DAY_MS = 24 * HOUR_MS
"""The clock of a node may be so much ahead of the coordinator's."""
EARLIEST_DAY_MS = 1_262_304_000_000
"""No history begins before the year 2010."""


def position_bytes(position: HistoryPosition) -> bytes:
    return to_json(HistoryPosition, position).encode()


def read_position(data: bytes) -> HistoryPosition:
    """Read a place in a history. Raises Unreadable, RequestError."""
    return _read(HistoryPosition, data, "a place in a history")


def part_bytes(part: HistoryPart | None) -> bytes:
    """Return a part compressed, or no bytes for no part."""
    return b"" if part is None else zlib.compress(to_json(HistoryPart, part).encode(), level=1)


def unpack(data: bytes) -> bytes:
    """Return the text of a part. Raises Unreadable."""
    if not data:
        return data
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_PART_BYTES)
    except zlib.error as error:
        raise codec.Unreadable(f"a part of a history that cannot be unpacked: {error}") from error
    if not reader.eof:
        raise codec.Unreadable("a part of a history that is cut off, or too long")
    return text


def read_part(text: bytes, now_ms: int) -> HistoryPart | None:
    """Read an unpacked part, None from no bytes, at this time of day.

    Raises Unreadable, and RequestError for an impossible part.
    """
    if not text:
        return None
    part = _read(HistoryPart, text, "a part of a history")
    _check(part, now_ms)
    return _usable(part)


def _read(kind: type[T], data: bytes, name: str) -> T:
    try:
        record = from_json(kind, codec.read_text(data))
    except (RecordError, RequestError) as error:
        raise codec.Unreadable(f"{name} that this version cannot read: {error}"[:MAX_TEXT]) from error
    bounds.check_record(record)
    return record


def _check(part: HistoryPart, now_ms: int) -> None:
    hours = [hour for series in part.uses for hour in series.hours]
    for count, most, name in (
        (len(part.spans), ROWS, "spans"),
        (len(part.leases), ROWS, "leases"),
        (len(hours), ROWS, "hours"),
        (len(part.uses), ROWS, "series"),
        (len(part.open_spans), MAX_OPEN_SPANS, "open spans"),
        (len(part.waits), MAX_WAITS, "waits"),
        (len(part.gpus), MAX_GPUS_OF_SOURCE, "GPUs"),
    ):
        if count > most:
            raise RequestError(f"{count} {name} in one part of a history, and at most {most} are possible")
    if part.at_ms + part.ahead_ms > now_ms + DAY_MS:
        raise RequestError("a history that goes on into the future: is the clock of the node right?")
    earliest_ms, latest_ms = EARLIEST_DAY_MS - part.ahead_ms, part.at_ms + AHEAD_MS
    for span in (*(span for _, span in part.spans), *part.open_spans):
        if not earliest_ms <= span.start_ms <= span.end_ms <= latest_ms:
            raise RequestError(f"a span from {span.start_ms} to {span.end_ms} cannot be")
    for lease in part.leases:
        if max(lease.created_at, lease.ended_at or 0.0) * 1000 > latest_ms:
            raise RequestError(f"a lease of {lease.created_at:.0f} to {lease.ended_at} cannot be")
    for hour in hours:
        if not earliest_ms - HOUR_MS <= hour.hour * HOUR_MS <= latest_ms:
            raise RequestError(f"the hour {hour.hour} cannot be")


def _usable(part: HistoryPart) -> HistoryPart:
    """Return the part with texts that can be shown, and with waits of its own leases only.

    A bad text must not hold up the other rows, and waits of no lease would only fill the disk.
    """
    leases = tuple(map(with_plain_texts, part.leases))
    waits = ((LeaseId(plain(lease)), plain(reason), ms) for lease, reason, ms in part.waits)
    names = {lease.lease for lease in leases}
    return replace(
        with_plain_texts(part),
        next=with_plain_texts(part.next),
        gpus=tuple(map(with_plain_texts, part.gpus)),
        leases=leases,
        spans=tuple((number, with_plain_texts(span)) for number, span in part.spans),
        open_spans=tuple(map(with_plain_texts, part.open_spans)),
        waits=tuple(wait for wait in waits if wait[0] in names),
        uses=tuple(map(with_plain_texts, part.uses)),
    )
