"""Summarise a job for the history of whoever coordinates it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Hold the facts of a job that stay for ever.

    Times are seconds of the coordinator's clock that counts time. ``waited_ms`` is the time in the
    coordinator's queue up to ``queued_since``, from when the job waits there again; None if it does not. The
    wait for a lease in a node's queue is the lease's own.
    """

    job: str
    owner_uid: int
    """The number of the owner on this node; -1 in a pool, where only names count."""
    owner: str
    project: str
    lease_class: str
    name: str
    image: str
    node_count: int
    gpu_count: int
    memory_bytes: int | None
    memory_permille: int | None
    compute_permille: int | None
    time_limit_seconds: int | None
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str
    """This is empty while the job is not over, and "unknown" if its coordinator lost it."""
    outcome_text: str
    exit_code: int | None
    attempts: int
    preemptions: int
    nodes: str
    """The names of the nodes on which attempts ran, with commas between them."""
    waited_ms: int
    queued_since: float | None
