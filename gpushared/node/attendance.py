"""Who still waits: a queued lease whose clients are gone for too long leaves the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpushared.domain.lease import Lease, LeaseId, Queued
from gpushared.domain.state import NodeState


class Attendance:
    """Counts waiting clients per lease, in memory: a restart gives everybody the whole time to come back."""

    def __init__(self, started_at: float) -> None:
        self._present: Counter[LeaseId] = Counter()
        self._last_seen: dict[LeaseId, float] = {}
        self._started_at = started_at

    def seen(self, lease: LeaseId, now: float) -> None:
        """A client asked for this lease just now."""
        self._last_seen[lease] = now

    @contextmanager
    def waiting(self, lease: LeaseId, now: float) -> Iterator[None]:
        """A client waits as long as the block runs; ``left`` must be told the time of its end."""
        self.seen(lease, now)
        self._present[lease] += 1
        try:
            yield
        finally:
            self._present[lease] -= 1
            if not self._present[lease]:
                del self._present[lease]

    def absent(self, state: NodeState, now: float, patience_seconds: float) -> list[LeaseId]:
        """Queued leases that nobody has waited for during the patience."""
        queued = [lease.id for lease in state.waiting() if _is_awaited(lease)]
        self._last_seen = {lease: self._last_seen.get(lease, self._started_at) for lease in queued}
        for lease in self._present:
            if lease in self._last_seen:
                self._last_seen[lease] = now
        return [lease for lease in queued if now - self._last_seen[lease] >= patience_seconds]


def _is_awaited(lease: Lease) -> bool:
    """A job's lease waits without anybody."""
    return isinstance(lease.state, Queued) and lease.attempt is None
