"""A lease's idle time is over, whatever ended it."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.lease import Lease, NoticeKind
from gpushared.domain.notice import withdraw
from gpushared.domain.state import Draft


def awake(lease: Lease, draft: Draft) -> Lease:
    """The lease as one that is not idle, with what it was told of that taken back."""
    draft.resting.pop(lease.id, None)
    lease = withdraw(lease, draft, NoticeKind.IDLE)
    return replace(lease, idle_since=None, lowered=False)
