"""Judge the end of containers whose GPU or MPS server broke under them, and start them again."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.lease import Failed, Lease, Outcome, Starting, WithContainer
from gpushared.domain.state import Draft

ENDED_BY_SOMEBODY = frozenset({137, 143})
"""These exit codes follow SIGKILL and SIGTERM. A program that met a fault ends by itself, with other
codes."""
RUN_AGAIN = "run it again; with `--restart-on-fault 3` that happens by itself"


def is_of_fault(lease: Lease, exit_code: int | None) -> bool:
    """Return True if the container ended because of the fault that the lease met."""
    return bool(lease.fault) and exit_code not in (None, 0, *ENDED_BY_SOMEBODY)


def may_start_again(lease: Lease) -> bool:
    return lease.restarts < lease.request.restart_on_fault


def outcome_of(lease: Lease, exit_code: int | None) -> Outcome:
    """Return the outcome of a lease whose container ended because of its fault."""
    times = f", after {lease.restarts} restarts for such faults" if lease.restarts else ""
    return Failed(f"its container ended with {exit_code} because {lease.fault}{times}", RUN_AGAIN)


def start_again(lease: Lease, why: str, draft: Draft, *, not_before: float) -> None:
    """Keep the lease, and start its container again as soon as the fault is over."""
    assert isinstance(lease.state, WithContainer)
    number, limit = lease.restarts + 1, lease.request.restart_on_fault
    state = Starting(lease.grants, lease.state.container, draft.now, not_before, held=True, by_node=True)
    lease = replace(lease, restarts=number, fault="", faulted_at=None)
    draft.move(lease, state, f"{why}; it is to be started again ({number} of {limit})")
