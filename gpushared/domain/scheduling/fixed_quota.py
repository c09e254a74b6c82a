"""Keep fixed quotas during a pass: parts of GPUs that stay free for a project's build work, never lent.

The parts are booked as if somebody held them. Build work of the project goes there first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from gpushared.domain.model import instances
from gpushared.domain.model.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.fixed_quota_gpus import (
    NONE,
    Amount,
    Arrangement,
    FixedQuotaNeed,
    KeptPart,
    Slot,
    amount_of,
    arrange,
)
from gpushared.domain.scheduling.holder_index import FIXED_CLASS
from gpushared.domain.scheduling.pass_records import PendingRequest, RunningLease
from gpushared.domain.scheduling.placement.free_capacity import STRAY_PERMILLE, FreeCapacity, need_on
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.quota_usage import QuotaUsage

_SHARED = Request()

Parts = Mapping[GpuId, Amount]


class FixedParts:
    """Keep the booked parts, by project and GPU."""

    def __init__(self, capacity: CapacityPort) -> None:
        self._capacity = capacity
        self._parts: dict[str, dict[GpuId, Amount]] = defaultdict(dict)

    def keep(self, parts: Iterable[KeptPart]) -> None:
        """Book more parts."""
        for project, gpu, amount in parts:
            self._book(project, gpu, self._parts[project].get(gpu, NONE).plus(amount))

    def rearrange(self, parts: Iterable[KeptPart]) -> None:
        """Book these parts instead of the present ones."""
        for project in self.owners():
            for gpu in list(self._parts[project]):
                self._book(project, gpu, NONE)
        self.keep(parts)

    def _book(self, project: str, gpu: GpuId, amount: Amount) -> None:
        """Replace the project's booking on a GPU."""
        lease = LeaseId(f"fixed-{project}-{gpu}")
        if before := self._parts[project].pop(gpu, None):
            self._capacity.give(lease, _SHARED, (before.grant_on(gpu),))
        if any(amount):
            self._capacity.take(lease, _SHARED, (amount.grant_on(gpu),))
            self._parts[project][gpu] = amount

    @contextmanager
    def lifted(self, project: str | None = None) -> Iterator[Parts]:
        """Free the parts of a project, or of all projects, while the context lasts; yield the project's parts."""
        names = [project] if project is not None else self.owners()
        lifted = {name: dict(self._parts[name]) for name in names}
        for name, parts in lifted.items():
            for gpu in parts:
                self._book(name, gpu, NONE)
        try:
            yield lifted.get(project or "", {})
        finally:
            for name, parts in lifted.items():
                self.keep(KeptPart(name, gpu, amount) for gpu, amount in parts.items())

    def owners(self) -> list[str]:
        """Return the projects with booked parts."""
        return sorted(project for project, parts in self._parts.items() if parts)

    def grants(self) -> Mapping[str, tuple[Grant, ...]]:
        """Return the booked grants, by project."""
        return {
            name: tuple(amount.grant_on(gpu) for gpu, amount in self._parts[name].items())
            for name in self.owners()
        }

    def use(self, project: str, grants: Iterable[Grant]) -> None:
        """Give grants to build work of the project, and shrink the project's bookings by them."""
        for grant in grants:
            if part := self._parts[project].get(grant.gpu):
                self._book(project, grant.gpu, part.less(amount_of(grant)))

    def room_for(self, request: Request, parts: Parts) -> tuple[Grant, ...]:
        """Return grants on GPUs where lifted parts are large enough; empty if there are none.

        The answer asks no other rule, because these parts are free and kept for this project alone.
        """
        needs = {gpu: amount_of(need_on(request, self._capacity.gpu(gpu))) for gpu in parts}
        fit = {gpu for gpu, part in parts.items() if part.covers(needs[gpu])}
        if not fit:
            return ()
        gpu_capacities = chain.from_iterable(self._capacity.capacities().values())
        return self._capacity.place(request, closed={free.gpu.id for free in gpu_capacities} - fit)


class UnreleasedCapacity:
    """Count the capacity that the pass has booked anew while leases that give way still hold it."""

    def __init__(
        self, leaving: Iterable[RunningLease] = (), promised: Mapping[LeaseId, Iterable[Grant]] | None = None
    ) -> None:
        self._leaving = list(leaving)
        self._promised = dict(promised or {})

    def copy(self) -> UnreleasedCapacity:
        return UnreleasedCapacity(self._leaving, self._promised)

    def leave(self, holders: Iterable[RunningLease]) -> None:
        """Count leases that are booked out, and still there."""
        self._leaving += holders

    def promise(self, winner: PendingRequest, grants: Iterable[Grant]) -> None:
        """Count grants that are booked in, for when the leases there have left."""
        self._promised[winner.lease.id] = tuple(grants)

    def not_yet_free(self) -> Parts:
        """Return the capacity that counts as free in this pass, and that is not free yet."""
        leaving = _sums(holder.lease.grants for holder in self._leaving)
        promised = _sums(self._promised.values())
        return {gpu: amount.less(promised.get(gpu, NONE)) for gpu, amount in leaving.items()}

    def build_work(self, project: str, quota_usage: QuotaUsage) -> Parts:
        """Return the amount that build work of the project keeps to itself on each GPU."""
        holders = quota_usage.holder_index.of(project)
        amounts = _build_sums(holder for holder in holders if holder.lease.id not in self._promised)
        leaving = _build_sums(holder for holder in self._leaving if holder.project == project)
        for gpu, amount in self.not_yet_free().items():
            amounts[gpu] = amounts.get(gpu, NONE).plus(amount.least(leaving.get(gpu, NONE)))
        return amounts


def _build_sums(holders: Iterable[RunningLease]) -> dict[GpuId, Amount]:
    leases = (holder.lease for holder in holders)
    return _sums(lease.grants for lease in leases if lease.request.lease_class is FIXED_CLASS)


def _sums(grant_lists: Iterable[Iterable[Grant]]) -> dict[GpuId, Amount]:
    sums: dict[GpuId, Amount] = {}
    for grant in chain.from_iterable(grant_lists):
        sums[grant.gpu] = sums.get(grant.gpu, NONE).plus(amount_of(grant))
    return sums


def arranged(
    policy: Policy, quota_usage: QuotaUsage, capacity: CapacityPort, unreleased: UnreleasedCapacity
) -> Arrangement:
    """Return on which GPUs the fixed quotas are kept."""
    not_yet_free = unreleased.not_yet_free()
    slots = [
        _slot(gpu_capacity, host, not_yet_free.get(gpu_capacity.gpu.id, NONE))
        for host, gpu_capacities in capacity.capacities().items()
        for gpu_capacity in gpu_capacities
        if _is_usable(gpu_capacity)
    ]
    needs: list[FixedQuotaNeed] = []
    for name, project in sorted(policy.projects.items()):
        own_build_work = unreleased.build_work(name, quota_usage) if project.has_fixed else {}
        for pool, quota in project.quotas():
            of_pool = [slot for slot in slots if project.pool(slot.gpu.name) == pool]
            if quota.fixed and of_pool:
                needs.append(
                    FixedQuotaNeed(name, *divmod(quota.fixed, WHOLE_PERMILLE), of_pool, own_build_work)
                )
    return arrange(needs)


def _is_usable(capacity: FreeCapacity) -> bool:
    """Return True if ordinary requests could be on the GPU."""
    return capacity.gpu.trouble is None and instances.wrong_kind(_SHARED, capacity.gpu) is None


def _slot(capacity: FreeCapacity, host: str, not_yet_free: Amount) -> Slot:
    free = Amount(max(0, capacity.free_permille), max(0, capacity.free_bytes)).less(not_yet_free)
    is_little = capacity.stray_bytes * WHOLE_PERMILLE <= capacity.gpu.leasable_bytes * STRAY_PERMILLE
    return Slot(capacity.gpu, host, free, capacity.stray_bytes if is_little else 0)


def request_for(need: FixedQuotaNeed, permille: int) -> Request:
    """Return a request for a whole GPU or a rest of a quota."""
    models = tuple(sorted({slot.gpu.name for slot in need.slots}))
    isolation = Isolation.EXCLUSIVE if permille == WHOLE_PERMILLE else Isolation.SHARED
    return Request(compute_permille=permille, memory_permille=permille, isolation=isolation, models=models)
