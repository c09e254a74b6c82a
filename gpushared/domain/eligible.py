"""Tell if a waiting lease may start at all, whatever is free. Only the lease's own terms count."""

from __future__ import annotations

import math

from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.placement import Reason
from gpushared.domain.state import NodeState
from gpushared.domain.units import format_duration

MINUTE_SECONDS = 60
"""The last minute before a begin time is counted in seconds."""


def not_yet(lease: Lease, state: NodeState, now: float) -> tuple[Reason, str] | None:
    """Return why a waiting lease must not start now, whatever is free; None if the lease may start."""
    if lease.held_by:
        return Reason.HELD, f"is held by {lease.held_by}"
    before = [LeaseId(name) for name in lease.request.after if LeaseId(name) in state.leases]
    if before:
        return Reason.AFTER_LEASE, f"starts after {', '.join(before)}"
    begin_at = state.begins_at(lease.request)
    if begin_at is not None and now < begin_at:
        step = 1 if begin_at - now < MINUTE_SECONDS else MINUTE_SECONDS
        left = math.ceil((begin_at - now) / step) * step
        return Reason.BEGIN_TIME, f"is to start in {format_duration(left)} at the earliest"
    return None
