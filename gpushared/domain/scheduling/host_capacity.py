"""Place requests on a node or a few hosts, by a look at each GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import NOTHING
from gpushared.domain.scheduling.placement.fleet_capacity import smallest_of_each_model
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacities,
    FreeCapacity,
    place,
)


class HostCapacity:
    """Keep the free capacity of each GPU by host.

    A request goes where untouched GPUs stay untouched, then to the fullest host.
    """

    def __init__(self, hosts: Mapping[str, FreeCapacities]) -> None:
        self._hosts = {host: dict(capacities) for host, capacities in hosts.items()}
        self._host_of = {gpu: host for host, capacities in hosts.items() for gpu in capacities}
        self._models = smallest_of_each_model(
            capacity.gpu for capacities in hosts.values() for capacity in capacities.values()
        )
        self._order = {host: at for at, host in enumerate(self._hosts)}
        self._free: dict[str, tuple[int, int]] = {}
        for host in self._hosts:
            self._look(host)

    def place(
        self,
        request: Request,
        *,
        gone: Sequence[Lease] = (),
        closed: Collection[GpuId] = NOTHING,
        host: str | None = None,
    ) -> tuple[Grant, ...]:
        options: list[tuple[int, int, int, tuple[Grant, ...]]] = []
        for name in self._worth_looking(request, gone, host):
            capacities = self._capacities_of(name, request, gone, closed)
            grants = tuple(grant for grant in place(request, capacities) if isinstance(grant, Grant))
            if grants:
                untouched = sum(not capacities[grant.gpu].leases for grant in grants)
                free = sum(capacity.free_permille for capacity in capacities.values())
                options.append((untouched, free, self._order[name], grants))
        return min(options, default=(0, 0, 0, ()))[3]

    def _worth_looking(self, request: Request, gone: Sequence[Lease], host: str | None) -> Iterable[str]:
        """Return the hosts on which the request may fit."""
        if gone:
            return self._hosts if host is None else (host,)
        names = self._free if host is None else (host,) if host in self._free else ()
        return [name for name in names if _may_fit(request, *self._free[name])]

    def _look(self, host: str) -> None:
        """Note the most free compute (permille) on one GPU of a host, and the number of GPUs without leases."""
        capacities = self._hosts[host].values()
        most_free = max((capacity.free_permille for capacity in capacities), default=0)
        if most_free > 0:
            self._free[host] = most_free, sum(not capacity.leases for capacity in capacities)
        else:
            self._free.pop(host, None)

    def _capacities_of(
        self, host: str, request: Request, gone: Sequence[Lease], closed: Collection[GpuId]
    ) -> dict[GpuId, FreeCapacity]:
        capacities = {
            gpu: capacity
            for gpu, capacity in self._hosts[host].items()
            if gpu not in closed and (not request.models or capacity.gpu.name in request.models)
        }
        for lease in gone:
            for grant in lease.grants:
                if grant.gpu in capacities:
                    capacities[grant.gpu] = capacities[grant.gpu].more(
                        grant, exclusive=lease.request.wants_whole_gpus
                    )
        return capacities

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:  # noqa: ARG002 - free capacity names no leases
        for grant in grants:
            host = self._host_of[grant.gpu]
            capacities = self._hosts[host]
            capacities[grant.gpu] = capacities[grant.gpu].less(grant, exclusive=request.wants_whole_gpus)
            self._look(host)

    def give(
        self,
        lease: LeaseId,  # noqa: ARG002 - free capacity names no leases
        request: Request,
        grants: Sequence[Grant],
        *,
        left_bytes: int = 0,  # noqa: ARG002 - only the memory of GPUs is counted here
    ) -> None:
        for grant in grants:
            host = self._host_of.get(grant.gpu)
            if host is not None:
                capacities = self._hosts[host]
                capacities[grant.gpu] = capacities[grant.gpu].more(grant, exclusive=request.wants_whole_gpus)
                self._look(host)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._hosts[self._host_of[gpu]][gpu].gpu

    def host_of(self, gpu: GpuId) -> str:
        return self._host_of[gpu]

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return tuple(self._hosts[host])

    def capacities(self) -> Mapping[str, Sequence[FreeCapacity]]:
        return {host: tuple(capacities.values()) for host, capacities in self._hosts.items()}

    def models(self) -> Mapping[str, Gpu]:
        return self._models


def _may_fit(request: Request, most_free: int, untouched: int) -> bool:
    """Return True if a look at the host is worth its time."""
    if request.wants_whole_gpus:
        return untouched >= (len(request.gpus) or request.gpu_count)
    return most_free >= (request.compute_permille or 1)
