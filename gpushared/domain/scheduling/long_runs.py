"""Lower the priority of long runs, so that short work of the same project need not wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from gpushared.domain.scheduling.pass_records import NEVER, PendingRequest, RunningLease
from gpushared.domain.scheduling.projects import Policy

LONG_RUN_DROP = 1000
"""The priority of a long run sinks so far: below all that users may ask for."""
LONG_RUN_STEP = 4
"""A run that is so many times as long sinks once more,"""
LONG_RUN_STEPS = 6
"""but not more often than this."""

Record = TypeVar("Record", PendingRequest, RunningLease)


def sunk(candidate: PendingRequest, policy: Policy) -> PendingRequest:
    """Return the candidate with the priority that counts."""
    if not candidate.served:
        return candidate
    steps = candidate.sunk
    while candidate.served >= _next_step(candidate, steps, policy):
        steps += 1
    return _lowered(candidate, steps)


def sunk_holder(holder: RunningLease, policy: Policy, now: float) -> RunningLease:
    """Return the holder with the priority that counts."""
    steps = holder.sunk
    # The sum is that of ``sinks_at``, so that both agree to the last bit.
    while holder.started_at + _next_step(holder, steps, policy) - holder.served <= now:
        steps += 1
    return _lowered(holder, steps)


def sinks_at(holder: RunningLease, policy: Policy) -> float:
    """Return when the priority of a holder sinks by its next step."""
    return holder.started_at + _next_step(holder, holder.sunk, policy) - holder.served


def named_priority(record: PendingRequest | RunningLease) -> int:
    """Return the priority without what a long run takes from it."""
    return record.priority + record.sunk * LONG_RUN_DROP


def _lowered(record: Record, steps: int) -> Record:
    if steps == record.sunk:
        return record
    return replace(record, priority=named_priority(record) - steps * LONG_RUN_DROP, sunk=steps)


def _next_step(record: PendingRequest | RunningLease, steps: int, policy: Policy) -> float:
    """Return the seconds on GPUs with which the priority sinks by one step more."""
    least = policy.classes[record.lease.request.lease_class].long_run_seconds
    if least is None or steps >= LONG_RUN_STEPS:
        return NEVER
    return least * float(LONG_RUN_STEP**steps)
