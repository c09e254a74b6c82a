"""Check what a request needs besides GPUs: CPU and memory of the host, distance from other leases."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.model.errors import NeverFits
from gpushared.domain.model.host import ContainerMemory, HostSize
from gpushared.domain.model.lease import Lease, LeaseId, Suspended
from gpushared.domain.model.request import Request
from gpushared.domain.model.units import format_cores, format_memory
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacities


def total_of_host(state: NodeState) -> HostSize:
    """Return the machine's CPU and memory, as far as they are known and counted."""
    return state.host if state.rules.counts_host else HostSize()


def size_of_host(state: NodeState) -> HostSize:
    """Return the CPU and memory for leases that hold GPUs.

    The memory of a suspended container stays on the host, with its GPU memory beside it.
    """
    host = total_of_host(state)
    if host.memory_bytes is None:
        return host
    requests = (lease.request for lease in state.leases.values() if isinstance(lease.state, Suspended))
    suspended_bytes = sum(request.host_memory_bytes or 0 for request in requests)
    return replace(host, memory_bytes=host.memory_bytes - suspended_bytes)


def free_of_host(state: NodeState) -> HostSize:
    """Return the CPU and memory that no lease has taken yet; negative if the machine shrank."""
    size, requests = size_of_host(state), [lease.request for lease in state.holders()]
    cpu, memory = size.cpu_milli, size.memory_bytes
    if cpu is not None:
        cpu -= sum(request.host_cpu_milli or 0 for request in requests)
    if memory is not None:
        memory -= sum(request.host_memory_bytes or 0 for request in requests)
    return HostSize(cpu, memory)


def lack_of_host(request: Request, state: NodeState) -> str:
    """Return a sentence on the host's CPU or memory if too little is free now, else an empty text."""
    free, size = free_of_host(state), total_of_host(state)
    cpu, memory = request.host_cpu_milli or 0, request.host_memory_bytes or 0
    if free.cpu_milli is not None and cpu > free.cpu_milli:
        rest, total = format_cores(max(0, free.cpu_milli)), format_cores(size.cpu_milli or 0)
        return f"needs {format_cores(cpu)} CPUs of the host; {rest} of {total} are not taken by leases"
    if free.memory_bytes is not None and memory > free.memory_bytes:
        rest, total = format_memory(max(0, free.memory_bytes)), format_memory(size.memory_bytes or 0)
        return (
            f"needs {format_memory(memory)} of the host's memory; {rest} of {total} are not taken by leases"
        )
    return ""


def check_host(request: Request, size: HostSize) -> None:
    """Raise NeverFits for more than the machine has."""
    cpu, memory = request.host_cpu_milli or 0, request.host_memory_bytes or 0
    if size.cpu_milli is not None and cpu > size.cpu_milli:
        has = format_cores(size.cpu_milli)
        raise NeverFits(
            f"this machine has not got {format_cores(cpu)} CPUs",
            hint=f"it has {has}: give --cpus {has} or less",
        )
    if size.memory_bytes is not None and memory > size.memory_bytes:
        raise NeverFits(
            f"this machine has not got {format_memory(memory)} of memory",
            hint=f"it has {format_memory(size.memory_bytes)}: give a smaller --memory",
        )


# --- other leases --------------------------------------------------------------------------------------


def capacities_for(request: Request, capacities: FreeCapacities, state: NodeState) -> FreeCapacities:
    """Return the capacities with the leases that this request keeps away from marked on their GPUs."""
    if not request.away_from:
        return capacities
    capacities = dict(capacities)
    for name in request.away_from:
        lease = state.leases.get(LeaseId(name))
        for grant in lease.grants if lease is not None else ():
            if grant.gpu in capacities:
                capacities[grant.gpu] = replace(capacities[grant.gpu], apart_from=name)
    return capacities


def note_memory(lease: LeaseId, memory: ContainerMemory | None, draft: Draft) -> None:
    """Note the engine's figures for a lease's container, and drop the figures of leases that are over."""
    if memory is not None and memory != draft.container_memory.get(lease):
        live = {name: figures for name, figures in draft.container_memory.items() if name in draft.leases}
        draft.container_memory = {**live, lease: memory}


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
    """Return the memory used on the lease's GPUs, or all that it holds if the driver reports no use."""
    used = sum(state.use.used_bytes.get(lease.id, {}).values())
    if used or lease.id not in state.use.busy:
        return used
    return sum(grant.memory_bytes for grant in lease.grants)
