"""Describe a host of the fleet: its GPUs, its CPU and memory, and the free part of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity

UNLIMITED = 1 << 62
"""A host that does not tell its CPU or memory counts as having so much, more than any request takes."""


@dataclass(frozen=True, slots=True)
class Host:
    """Describe a host: CPU in thousandths of a core, memory in bytes; None if unknown.

    ``link_groups``: for each GPU the group of fast links (NVLink, else NUMA node) by which it can be reached;
    empty if unknown.
    """

    name: str
    gpus: tuple[Gpu, ...]
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    link_groups: tuple[int, ...] = ()


def link_groups(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return each GPU's group; a GPU that does not tell is a group of its own. Empty if no GPU tells."""
    if all(gpu.link_group is None for gpu in gpus):
        return ()
    return tuple(-1 - at if gpu.link_group is None else gpu.link_group for at, gpu in enumerate(gpus))


@dataclass(frozen=True, slots=True)
class HostFree:
    """Hold the free capacity of a host.

    Values never change: a decision replaces them, and undoing it brings them back. ``levels``: how much of
    each GPU can still be leased in shares, in permille.
    """

    capacities: tuple[FreeCapacity, ...]
    cpu_milli: int
    memory_bytes: int
    levels: tuple[int, ...]
    total_permille: int
    top_permille: int
    """The most compute that is free on one of the host's GPUs."""
    untouched: int
    """The number of GPUs of which nothing is leased."""
    link_groups: tuple[int, ...]
    models: frozenset[str]
    """The names of the host's GPUs."""
    uniform: bool
    """True if the host's GPUs are ordinary and alike, so that an answer for one GPU is the answer for all."""
    twin: int | None = None
    """A number that all untouched hosts with equal features share; None once the host has given something."""


def free_of(host: Host, capacities: Sequence[FreeCapacity], twin: int | None = None) -> HostFree:
    """Return the free capacity of a host with these GPUs, while none of its CPU and memory is taken."""
    levels = tuple(level_of(capacity) for capacity in capacities)
    return HostFree(
        tuple(capacities),
        UNLIMITED if host.cpu_milli is None else host.cpu_milli,
        UNLIMITED if host.memory_bytes is None else host.memory_bytes,
        levels,
        sum(levels),
        max((capacity.free_permille for capacity in capacities), default=0),
        levels.count(WHOLE_PERMILLE),
        host.link_groups,
        frozenset(gpu.name for gpu in host.gpus),
        _uniform(host.gpus),
        twin,
    )


def features_of(host: Host, capacities: Sequence[FreeCapacity]) -> tuple[object, ...]:
    """Return all features that placement reads of a host, but the names: equal hosts have equal features."""
    gpus = tuple(
        (
            replace(capacity.gpu, id=GpuId("")),
            capacity.free_bytes,
            capacity.free_permille,
            capacity.leases,
            capacity.exclusive,
        )
        for capacity in capacities
    )
    return gpus, host.cpu_milli, host.memory_bytes, host.link_groups


def level_of(capacity: FreeCapacity) -> int:
    """Return the permille of the GPU that the largest slice could still have; 0 if nothing more may come."""
    if capacity.exclusive or capacity.gpu.trouble is not None:
        return 0
    return max(0, min(capacity.free_permille, memory_level(capacity.free_bytes, capacity.gpu)))


def memory_level(free_bytes: int, gpu: Gpu) -> int:
    """Return free memory as permille, rounded up.

    Slices are whole MiB, so a rest is no smaller than its share.
    """
    return -(-free_bytes * WHOLE_PERMILLE // max(1, gpu.leasable_bytes))


def after_grants(
    free: HostFree, grants: Sequence[tuple[int, Grant, bool]], cpu_milli: int, memory_bytes: int, sign: int
) -> HostFree:
    """Return the host after grants were taken (``sign`` 1) or given back (-1).

    Each entry of ``grants`` has the GPU's position, the grant, and True if nobody else may be on that GPU.
    """
    capacities, levels = list(free.capacities), list(free.levels)
    for at, grant, exclusive in grants:
        change = FreeCapacity.less if sign > 0 else FreeCapacity.more
        capacities[at] = change(capacities[at], grant, exclusive=exclusive)
    for at in {at for at, _, _ in grants}:
        levels[at] = level_of(capacities[at])
    return HostFree(
        tuple(capacities),
        free.cpu_milli - sign * cpu_milli,
        free.memory_bytes - sign * memory_bytes,
        tuple(levels),
        sum(levels),
        max(capacity.free_permille for capacity in capacities) if capacities else 0,
        levels.count(WHOLE_PERMILLE),
        free.link_groups,
        free.models,
        free.uniform,
    )


def _uniform(gpus: Sequence[Gpu]) -> bool:
    ordinary = all(
        gpu.trouble is None and gpu.parent is None and not gpu.split and not gpu.exclusive_process
        for gpu in gpus
    )
    return ordinary and len({(gpu.name, gpu.leasable_bytes) for gpu in gpus}) == 1
