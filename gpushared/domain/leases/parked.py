"""Handle containers that wait without holding GPUs: suspended ones, and stopped ones in the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from gpushared.domain.leases.events import Condition, ContainerSeen
from gpushared.domain.leases.instructions import DropEdits, FreezeAgain, StopContainer
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.lease import (
    ContainerId,
    Draining,
    Ended,
    Failed,
    Finished,
    Idleness,
    Lease,
    Outcome,
    Preempted,
    Requeued,
    Stopped,
    Suspended,
)

REMOVED = Stopped("removal of the container")
THAWED = "it was thawed without its GPUs; it is frozen again"


def over(lease: Lease, state: Draining, draft: Draft) -> None:
    """End a lease whose memory is back, or let it wait for its container to be started again."""
    outcome = state.outcome
    if isinstance(outcome, Preempted) and outcome.requeue and not state.gone:
        lease = replace(lease.without_fault(), notice=None, expires_at=None, idleness=Idleness())
        to = Requeued(state.container, draft.now, draft.next_sequence, state.grants)
        draft.move(lease, to, "its memory is back; it waits to be started again")
    else:
        _end(lease, outcome, "its memory is back", draft)


def seen_parked(lease: Lease, event: ContainerSeen, draft: Draft) -> None:
    """Follow the container of a waiting lease: somebody may kill, remove or start it."""
    state = lease.state
    assert isinstance(state, Suspended | Requeued)
    match event.condition:
        case Condition.GONE:
            _end(lease, REMOVED, "the container is gone", draft)
        case Condition.EXITED if isinstance(state, Suspended):
            ended = REMOVED if event.exit_code is None else Finished(event.exit_code)
            _end(lease, ended, "the container ended while it was suspended", draft)
        case Condition.RESTARTING:
            stop_parked(lease, state, "it was restarted without a lease", draft)
        case Condition.RUNNING if isinstance(state, Requeued):
            stop_parked(lease, state, "it was started without a lease", draft)
        case Condition.RUNNING:
            _freeze_again(lease, event.container, draft)
        case Condition.PAUSED | Condition.CREATED | Condition.EXITED:
            pass
        case unreachable:
            assert_never(unreachable)


def _end(lease: Lease, outcome: Outcome, why: str, draft: Draft) -> None:
    grants = lease.state.grants if isinstance(lease.state, Draining) else ()
    draft.move(lease, Ended(outcome, draft.now, grants), why)
    draft.do(DropEdits(lease.id, lease.device_name))


def _freeze_again(lease: Lease, container: ContainerId, draft: Draft) -> None:
    """Freeze a container that runs while its lease has no GPUs, which may be somebody else's by now."""
    # A survey may see it again before it is frozen.
    if not lease.story or lease.story[-1].text != THAWED:
        draft.put(lease.note(draft.now, THAWED))
    draft.do(FreezeAgain(lease.id, container))


def stop_parked(lease: Lease, state: Suspended | Requeued, why: str, draft: Draft) -> None:
    """Stop a container that runs without its GPUs, and end its lease."""
    failed = Failed(why, "start it again when it has ended, through gpushared's socket")
    retry_at = draft.now + draft.rules.stop_retry_seconds
    to = Draining((), state.container, draft.now, failed, exited=False, retry_at=retry_at)
    draft.move(lease, to, why)
    draft.do(StopContainer(lease.id, state.container, 0))
