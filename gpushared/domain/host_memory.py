"""Tell if the host may take a container's GPU memory, which counts against the container's limit there."""

from __future__ import annotations

from gpushared.domain.host import ContainerMemory
from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.state import Draft, NodeState
from gpushared.domain.units import format_memory


def note_memory(lease: LeaseId, memory: ContainerMemory | None, draft: Draft) -> None:
    """Note the engine's figures for a lease's container, and drop the figures of leases that are over."""
    if memory is not None and memory != draft.container_memory.get(lease):
        known = {one: told for one, told in draft.container_memory.items() if one in draft.leases}
        draft.container_memory = {**known, lease: memory}


def lack_of_memory(lease: Lease, state: NodeState) -> str:
    """Return why the kernel would end the container if its GPU memory moved to the host, or an empty text."""
    memory = state.container_memory.get(lease.id)
    if memory is None or not memory.limit_bytes:
        return ""
    on_gpus = _on_gpus(lease, state)
    if on_gpus + memory.used_bytes <= memory.limit_bytes:
        return ""
    has, may_have = format_memory(memory.used_bytes), format_memory(memory.limit_bytes)
    return (
        f"the {format_memory(on_gpus)} on its GPUs would come to the {has} that its container has of the "
        f"host's memory, and it may have {may_have} (docker's --memory)"
    )


def _on_gpus(lease: Lease, state: NodeState) -> int:
    """Return the memory used on the lease's GPUs, or all that it holds if the driver tells no use."""
    used = sum(state.use.used_bytes.get(lease.id, {}).values())
    if used or lease.id not in state.use.busy:
        return used
    return sum(grant.memory_bytes for grant in lease.grants)
