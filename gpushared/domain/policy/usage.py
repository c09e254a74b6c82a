"""What each project used: whole numbers that add up, and the decayed sum that fair share goes by.

Use is recorded in permille-milliseconds of GPU, in buckets of time, as integers: a lease's interval may be
recorded in one piece or in many, in any order, and gives the same numbers. So the books are exact after a
crash at any point: what has ended is in the journal with the end of its interval, and what has not ended is
counted from the lease itself whenever it is asked for. Only the weight of old use is a fraction, and it is
worked out anew from the integers each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

BUCKET_MS = 3_600_000
"""The same for every half-life, so that what is stored outlives a change of it."""
KEPT_HALF_LIVES = 10
"""What is older counts less than a thousandth and is dropped."""
PERMILLE_MS_PER_GPU_SECOND = 1_000_000


class Interval(NamedTuple):
    """A project held so much of the GPUs from then to then (epoch seconds)."""

    project: str
    permille: int
    start: float
    end: float


Books = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Usage:
    """By project and bucket: permille-milliseconds. ``books`` is what the journal stores."""

    half_life_seconds: float
    books: Books = field(default_factory=dict)

    @property
    def _half_life_buckets(self) -> float:
        return max(1e-9, self.half_life_seconds * 1000 / BUCKET_MS)

    def record(self, intervals: Iterable[Interval]) -> Usage:
        """The books with these intervals added."""
        books = {project: dict(buckets) for project, buckets in self.books.items()}
        for one in intervals:
            _add(books.setdefault(one.project, {}), one)
        return replace(self, books=books)

    def prune(self, now: float) -> Usage:
        """The books without what is too old to count."""
        first = self._first(now)
        kept = {
            project: {at: used for at, used in buckets.items() if at >= first}
            for project, buckets in self.books.items()
        }
        return replace(self, books={project: buckets for project, buckets in kept.items() if buckets})

    def decayed(self, now: float, running: Running | Iterable[Interval] = ()) -> dict[str, float]:
        """Decayed GPU-seconds of each project at ``now``; ``running``: intervals not yet ended."""
        at, first = round(now * 1000) // BUCKET_MS, self._first(now)
        books = (running if isinstance(running, Running) else _running(running)).books(now, first)
        for project, buckets in self.books.items():
            mine = books.setdefault(project, {})
            for bucket, used in buckets.items():
                if bucket >= first:
                    mine[bucket] = mine.get(bucket, 0) + used
        weight = [0.5 ** (age / self._half_life_buckets) for age in range(_oldest(books, at) + 1)]
        return {
            project: sum(used * weight[max(0, at - bucket)] for bucket, used in sorted(buckets.items()))
            / PERMILLE_MS_PER_GPU_SECOND
            for project, buckets in books.items()
        }

    def _first(self, now: float) -> int:
        """The oldest bucket that counts. A forecast may ask for a day that is a lifetime away."""
        return round(now * 1000) // BUCKET_MS - round(KEPT_HALF_LIVES * self._half_life_buckets)

    def total(self, project: str) -> float:
        """GPU-seconds in the books of a project, undecayed."""
        return sum(self.books.get(project, {}).values()) / PERMILLE_MS_PER_GPU_SECOND


@dataclass(slots=True)
class _Begun:
    """What began in one bucket: sums over all of it, and single moments for a clock that was set back."""

    permille: int = 0
    permille_ms: int = 0
    """The sum of each size times its start."""
    newest_ms: int = 0
    starts: dict[int, list[int]] = field(default_factory=dict)
    """By start: how many began then, and their permille."""

    def change(self, start_ms: int, permille: int, sign: int) -> None:
        one = self.starts.setdefault(start_ms, [0, 0])
        one[0] += sign
        one[1] += sign * permille
        if not one[0]:
            del self.starts[start_ms]
        self.permille += sign * permille
        self.permille_ms += sign * permille * start_ms
        self.newest_ms = max(self.newest_ms, start_ms)

    def used(self, until_ms: int) -> int:
        """In permille-milliseconds, up to then."""
        if self.newest_ms <= until_ms:
            return self.permille * until_ms - self.permille_ms
        return sum(one[1] * max(0, until_ms - start) for start, one in self.starts.items())


class Running:
    """What each project uses by what has not ended, kept so that it is told without a look at each."""

    def __init__(self) -> None:
        self._begun: dict[str, dict[int, _Begun]] = {}

    def begin(self, project: str, permille: int, start: float) -> None:
        """The project holds so much since then (epoch seconds)."""
        self._change(project, permille, round(start * 1000), 1)

    def end(self, project: str, permille: int, start: float) -> None:
        """As ``begin``, taken back."""
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
        """What recording it all up to now would give, without walking through each one's buckets.

        Only from the bucket ``first`` on.
        """
        now_ms = round(now * 1000)
        books: dict[str, dict[int, int]] = {}
        for project, buckets in self._begun.items():
            mine = books[project] = {
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
                _carry_on(mine, joins, first, now_ms)
        return books


def _running(intervals: Iterable[Interval]) -> Running:
    found = Running()
    for one in intervals:
        found.begin(one.project, one.permille, one.start)
    return found


def _oldest(books: Books, at: int) -> int:
    """In buckets; a clock that was set back makes nothing younger than now."""
    return max([0, *(at - min(buckets) for buckets in books.values() if buckets)])


def _carry_on(buckets: dict[int, int], joins: dict[int, int], first: int, now_ms: int) -> None:
    """Add what is held all through each bucket by those that joined at its beginning or before."""
    held = sum(permille for bucket, permille in joins.items() if bucket < first)
    for bucket in range(max(first, min(joins)), now_ms // BUCKET_MS + 1):
        held += joins.get(bucket, 0)
        until = min(now_ms, (bucket + 1) * BUCKET_MS)
        buckets[bucket] = buckets.get(bucket, 0) + held * (until - bucket * BUCKET_MS)


def _add(buckets: dict[int, int], one: Interval) -> None:
    start, end = round(one.start * 1000), round(one.end * 1000)
    while start < end:
        bucket = start // BUCKET_MS
        until = min(end, (bucket + 1) * BUCKET_MS)
        buckets[bucket] = buckets.get(bucket, 0) + one.permille * (until - start)
        start = until
