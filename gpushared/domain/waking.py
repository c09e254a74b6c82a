"""End a lease's idle time, whatever ended it."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.lease import Lease, NoticeKind
from gpushared.domain.notice import withdraw
from gpushared.domain.state import Draft


def awake(lease: Lease, draft: Draft) -> Lease:
    """Return the lease as one that is not idle, with its idle notice taken back."""
    draft.resting.pop(lease.id, None)
    lease = withdraw(lease, draft, NoticeKind.IDLE)
    return replace(lease, idle_since=None, lowered=False)
