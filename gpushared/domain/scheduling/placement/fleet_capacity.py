"""Show a fleet to a scheduling pass as its capacity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.demand_profile import DemandProfile
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity, free_capacities
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName, Together


def fleet_with(
    hosts: Iterable[Host],
    leases: Iterable[Lease],
    stray_bytes: Mapping[GpuId, int],
    policy: PolicyName,
    demand_profile: DemandProfile | None = None,
    together: Together = Together.OFF,
) -> Fleet:
    """Return a fleet as it stands. ``stray_bytes``: bytes held on each GPU by processes without a lease.

    ``demand_profile``: the lessons learned before; a fleet that is made anew for each pass would know nothing.
    ``together``: the setting of ``Fleet``; the leases' requests name their projects then.
    """
    hosts = tuple(hosts)
    capacities = free_capacities((gpu for host in hosts for gpu in host.gpus), (), stray_bytes)
    fleet = Fleet(hosts, policy, capacities=capacities, demand_profile=demand_profile, together=together)
    here = ((lease, [grant for grant in lease.grants if grant.gpu in capacities]) for lease in leases)
    fleet.book_existing([(lease.id, lease.request, tuple(grants)) for lease, grants in here if grants])
    return fleet


class FleetCapacity:
    """Answer the narrow questions of the queue from a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._models = smallest_of_each_model(gpu for host in fleet.hosts for gpu in host.gpus)
        self._gpus = {gpu.id: gpu for host in fleet.hosts for gpu in host.gpus}
        self._by_host = {host.name: tuple(gpu.id for gpu in host.gpus) for host in fleet.hosts}

    def place(
        self,
        request: Request,
        *,
        gone: Sequence[Lease] = (),
        closed: Collection[GpuId] = (),
        host: str | None = None,
    ) -> tuple[Grant, ...]:
        mark = self._fleet.mark()
        self._fleet.give_all(lease.id for lease in gone)
        answer = self._fleet.place(request, closed=closed, host=host)
        self._fleet.undo(mark)
        return answer.grants if isinstance(answer, Placement) else ()

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:
        if self._fleet.holder(lease) is not None:
            self._fleet.give(lease)  # the memory that it left
        # A lease may hold a GPU that is lost, as in ``fleet_with``.
        here = tuple(grant for grant in grants if grant.gpu in self._gpus)
        if here:
            self._fleet.take(lease, request, Placement(self.host_of(here[0].gpu), here))
        self._fleet.commit()

    def give(
        self,
        lease: LeaseId,
        request: Request,  # noqa: ARG002 - known here
        grants: Sequence[Grant],  # noqa: ARG002 - known here
        *,
        left_bytes: int = 0,
    ) -> None:
        placement = self._fleet.holder(lease)
        if placement is None:
            return
        self._fleet.give(lease)
        if left_bytes:
            self._fleet.take(lease, Request(0, host_memory_bytes=left_bytes), Placement(placement.host, ()))
        self._fleet.commit()

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._gpus[gpu]

    def host_of(self, gpu: GpuId) -> str:
        return self._fleet.host_of(gpu)

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return self._by_host.get(host, ())

    def capacities(self) -> Mapping[str, Sequence[FreeCapacity]]:
        return {host.name: self._fleet.free(host.name).capacities for host in self._fleet.hosts}

    def models(self) -> Mapping[str, Gpu]:
        return self._models


def smallest_of_each_model(gpus: Iterable[Gpu]) -> dict[str, Gpu]:
    """Return one GPU of each model: the first of those that lease the least memory."""
    models: dict[str, Gpu] = {}
    for gpu in gpus:
        smallest = models.get(gpu.name)
        if smallest is None or gpu.leasable_bytes < smallest.leasable_bytes:
            models[gpu.name] = gpu
    return models
