"""Fold a flood into few lines: lines that one user sends too fast are counted, and told together later.

A user's flood does not fold other users' lines, as long as all together stay below the audit's own bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpushared.storage.audit.line import AuditLine

WINDOW_SECONDS = 60.0
MAX_FOLDS = 1000
"""So many kinds of lines are counted at once; a user of many uids (user namespaces) may have many."""
MAX_BUCKETS = 4096
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CALL", "ORDER"})


@dataclass(frozen=True, slots=True)
class Rate:
    """Allow so many lines at once, and so many a second after that."""

    burst: float
    per_second: float


REFUSED = Rate(60, 1.0)
DONE = Rate(600, 4.0)
ALL = Rate(5000, 100.0)


@dataclass(slots=True)
class _Bucket:
    rate: Rate
    left: float
    at: float

    def take(self, now: float) -> bool:
        self.left = min(self.rate.burst, self.left + (now - self.at) * self.rate.per_second)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def is_full(self, now: float) -> bool:
        return self.left + (now - self.at) * self.rate.per_second >= self.rate.burst


_User = tuple[int, str]
_Key = tuple[_User, str, str, int]


@dataclass(slots=True)
class _Fold:
    since: float
    newest: AuditLine
    count: int = 1


class Folding:
    """Fold lines. Times are of a clock that nobody sets, in seconds."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(ALL, ALL.burst, now)
        self._buckets: dict[tuple[_User, bool], _Bucket] = {}
        self._folds: dict[_Key, _Fold] = {}
        self.lost = 0
        """Lines of which not even the number was told."""

    def passes(self, line: AuditLine, now: float) -> bool:
        """Return True if the line is written by itself; else count it."""
        if self._bucket(line, now).take(now) and self._all.take(now):
            return True
        method = line.method if line.method in METHODS else ""
        key = ((line.uid, line.user), method, line.code, line.status)
        if (fold := self._folds.get(key)) is not None:
            fold.newest = line
            fold.count += 1
        elif len(self._folds) < MAX_FOLDS:
            self._folds[key] = _Fold(now, line)
        else:
            self.lost += 1
        return False

    def due(self, now: float, *, all_of_them: bool = False) -> Iterator[AuditLine]:
        """Yield a line for each kind that was counted for long enough.

        The line is the newest of its kind, with the number of the rest.
        """
        for key, fold in list(self._folds.items()):
            if all_of_them or now - fold.since >= WINDOW_SECONDS:
                del self._folds[key]
                yield replace(fold.newest, more=fold.newest.more + fold.count - 1)

    def _bucket(self, line: AuditLine, now: float) -> _Bucket:
        key = ((line.uid, line.user), line.refused)
        if (bucket := self._buckets.get(key)) is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets = {k: one for k, one in self._buckets.items() if not one.is_full(now)}
            rate = REFUSED if line.refused else DONE
            bucket = self._buckets[key] = _Bucket(rate, rate.burst, now)
        return bucket
