"""Fragmentation gradient descent as published (Weng, Yang et al., USENIX ATC 2023), to compare with.

The fragmentation of a host is the GPU share that a random task of the list cannot use there; the place where
it grows least is taken. It is told the whole list beforehand. Ties go to the host with the least free GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpushared.domain.model.lease import Grant
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.fleet import Fleet, NoPlace, Placement
from gpushared.domain.scheduling.placement.hosts import Host, HostFree
from gpushared.domain.scheduling.placement.request_shape import Need

Best = tuple[float, int, int]
"""Growth, free permille of the host, position of the GPU (or -1: the first ones that fit)."""


class Fgd:
    """Keeps for each kind what each host would cost, and asks again where something changed."""

    def __init__(self, load: Sequence[Request], hosts: Sequence[Host]) -> None:
        counts = Counter(request for request in load if request.gpu_count)
        total = sum(counts.values())
        self._tasks = [(request, count / total) for request, count in counts.items()]
        self._names = [host.name for host in hosts]
        self._models = [host.gpus[0].name if host.gpus else "" for host in hosts]
        self._known: dict[Request, list[tuple[HostFree, Best | None] | None]] = {}

    def place(self, fleet: Fleet, request: Request) -> Placement | NoPlace:
        need = Need.of(request)
        known = self._known.setdefault(request, [None] * len(self._names))
        best: tuple[Best, int] | None = None
        for at, name in enumerate(self._names):
            free = fleet.free(name)
            entry = known[at]
            if entry is None or entry[0] is not free:
                entry = known[at] = (free, self._cost(need, free, self._models[at]))
            if entry[1] is not None and (best is None or (entry[1], at) < best):
                best = entry[1], at
        if best is None:
            return NoPlace({})
        (_, _, gpu), at = best
        capacities = fleet.free(self._names[at]).capacities
        fitting = [capacity for capacity in capacities if need.fits(capacity)][: need.count]
        chosen = [capacities[gpu]] if gpu >= 0 else fitting
        return Placement(
            self._names[at], tuple(Grant(capacity.gpu.id, *need.on(capacity.gpu)) for capacity in chosen)
        )

    def _cost(self, need: Need, free: HostFree, model: str) -> Best | None:
        if need.cpu_milli > free.cpu_milli or need.memory_bytes > free.memory_bytes:
            return None
        places = [at for at, capacity in enumerate(free.capacities) if need.fits(capacity)]
        if len(places) < need.count:
            return None
        share = need.request.compute_permille or 0
        before = self._fragmentation(free.cpu_milli, free.memory_bytes, free.levels, model)
        choices = [(at,) for at in places] if need.count == 1 else [tuple(places[: need.count])]
        costs: dict[int, Best] = {}
        for chosen in choices:
            key = free.levels[chosen[0]] if need.count == 1 else -1
            if key in costs:
                continue
            levels = [level - share if at in chosen else level for at, level in enumerate(free.levels)]
            after = self._fragmentation(
                free.cpu_milli - need.cpu_milli, free.memory_bytes - need.memory_bytes, levels, model
            )
            position = chosen[0] if need.count == 1 else -1
            costs[key] = (round(after - before, 6), free.total_permille, position)
        return min(costs.values())

    def _fragmentation(self, cpu: int, memory: int, levels: Sequence[int], model: str) -> float:
        total = sum(levels)
        small: dict[int, tuple[int, int]] = {}
        lost = 0.0
        for task, share in self._tasks:
            size = task.compute_permille or 0
            if size not in small:
                enough = [level for level in levels if level >= size]
                small[size] = (len(enough), total - sum(enough))
            fitting, rest = small[size]
            usable = (
                fitting >= task.gpu_count
                and (task.host_cpu_milli or 0) <= cpu
                and (task.host_memory_bytes or 0) <= memory
                and (not task.models or model in task.models)
            )
            lost += share * (rest if usable else total)
        return lost
