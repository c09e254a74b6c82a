"""Tell in sentences when each part of a lease's new size takes effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpushared.domain.leases.node_rules import Action
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import ComputeCap, Grant, Lease, MemoryWall, Queued, Reserved
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import format_memory, format_percent
from gpushared.ports import EngineFacts

ON_GPU = {MemoryWall.NONE, MemoryWall.WATCHDOG, MemoryWall.WHOLE_GPU}
"""Walls that no setting of a process makes."""


def resize_effects(before: Lease, after: Lease, state: NodeState, facts: EngineFacts | None) -> list[str]:
    """Describe the change from ``before`` to ``after``; ``facts`` tell what a container's restart changes."""
    if (before.request, before.grants) == (after.request, after.grants):
        return ["nothing changed: it has this size already"]
    if isinstance(after.state, Queued):
        return [f"asked for now: {describe(after.request)}; it keeps its place in the queue"]
    return list(_effects(before, after, state, facts))


def _effects(before: Lease, after: Lease, state: NodeState, facts: EngineFacts | None) -> Iterator[str]:
    yield f"booked now: {'; '.join(_booked(grant, state) for grant in after.grants)}"
    if not before.grants or isinstance(after.state, Reserved):
        yield "limits: those of its container, when it is created"
        return
    if _memory(before) != _memory(after):
        yield _watchdog(after, state)
        if after.walls is not None and after.walls.memory_wall is MemoryWall.DRIVER:
            yield f"driver memory limit now: {_memory(after)} for all that the container runs"
        if _is_limited_by_mps(before):
            yield f"MPS memory limit: {_by_process(_memory(after), facts)}"
    if _compute(before) != _compute(after):
        if before.walls is not None and before.walls.compute_cap is ComputeCap.MPS_PERCENTAGE:
            yield f"thread percentage: {_by_process(_compute(after), facts)}"
        else:
            yield "compute: booked, and held by nothing"
    if before.walls is not None and before.walls.memory_wall is MemoryWall.MPS_SERVER:
        yield "MPS server: one that runs keeps the limits it was started with; a process gets the lower ones"
    if after.walls is not None and after.walls != before.walls:
        yield f"walls now: {after.walls.memory_wall} for memory, {after.walls.compute_cap} for compute"


def _is_limited_by_mps(lease: Lease) -> bool:
    """Beside a limit of the driver's, processes have those of MPS too, where that caps their compute."""
    if lease.walls is None or lease.walls.memory_wall in ON_GPU:
        return False
    through_mps = lease.walls.compute_cap is ComputeCap.MPS_PERCENTAGE
    return through_mps or lease.walls.memory_wall is not MemoryWall.DRIVER


def _booked(grant: Grant, state: NodeState) -> str:
    index = state.gpus[grant.gpu].index if grant.gpu in state.gpus else grant.gpu
    compute = format_percent(grant.compute_permille)
    more = f" (and up to {format_percent(grant.ceiling_permille)}% where it is free)"
    burst = more if grant.ceiling_permille > grant.compute_permille else ""
    return f"{format_memory(grant.memory_bytes)} and {compute}% of the compute{burst} on GPU {index}"


def _watchdog(lease: Lease, state: NodeState) -> str:
    policy = state.rules.watchdog[lease.request.lease_class]
    word = "warns" if policy.action is Action.WARN else "ends the container"
    return f"watchdog now: {word} beyond {_memory(lease)} and its tolerance"


def _by_process(new: str, facts: EngineFacts | None) -> str:
    """Processes read their limits when they begin, from variables of the container or the gate."""
    text = f"what runs, and what that starts, keeps its own; `docker exec` through this daemon gets {new}"
    if facts is None:
        return text
    if facts.lease_devices:
        return f"{text}, and so does the container when it is restarted"
    return (
        f"{text}, but not the container when it is restarted: its settings are those it was created with, "
        f"and once stopped it is started again with the size of then"
    )


def _memory(lease: Lease) -> str:
    return " and ".join(dict.fromkeys(format_memory(grant.memory_bytes) for grant in lease.grants))


def _compute(lease: Lease) -> str:
    """A process has one percentage for all its GPUs, the smallest."""
    return f"{format_percent(min(grant.ceiling_permille for grant in lease.grants))}%"
