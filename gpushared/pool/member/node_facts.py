"""Collect a node's facts for its coordinator from the node's own state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.jobs.member import AllowanceNeed, HeartbeatReport, Holding, Inventory
from gpushared.domain.leases.allowance_limits import told_project, wants
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.domain.scheduling.outcome import Decision

STRAY_STEP_BYTES = 16 * MIB
"""Stray memory is told in steps, rounded up, because it never stands still."""


def inventory_of(state: NodeState, *, address: str, version: str, simulated: bool) -> Inventory:
    """Its GPUs, healthy or not: what is wrong with them changes, and is told with what is free."""
    return Inventory(
        gpus=tuple(replace(gpu, trouble=None) for gpu in state.gpus.values()),
        cpu_milli=state.host.cpu_milli or 0,
        memory_bytes=state.host.memory_bytes or 0,
        address=address,
        version=version,
        simulated=simulated,
    )


def free_of(
    state: NodeState, coordinator: str, decisions: Mapping[LeaseId, Decision] | None = None
) -> HeartbeatReport:
    """Return the holdings of all leases, those of the node's own users too, and the state of the GPUs.

    ``coordinator``: only its attempts are named. ``decisions``: the results of the newest pass over the
    node's queue.
    """
    judged = [(gpu.id, gpu.trouble) for gpu in state.judged_gpus()]
    strays = [(gpu, _in_steps(held)) for gpu, held in sorted(state.stray_bytes.items()) if held > 0]
    return HeartbeatReport(
        holdings=tuple(_holding(lease, coordinator, state) for lease in state.holders()),
        stray_bytes=tuple(strays),
        troubles=tuple((gpu, trouble) for gpu, trouble in judged if trouble is not None),
        waiting=len(state.waiting()),
        allowed=_allowed(state, coordinator, decisions or {}),
    )


def _allowed(state: NodeState, coordinator: str, decisions: Mapping[LeaseId, Decision]) -> AllowanceNeed:
    allowance = state.allowance
    if allowance is None or allowance.pool != coordinator:
        return AllowanceNeed()
    return AllowanceNeed(allowance.revision, wants(state, decisions))


def _holding(lease: Lease, coordinator: str, state: NodeState) -> Holding:
    return Holding(
        lease=lease.id,
        grants=lease.grants,
        owner=lease.owner_name,
        project=told_project(lease, state),
        exclusive=lease.request.wants_whole_gpus,
        attempt=lease.attempt if lease.coordinator == coordinator else None,
    )


def _in_steps(held: int) -> int:
    return -(-held // STRAY_STEP_BYTES) * STRAY_STEP_BYTES
