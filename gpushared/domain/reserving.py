"""Decide how long a granted lease waits for its container."""

from __future__ import annotations

from gpushared.domain.lease import Lease
from gpushared.domain.state import Draft


def claim_seconds(lease: Lease, draft: Draft) -> int:
    """Return how long the lease waits for its container.

    A gang waits for its other parts, and an interactive job for its owner; any other container comes at once.
    """
    book = draft.attempts.get(lease.coordinator)
    attempt = None if book is None or lease.attempt is None else book.live.get(lease.attempt)
    if attempt is None or attempt.spec is None or not (attempt.gang or attempt.spec.interactive):
        return draft.rules.claim_seconds
    return attempt.reserve_seconds
