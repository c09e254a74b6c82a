"""Summarise a lease for the history: what it asked for, who held it, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from gpushared.domain.model.lease import (
    Ended,
    Expired,
    Failed,
    Finished,
    Idle,
    Lease,
    LeaseId,
    NeverClaimed,
    Outcome,
    OutsideMps,
    OverLimit,
    Preempted,
    Stopped,
    outcome_kind,
)


@dataclass(frozen=True, slots=True)
class LeaseSummary:
    """Hold the facts of a lease that stay for ever.

    Times are seconds of the clock that counts time; the history turns them into the time of day when somebody
    asks. ``outcome`` is empty while the lease is not over, and "unknown" if its journal was replaced.
    """

    lease: LeaseId
    owner_uid: int
    owner: str
    project: str
    lease_class: str
    image: str
    container_name: str
    job: str
    attempt: int
    pool: str
    """The pool that ordered the job; empty for the node's own jobs, and without a job."""
    gpu_count: int
    memory_bytes: int | None
    """The memory asked for on each GPU; None if a share was asked for."""
    memory_permille: int | None
    compute_permille: int | None
    models: str
    isolation: str
    priority: int
    time_limit_seconds: int | None
    created_at: float
    ended_at: float | None
    outcome: str
    outcome_text: str
    exit_code: int | None
    preemptions: int
    begun_anew: int
    restarts: int


def summary_of(lease: Lease) -> LeaseSummary:
    """Return the summary of a lease as it is now."""
    state = lease.state
    end = state if isinstance(state, Ended) else None
    request = lease.asked_first or lease.request
    return LeaseSummary(
        lease.id,
        lease.owner_uid,
        lease.owner_name,
        lease.payer,
        request.lease_class.value,
        lease.image,
        lease.container_name,
        "" if lease.attempt is None else lease.attempt.job,
        0 if lease.attempt is None else lease.attempt.number,
        lease.coordinator,
        len(request.gpus) or request.gpu_count,
        request.memory_bytes,
        request.memory_permille,
        request.compute_permille,
        ",".join(sorted(request.models)),
        request.isolation.value,
        request.priority,
        request.time_limit_seconds,
        lease.created_at,
        None if end is None else end.at,
        "" if end is None else outcome_kind(end.outcome),
        "" if end is None else _outcome_text(end.outcome),
        end.outcome.exit_code if end is not None and isinstance(end.outcome, Finished) else None,
        lease.preemption.count,
        lease.preemption.begun_anew,
        lease.health.restarts,
    )


def _outcome_text(outcome: Outcome) -> str:
    """Return the facts of an outcome that its kind does not tell."""
    match outcome:
        case Finished():
            return outcome.start_error
        case Stopped():
            return f"by {outcome.by}"
        case Preempted():
            return outcome.why
        case Failed():
            return outcome.reason
        case Expired() | NeverClaimed() | OverLimit() | OutsideMps() | Idle():
            return ""
        case _:
            assert_never(outcome)
