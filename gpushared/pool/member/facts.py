"""What a node tells its coordinator of itself, out of its own state."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.gpu import MIB
from gpushared.domain.jobs.member import Free, Holding, Inventory
from gpushared.domain.lease import Lease
from gpushared.domain.state import NodeState

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


def free_of(state: NodeState, coordinator: str) -> Free:
    """What all leases hold, those of the node's own users too. ``coordinator``: whose attempts are named."""
    judged = [(gpu.id, gpu.trouble) for gpu in state.judged_gpus()]
    strays = [(gpu, _in_steps(held)) for gpu, held in sorted(state.stray_bytes.items()) if held > 0]
    return Free(
        holdings=tuple(_holding(lease, coordinator) for lease in state.holders()),
        stray_bytes=tuple(strays),
        troubles=tuple((gpu, trouble) for gpu, trouble in judged if trouble is not None),
        waiting=len(state.waiting()),
    )


def _holding(lease: Lease, coordinator: str) -> Holding:
    return Holding(
        lease=lease.id,
        grants=lease.grants,
        owner=lease.owner_name,
        project=lease.payer,
        exclusive=lease.request.wants_whole_gpus,
        attempt=lease.attempt if lease.coordinator == coordinator else None,
    )


def _in_steps(held: int) -> int:
    return -(-held // STRAY_STEP_BYTES) * STRAY_STEP_BYTES
