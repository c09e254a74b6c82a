"""Choose the GPUs of one host for a request, with their cost, or tell why the host cannot take it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import groupby

from gpushared.domain.model.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.model.instances import best_fit, wants_instances
from gpushared.domain.scheduling.placement.hosts import HostFree, memory_level
from gpushared.domain.scheduling.placement.policies import PlacementPolicy
from gpushared.domain.scheduling.placement.request_shape import Need

Score = tuple[float, float, float]
"""Lower is better: untouched GPUs that are broken into, the cost of the parts, the cost for the host."""
Rank = tuple[float, float, float, int]
"""The rank of one GPU of a host is its score, then the memory that is left, then its position."""


class HostReason(StrEnum):
    """Name why a host cannot take a request: one reason for each host, also if several hold."""

    OTHER_HOST = "other_host"
    """The request is bound to GPUs, or to be near leases, of another host."""
    MODEL = "model"
    HOST_CPU = "host_cpu"
    HOST_MEMORY = "host_memory"
    GPUS = "gpus"
    """Too few of the host's GPUs can take their part."""


def rate(
    need: Need,
    free: HostFree,
    policy: PlacementPolicy,
    closed: Collection[GpuId] = (),
    project_affinity: Collection[GpuId] = (),
) -> Score | HostReason:
    """Return the cost of the best GPUs of this host, or why it has none. ``project_affinity``: the preferred GPUs."""
    if need.models and need.count and need.models.isdisjoint(free.models):
        return HostReason.MODEL
    if need.least_permille > free.top_permille:
        return _lack(need, free)
    # A host may have less than none left; a paused lease, which asks for no more, comes back nevertheless.
    if need.cpu_milli > max(0, free.cpu_milli):
        return HostReason.HOST_CPU
    if need.memory_bytes > max(0, free.memory_bytes):
        return HostReason.HOST_MEMORY
    if need.count == 0:
        return 0.0, 0.0, policy.host(need, free, 0, 0)
    ranks = _ranks(need, free, policy, closed, project_affinity)
    if len(ranks) < need.count:
        return _lack(need, free)
    chosen: Sequence[Rank] = (min(ranks),) if need.count == 1 else _choose_linked(need, free, ranks)
    return _score(need, free, policy, chosen)


def choose(
    need: Need,
    free: HostFree,
    policy: PlacementPolicy,
    closed: Collection[GpuId] = (),
    project_affinity: Collection[GpuId] = (),
) -> tuple[int, ...]:
    """Return the positions of the best GPUs of a host on which ``rate`` found some."""
    if need.count == 0:
        return ()
    chosen = _choose_linked(need, free, _ranks(need, free, policy, closed, project_affinity))
    return tuple(rank[3] for rank in chosen)


def _ranks(
    need: Need,
    free: HostFree,
    policy: PlacementPolicy,
    closed: Collection[GpuId],
    project_affinity: Collection[GpuId],
) -> list[Rank]:
    """Return the rank of each GPU that can take its part."""
    if wants_instances(need.request):
        return _instance_ranks(need, free, closed)
    plain = need.plain and free.uniform
    ranks = (_plain_ranks if plain else _ordinary_ranks)(need, free, policy, closed)
    return _with_affinity(project_affinity, ranks, free, policy) if project_affinity else ranks


def _with_affinity(
    project_affinity: Collection[GpuId], ranks: Sequence[Rank], free: HostFree, policy: PlacementPolicy
) -> list[Rank]:
    """Lower the cost of the preferred GPUs. Breaking into untouched GPUs still counts before the cost."""
    return [
        (rank[0], rank[1] - policy.affinity_worth, *rank[2:])
        if free.capacities[rank[3]].gpu.id in project_affinity
        else rank
        for rank in ranks
    ]


def _ordinary_ranks(
    need: Need, free: HostFree, policy: PlacementPolicy, closed: Collection[GpuId]
) -> list[Rank]:
    ranks = []
    last = policy.whole_gpus_last and not need.whole
    for at, capacity in enumerate(free.capacities):
        if not need.fits(capacity) or (closed and capacity.gpu.id in closed):
            continue
        memory, permille = need.on(capacity.gpu)
        bytes_left = capacity.free_bytes - memory
        after = min(capacity.free_permille - permille, memory_level(bytes_left, capacity.gpu))
        part = policy.part(free.levels[at], 0 if need.whole else after)
        part += permille * policy.model(capacity.gpu.name)
        untouched = last and capacity.leases == 0
        ranks.append((float(untouched), part, float(bytes_left), at))
    return ranks


def _plain_ranks(
    need: Need, free: HostFree, policy: PlacementPolicy, closed: Collection[GpuId]
) -> list[Rank]:
    """Rank like ``_ordinary_ranks`` in the common case, in which decisions spend nearly all of their time."""
    gpu = free.capacities[0].gpu
    memory, permille = need.on(gpu)
    last, model_cost = policy.whole_gpus_last, permille * policy.model(gpu.name)
    ranks: list[Rank] = []
    seen: dict[tuple[int, int, bool], tuple[float, float, float]] = {}
    for at, capacity in enumerate(free.capacities):
        compute, bytes_left = capacity.free_permille - permille, capacity.free_bytes - memory
        if compute < 0 or bytes_left < 0 or capacity.exclusive or (closed and capacity.gpu.id in closed):
            continue
        untouched = last and capacity.leases == 0
        costs = seen.get((compute, bytes_left, untouched))
        if costs is None:
            part = policy.part(free.levels[at], min(compute, memory_level(bytes_left, gpu))) + model_cost
            costs = seen[compute, bytes_left, untouched] = (float(untouched), part, float(bytes_left))
        ranks.append((*costs, at))
    return ranks if memory > 0 else []


def _instance_ranks(need: Need, free: HostFree, closed: Collection[GpuId]) -> list[Rank]:
    """Rank MIG instances: the smallest that is enough comes first, whatever the policy.

    Instances are leased whole.
    """
    fitting = [
        at
        for at, capacity in enumerate(free.capacities)
        if need.fits(capacity) and capacity.gpu.id not in closed
    ]
    fitting.sort(key=lambda at: best_fit(free.capacities[at].gpu))
    return [
        (0.0, float(free.capacities[at].gpu.leasable_bytes), float(order), at)
        for order, at in enumerate(fitting)
    ]


def _choose_linked(need: Need, free: HostFree, ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Choose GPUs of one group of fast links, if any group has enough; else of few groups.

    Among groups the one wins that breaks into the fewest untouched GPUs, then the smallest: larger groups
    stay for larger requests.
    """
    if need.count == 1 or not free.link_groups:
        return tuple(sorted(ranks)[: need.count])
    by_group = sorted(ranks, key=lambda rank: (free.link_groups[rank[3]], rank))
    groups = [tuple(group) for _, group in groupby(by_group, key=lambda rank: free.link_groups[rank[3]])]
    enough = [group[: need.count] for group in sorted(groups, key=len) if len(group) >= need.count]
    if enough:
        return min(enough, key=_broken_into)
    groups.sort(key=lambda group: (-len(group), group))
    return tuple(rank for group in groups for rank in group)[: need.count]


def _broken_into(group: Sequence[Rank]) -> float:
    return sum(rank[0] for rank in group)


def _score(need: Need, free: HostFree, policy: PlacementPolicy, chosen: Sequence[Rank]) -> Score:
    untouched = part = 0.0
    taken_permille = broken = 0
    for rank in chosen:
        untouched += rank[0]
        part += rank[1]
        taken_permille += free.levels[rank[3]] if need.whole else need.on(free.capacities[rank[3]].gpu)[1]
        broken += free.levels[rank[3]] == WHOLE_PERMILLE
    return untouched, part, policy.host(need, free, min(taken_permille, free.total_permille), broken)


def _lack(need: Need, free: HostFree) -> HostReason:
    """Return why too few GPUs can take their part."""
    if need.pinned and not {capacity.gpu.id for capacity in free.capacities}.issuperset(need.pinned):
        return HostReason.OTHER_HOST
    return HostReason.GPUS
