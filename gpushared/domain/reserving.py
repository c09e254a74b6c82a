"""How long a granted lease waits for its container."""

from __future__ import annotations

from gpushared.domain.lease import Lease
from gpushared.domain.state import Draft


def claim_seconds(lease: Lease, draft: Draft) -> int:
    """A gang waits for its others, an interactive job for its owner; else the container comes at once."""
    book = draft.attempts.get(lease.coordinator)
    attempt = None if book is None or lease.attempt is None else book.live.get(lease.attempt)
    if attempt is None or attempt.spec is None or not (attempt.gang or attempt.spec.interactive):
        return draft.rules.claim_seconds
    return attempt.reserve_seconds
