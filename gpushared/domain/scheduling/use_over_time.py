"""Record each project's use: whole numbers that add up, and the decayed sum that fair share goes by.

Use is recorded in permille-milliseconds of GPU, in buckets of time, as integers: a lease's interval may be
recorded in one piece or in many, in any order, and gives the same numbers. So the books are exact after a
crash at any point: an interval that has ended is in the journal with the lease's end, and one that has not
ended is counted from the lease itself whenever somebody asks. The weights of old use are whole numbers, too,
and the decayed sums are worked out anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

BUCKET_MS = 3_600_000
"""The bucket is the same for every half-life, so that the stored books outlive a change of it."""
WEIGHT_BITS = 40
"""Weights are whole numbers, so a sum is the same in any order."""
KEPT_HALF_LIVES = 10
"""Older use counts less than a thousandth and is dropped."""
PERMILLE_MS_PER_GPU_SECOND = 1_000_000


class Interval(NamedTuple):
    """Record that a project held so much of the GPUs from start to end (epoch seconds)."""

    project: str
    permille: int
    start: float
    end: float


Books = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Usage:
    """Count permille-milliseconds by project and bucket. The journal stores ``books``."""

    half_life_seconds: float
    books: Books = field(default_factory=dict)

    @property
    def _half_life_buckets(self) -> float:
        return max(1e-9, self.half_life_seconds * 1000 / BUCKET_MS)

    def record(self, intervals: Iterable[Interval]) -> Usage:
        """Return the books with these intervals added."""
        books, changed = dict(self.books), dict[str, dict[int, int]]()
        for interval in intervals:
            if interval.project not in changed:
                changed[interval.project] = dict(books.get(interval.project, {}))
            _add(changed[interval.project], interval)
        return replace(self, books=books | changed)

    def prune(self, now: float) -> Usage:
        """Return the books without the use that is too old to count."""
        first = self._first(now)
        recent = {
            project: buckets
            if min(buckets, default=first) >= first
            else {at: used for at, used in buckets.items() if at >= first}
            for project, buckets in self.books.items()
        }
        return replace(self, books={project: buckets for project, buckets in recent.items() if buckets})

    def decayed(self, now: float, running: RunningUse | Iterable[Interval] = ()) -> dict[str, float]:
        """Return the decayed GPU-seconds of each project at ``now``; ``running``: intervals not yet ended."""
        at, first = round(now * 1000) // BUCKET_MS, self._first(now)
        lasting = (running if isinstance(running, RunningUse) else _running(running)).books(now, first)
        half_life, sums = self._half_life_buckets, dict[str, int]()
        for books in (lasting, self.books):
            for project, buckets in books.items():
                weighed = [
                    used * _weight(at - bucket, half_life)
                    for bucket, used in buckets.items()
                    if bucket >= first
                ]
                sums[project] = sums.get(project, 0) + sum(weighed)
        return {
            project: math.ldexp(total, -WEIGHT_BITS) / PERMILLE_MS_PER_GPU_SECOND
            for project, total in sums.items()
        }

    def _first(self, now: float) -> int:
        """Return the oldest bucket that counts. A forecast may ask for a day that is a lifetime away."""
        return round(now * 1000) // BUCKET_MS - round(KEPT_HALF_LIVES * self._half_life_buckets)

    def total(self, project: str) -> float:
        """Return the GPU-seconds in the books of a project, undecayed."""
        return sum(self.books.get(project, {}).values()) / PERMILLE_MS_PER_GPU_SECOND


@dataclass(slots=True)
class _Begun:
    """Sum the holdings that began in one bucket, and keep the single starts for a clock that was set back."""

    permille: int = 0
    permille_ms: int = 0
    """The sum of each size times its start."""
    newest_ms: int = 0
    starts: dict[int, list[int]] = field(default_factory=dict)
    """By start, how many holdings began then, and their permille."""

    def change(self, start_ms: int, permille: int, sign: int) -> None:
        sums = self.starts.setdefault(start_ms, [0, 0])
        sums[0] += sign
        sums[1] += sign * permille
        if not sums[0]:
            del self.starts[start_ms]
        self.permille += sign * permille
        self.permille_ms += sign * permille * start_ms
        self.newest_ms = max(self.newest_ms, start_ms)

    def used(self, until_ms: int) -> int:
        """Return the permille-milliseconds up to a moment."""
        if self.newest_ms <= until_ms:
            return self.permille * until_ms - self.permille_ms
        return sum(permille * max(0, until_ms - start) for start, (_, permille) in self.starts.items())


class RunningUse:
    """Sum each project's holdings that have not ended, so that an answer needs no look at each of them."""

    def __init__(self) -> None:
        self._begun: dict[str, dict[int, _Begun]] = {}

    def begin(self, project: str, permille: int, start: float) -> None:
        """Count a project that holds so much since then (epoch seconds)."""
        self._change(project, permille, round(start * 1000), 1)

    def end(self, project: str, permille: int, start: float) -> None:
        """Take a ``begin`` back."""
        self._change(project, permille, round(start * 1000), -1)

    def _change(self, project: str, permille: int, start_ms: int, sign: int) -> None:
        buckets = self._begun.setdefault(project, {})
        begun = buckets.setdefault(start_ms // BUCKET_MS, _Begun())
        begun.change(start_ms, permille, sign)
        if not begun.starts:
            del buckets[start_ms // BUCKET_MS]
            if not buckets:
                del self._begun[project]

    def books(self, now: float, first: int = 0) -> dict[str, dict[int, int]]:
        """Return the books as if all holdings were recorded up to now, without a walk through their buckets.

        The books begin at the bucket ``first``.
        """
        now_ms = round(now * 1000)
        books: dict[str, dict[int, int]] = {}
        for project, buckets in self._begun.items():
            project_book = books[project] = {
                bucket: begun.used(min(now_ms, (bucket + 1) * BUCKET_MS))
                for bucket, begun in buckets.items()
                if bucket >= first
            }
            joins = {
                bucket + 1: begun.permille
                for bucket, begun in buckets.items()
                if bucket < now_ms // BUCKET_MS
            }
            if joins:
                _carry_on(project_book, joins, first, now_ms)
        return books


def _running(intervals: Iterable[Interval]) -> RunningUse:
    running_use = RunningUse()
    for interval in intervals:
        running_use.begin(interval.project, interval.permille, interval.start)
    return running_use


@lru_cache(maxsize=1 << 16)
def _weight(age: int, half_life_buckets: float) -> int:
    """Return the weight of a bucket; a clock that was set back makes nothing younger than now."""
    return int(math.ldexp(0.5 ** (max(0, age) / half_life_buckets), WEIGHT_BITS))


def _carry_on(buckets: dict[int, int], joins: dict[int, int], first: int, now_ms: int) -> None:
    """Add to each bucket the holdings that joined at its beginning or before, and last all through it."""
    running_permille = sum(permille for bucket, permille in joins.items() if bucket < first)
    for bucket in range(max(first, min(joins)), now_ms // BUCKET_MS + 1):
        running_permille += joins.get(bucket, 0)
        until = min(now_ms, (bucket + 1) * BUCKET_MS)
        buckets[bucket] = buckets.get(bucket, 0) + running_permille * (until - bucket * BUCKET_MS)


def _add(buckets: dict[int, int], interval: Interval) -> None:
    start, end = round(interval.start * 1000), round(interval.end * 1000)
    while start < end:
        bucket = start // BUCKET_MS
        until = min(end, (bucket + 1) * BUCKET_MS)
        buckets[bucket] = buckets.get(bucket, 0) + interval.permille * (until - start)
        start = until
