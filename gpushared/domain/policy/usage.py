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

BUCKETS_PER_HALF_LIFE = 24
KEPT_HALF_LIVES = 10
"""What is older counts less than a thousandth and is dropped."""
PERMILLE_MS_PER_GPU_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
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
    def bucket_ms(self) -> int:
        return max(1, round(self.half_life_seconds * 1000 / BUCKETS_PER_HALF_LIFE))

    def record(self, intervals: Iterable[Interval]) -> Usage:
        """The books with these intervals added."""
        books = {project: dict(buckets) for project, buckets in self.books.items()}
        for one in intervals:
            _add(books.setdefault(one.project, {}), one, self.bucket_ms)
        return replace(self, books=books)

    def prune(self, now: float) -> Usage:
        """The books without what is too old to count."""
        first = round(now * 1000) // self.bucket_ms - KEPT_HALF_LIVES * BUCKETS_PER_HALF_LIFE
        kept = {
            project: {at: used for at, used in buckets.items() if at >= first}
            for project, buckets in self.books.items()
        }
        return replace(self, books={project: buckets for project, buckets in kept.items() if buckets})

    def decayed(self, now: float, running: Iterable[Interval] = ()) -> dict[str, float]:
        """Decayed GPU-seconds of each project at ``now``; ``running``: intervals that have not ended."""
        at = round(now * 1000) // self.bucket_ms
        books = self.record(running).books
        weight = [0.5 ** (age / BUCKETS_PER_HALF_LIFE) for age in range(_oldest(books, at) + 1)]
        return {
            project: sum(used * weight[max(0, at - bucket)] for bucket, used in sorted(buckets.items()))
            / PERMILLE_MS_PER_GPU_SECOND
            for project, buckets in books.items()
        }

    def total(self, project: str) -> float:
        """GPU-seconds in the books of a project, undecayed."""
        return sum(self.books.get(project, {}).values()) / PERMILLE_MS_PER_GPU_SECOND


def _oldest(books: Books, at: int) -> int:
    return max((at - min(buckets) for buckets in books.values() if buckets), default=0)


def _add(buckets: dict[int, int], one: Interval, bucket_ms: int) -> None:
    start, end = round(one.start * 1000), round(one.end * 1000)
    while start < end:
        bucket = start // bucket_ms
        until = min(end, (bucket + 1) * bucket_ms)
        buckets[bucket] = buckets.get(bucket, 0) + one.permille * (until - start)
        start = until
