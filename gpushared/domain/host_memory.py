"""Whether a container may have its GPU memory in the host's: that counts against its own limit there."""

from __future__ import annotations

from gpushared.domain.host import ContainerMemory
from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.state import Draft, NodeState
from gpushared.domain.units import format_memory


def note_memory(lease: LeaseId, memory: ContainerMemory | None, draft: Draft) -> None:
    """What the engine told of a lease's container; of those that are over nothing is kept."""
    if memory is not None and memory != draft.container_memory.get(lease):
        known = {one: told for one, told in draft.container_memory.items() if one in draft.leases}
        draft.container_memory = {**known, lease: memory}


def lack_of_memory(lease: Lease, state: NodeState) -> str:
    """Why the kernel would end its container if its GPU memory were moved there; empty where it would not."""
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
    """Where the driver does not tell what its processes use, all that it holds."""
    used = sum(state.use.used_bytes.get(lease.id, {}).values())
    if used or lease.id not in state.use.busy:
        return used
    return sum(grant.memory_bytes for grant in lease.grants)
