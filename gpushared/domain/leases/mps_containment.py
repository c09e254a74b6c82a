"""Handle faults of MPS servers: notify the victims, end leases that hold on, and start containers again.

A fatal fault of one client reaches all clients of its server, and the server takes no new clients until all
of the old ones are gone. So the victims' stories record the fault, a lease that holds on for too long is
ended, and a lease that asked for a restart is started again once the server is well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from gpushared.domain.leases.events import ServerFaulted
from gpushared.domain.leases.instructions import SampleGpus, StartContainer
from gpushared.domain.leases.lifecycle import (
    RUN_AGAIN,
    drain,
    is_of_fault,
    may_start_again,
    outcome_of,
    start_again,
)
from gpushared.domain.leases.node_state import FAULT_SEEN_SECONDS, Draft
from gpushared.domain.model.gpu import GpuId, describe_gpu
from gpushared.domain.model.lease import (
    Active,
    Draining,
    Ended,
    Failed,
    Finished,
    Lease,
    LeaseId,
    Paused,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
)

START_AGAIN_SECONDS = 10.0
"""A failed start is tried again after this long."""


def server_faulted(event: ServerFaulted, draft: Draft) -> None:
    """Note the fault in the victims' stories.

    Leases that hold on to the broken server for too long end.
    """
    new = not _in_fault(event.gpus, draft)
    for gpu in event.gpus:
        draft.faulted[gpu] = draft.now
    culprit = event.culprit
    if culprit is None and new and len(event.victims) == 1:
        (culprit,) = event.victims  # its lease was alone on the server
    text = _fault_text(event, culprit, draft)
    for lease_id in sorted(event.victims | ({culprit} if culprit else frozenset())):
        lease = draft.leases.get(lease_id)
        if lease is not None:
            own = lease_id == culprit or (not lease.health.fault and lease.health.faulted_at is not None)
            _met(lease, "" if own else text, _names(event.gpus, draft), draft)


def hit_by_another(lease: Lease, text: str, draft: Draft) -> None:
    """Note on a lease that another lease's fault may end its container, or has just ended it."""
    state = lease.state
    if isinstance(state, Starting | Active | Paused) and lease.health.faulted_at is None:
        _note(lease, text, draft)
    elif isinstance(state, Draining):
        _has_ended_of_it(lease, state, text, draft)


def watch_faults(draft: Draft) -> None:
    """Start the leases that wait for a restart, and forget the faults that containers outlived."""
    for lease in list(draft.leases.values()):
        state = lease.state
        if isinstance(state, Starting) and state.by_node:
            if state.deadline is not None and draft.now >= state.deadline:
                _try_start(lease, state, draft)
        elif isinstance(state, Active | Paused) and _outlived(lease, draft):
            calm = lease.without_fault()
            draft.put(calm.note(draft.now, "it goes on after the fault"))


def _outlived(lease: Lease, draft: Draft) -> bool:
    """Return True if the lease met a fault so long ago that it would have been ended if it still held on."""
    over = draft.rules.fault_patience_seconds + START_AGAIN_SECONDS
    return lease.health.faulted_at is not None and draft.now - lease.health.faulted_at >= over


# --- victims of a fault --------------------------------------------------------------------------------


def _met(lease: Lease, text: str, where: str, draft: Draft) -> None:
    """Note that the lease met a fault; ``text`` is empty for the lease that caused it."""
    match lease.state:
        case Starting(by_node=True):
            pass
        case Starting() | Active() | Paused():
            if lease.health.faulted_at is None or lease.health.fault != text:
                own = f"its own process caused a fault of the MPS server on {where}"
                lease = _note(lease, text, draft, own)
            assert lease.health.faulted_at is not None
            patient = draft.now - lease.health.faulted_at < draft.rules.fault_patience_seconds
            if not patient and _is_there(lease, draft):
                _end_of_holding_on(lease, where, draft)
        case Draining() as state if text:
            _has_ended_of_it(lease, state, text, draft)
        case (
            Queued()
            | Reserved()
            | Suspending()
            | Suspended()
            | Resuming()
            | Draining()
            | Requeued()
            | Ended()
        ):
            pass
        case unreachable:
            assert_never(unreachable)


def _is_there(lease: Lease, draft: Draft) -> bool:
    """Return True if processes of the lease are still on its GPUs.

    A container may go on after its own processes left the server, while other clients have yet to leave.
    """
    return any(grant.gpu in draft.use.used_bytes.get(lease.id, {}) for grant in lease.grants)


def _note(lease: Lease, text: str, draft: Draft, own: str = "") -> Lease:
    since = draft.now if lease.health.faulted_at is None else lease.health.faulted_at
    return draft.put(_faulted(lease, text, since).note(draft.now, text or own))


def _faulted(lease: Lease, text: str, at: float) -> Lease:
    return replace(lease, health=replace(lease.health, fault=text, faulted_at=at))


def _has_ended_of_it(lease: Lease, state: Draining, text: str, draft: Draft) -> None:
    """End or start again a lease whose container ended of the fault before a look showed the fault."""
    if not (state.exited and isinstance(state.outcome, Finished)):
        return
    code = state.outcome.exit_code
    hit = _faulted(lease, text, draft.now)
    if not is_of_fault(hit, code):
        return
    if may_start_again(hit):
        start_again(hit, text, draft, not_before=draft.now)
    else:
        draft.move(hit, replace(state, outcome=outcome_of(hit, code)), text)


def _end_of_holding_on(lease: Lease, where: str, draft: Draft) -> None:
    patience = f"{draft.rules.fault_patience_seconds:g} s"
    grace = draft.rules.stop_grace_seconds
    why = f"its processes hold on to the broken MPS server on {where} for {patience}"
    if lease.health.fault and may_start_again(lease):
        drain(lease, Failed(why, RUN_AGAIN), why, draft, grace_seconds=grace)
        start_again(draft.leases[lease.id], why, draft, not_before=draft.now + grace)
        return
    cause = lease.health.fault or "its own process broke that server"
    drain(lease, Failed(f"{why}: {cause}", RUN_AGAIN), why, draft, grace_seconds=grace)


def _fault_text(event: ServerFaulted, culprit: LeaseId | None, draft: Draft) -> str:
    lease = draft.leases.get(culprit) or draft.base.ended.get(culprit) if culprit else None
    cause = f" caused by lease {lease.id} of {lease.owner_name}" if lease else ""
    return f"the MPS server on {_names(event.gpus, draft)} met a fault{cause}"


def _names(gpus: tuple[GpuId, ...], draft: Draft) -> str:
    return " and ".join(describe_gpu(gpu, draft.gpus) for gpu in gpus) or "its GPU"


# --- starting again ------------------------------------------------------------------------------------


def _in_fault(gpus: tuple[GpuId, ...], draft: Draft) -> bool:
    return any(abs(draft.now - draft.faulted.get(gpu, -math.inf)) < FAULT_SEEN_SECONDS for gpu in gpus)


def _try_start(lease: Lease, state: Starting, draft: Draft) -> None:
    """Start the lease's container, unless its server is still broken.

    On a broken server the container would only meet the same fault again.
    """
    rules = draft.rules
    if abs(draft.now - state.since) >= 2 * (rules.fault_patience_seconds + rules.start_seconds):
        why = "its container could not be started again"
        drain(lease, Failed(why, "see the log of gpushared and `docker logs`"), why, draft, grace_seconds=0)
    elif _in_fault(tuple(grant.gpu for grant in lease.grants), draft):
        draft.do(SampleGpus())
    else:
        to = replace(state, deadline=draft.now + START_AGAIN_SECONDS)
        draft.move(lease, to, "the container is being started again")
        draft.do(StartContainer(lease.id, state.container))
