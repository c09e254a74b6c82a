"""Keep fixed quotas during a pass: parts of GPUs that stay free for a project's build work, never lent.

The parts are booked as if somebody held them. Build work of the project goes there first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace

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
from gpushared.domain.scheduling.projects import Policy, Project
from gpushared.domain.scheduling.quota_usage import QuotaUsage

_SHARED = Request()


@dataclass(frozen=True, slots=True)
class FixedPart:
    """Hold a part of one GPU that is booked for a project's build work."""

    id: LeaseId
    project: str
    grant: Grant


class FixedParts:
    """Keep the booked parts, by project."""

    def __init__(self, places: CapacityPort) -> None:
        self._places = places
        self._parts: dict[str, list[FixedPart]] = {}
        self._count = 0

    def keep(self, kept: Iterable[KeptPart]) -> None:
        """Book more parts."""
        for one in kept:
            project, grant = one.want.project, one.grant
            there = next((part for part in self._parts.get(project, ()) if part.grant.gpu == grant.gpu), None)
            if there is not None:
                self._unbook(there)
                more = amount_of(there.grant).plus(amount_of(grant))
                self._book(replace(there, grant=Grant(grant.gpu, more.memory_bytes, more.permille)))
                continue
            self._count += 1
            self._book(FixedPart(LeaseId(f"fixed-{project}-{self._count}"), project, grant))

    def _book(self, part: FixedPart) -> None:
        self._places.take(part.id, _SHARED, (part.grant,))
        self._parts.setdefault(part.project, []).append(part)

    def _unbook(self, part: FixedPart) -> None:
        self._parts[part.project].remove(part)
        self._lift(part)

    def _lift(self, part: FixedPart) -> None:
        self._places.give(part.id, _SHARED, (part.grant,))

    @contextmanager
    def lifted(self, project: str | None = None) -> Iterator[Sequence[FixedPart]]:
        """Free the parts of a project, or of all projects, while the context lasts, and yield the parts."""
        names = [project] if project is not None else list(self._parts)
        parts = [part for name in names for part in self._parts.pop(name, ())]
        for part in parts:
            self._lift(part)
        try:
            yield parts
        finally:
            for part in parts:
                self._book(part)

    def owners(self) -> list[str]:
        """Return the projects with booked parts."""
        return sorted(project for project, parts in self._parts.items() if parts)

    def grants(self) -> Mapping[str, tuple[Grant, ...]]:
        """Return the booked grants, by project."""
        return {project: tuple(part.grant for part in parts) for project, parts in self._parts.items()}

    def use(self, project: str, grants: Iterable[Grant]) -> None:
        """Give grants to build work of the project, and shrink the project's bookings by them."""
        taken = {grant.gpu: grant for grant in grants}
        for part in list(self._parts.get(project, ())):
            grant = taken.get(part.grant.gpu)
            if grant is None:
                continue
            self._unbook(part)
            left = amount_of(part.grant).less(amount_of(grant))
            if any(left):
                self._book(replace(part, grant=Grant(grant.gpu, left.memory_bytes, left.permille)))

    def room_for(self, request: Request, parts: Iterable[FixedPart]) -> tuple[Grant, ...]:
        """Return grants within lifted parts, the smallest that will do; empty if none will.

        No other question is asked: this room is free, and kept for nobody else.
        """
        count = len(request.gpus) or request.gpu_count
        by_host: dict[str, list[FixedPart]] = defaultdict(list)
        for part in parts:
            if self._takes(part, request):
                by_host[self._places.host_of(part.grant.gpu)].append(part)
        for chosen in _smallest(by_host.values(), count):
            gpus = tuple(part.grant.gpu for part in chosen)
            grants = self._places.place(replace(request, gpus=gpus, gpu_count=count))
            if grants:
                return grants
        return ()

    def _takes(self, part: FixedPart, request: Request) -> bool:
        gpu = self._places.gpu(part.grant.gpu)
        if (request.gpus and gpu.id not in request.gpus) or instances.wants_instances(request):
            return False
        if request.models and gpu.name not in request.models:
            return False
        if request.wants_whole_gpus:
            return part.grant.compute_permille == WHOLE_PERMILLE
        return amount_of(part.grant).covers(amount_of(need_on(request, gpu)))


def _smallest(hosts: Iterable[list[FixedPart]], count: int) -> Iterable[Sequence[FixedPart]]:
    """Return sets of as many parts as the request has GPUs, each on one host, the smallest first."""
    if count == 1:
        return sorted(([part] for parts in hosts for part in parts), key=_size)
    found = [sorted(parts, key=lambda part: _size((part,)))[:count] for parts in hosts]
    return sorted((parts for parts in found if len(parts) == count), key=_size)


def _size(parts: Iterable[FixedPart]) -> int:
    return sum(part.grant.compute_permille for part in parts)


# --- where they are kept -------------------------------------------------------------------------------


class Pending:
    """Count capacity that the places show as free or given, while leases that give way still hold it."""

    def __init__(self) -> None:
        self._leaving: dict[GpuId, Amount] = defaultdict(lambda: NONE)
        self._promised: dict[GpuId, Amount] = defaultdict(lambda: NONE)
        self._promised_builds: dict[tuple[str, GpuId], Amount] = defaultdict(lambda: NONE)
        self._leaving_builds: dict[tuple[str, GpuId], Amount] = defaultdict(lambda: NONE)

    def copy(self) -> Pending:
        return deepcopy(self)

    def leave(self, holders: Iterable[RunningLease]) -> None:
        """Count leases that are booked out, and still there."""
        for one in holders:
            _count(one.lease.grants, self._leaving)
            if one.lease.request.lease_class is FIXED_CLASS:
                _count_for(one.project, one.lease.grants, self._leaving_builds)

    def promise(self, winner: PendingRequest, grants: Iterable[Grant]) -> None:
        """Count grants that are booked in, for when the leases there have left."""
        _count(grants, self._promised)
        if winner.lease.request.lease_class is FIXED_CLASS:
            _count_for(winner.project, grants, self._promised_builds)

    def not_yet_free(self, gpu: GpuId) -> Amount:
        """Return the capacity of a GPU that the places show as free, and that is not free yet."""
        return self._leaving[gpu].less(self._promised[gpu])

    def really_held(self, project: str, held: Mapping[GpuId, Amount]) -> dict[GpuId, Amount]:
        """Return the amount that build work of the project keeps to itself on each GPU.

        ``held``: as booked.
        """
        ours = {gpu for owner, gpu in self._leaving_builds if owner == project}
        return {gpu: self._really(project, gpu, held.get(gpu, NONE)) for gpu in {*held, *ours}}

    def _really(self, project: str, gpu: GpuId, booked: Amount) -> Amount:
        promised = self._leaving[gpu].least(self._promised_builds[project, gpu])
        leaving = self.not_yet_free(gpu).least(self._leaving_builds[project, gpu])
        return booked.less(promised).plus(leaving)


def _count(grants: Iterable[Grant], amounts: dict[GpuId, Amount]) -> None:
    for grant in grants:
        amounts[grant.gpu] = amounts[grant.gpu].plus(amount_of(grant))


def _count_for(project: str, grants: Iterable[Grant], amounts: dict[tuple[str, GpuId], Amount]) -> None:
    for grant in grants:
        amounts[project, grant.gpu] = amounts[project, grant.gpu].plus(amount_of(grant))


def arranged(policy: Policy, ledger: QuotaUsage, places: CapacityPort, pending: Pending) -> Arrangement:
    """Return the places of the fixed quotas."""
    slots = [
        slot
        for host, rooms in places.rooms().items()
        for room in rooms
        if (slot := _slot(room, host, pending)) is not None
    ]
    wants: list[FixedQuotaNeed] = []
    for _, project in sorted(policy.projects.items()):
        wants += _wants(project, slots, ledger, pending)
    return arrange(wants)


def unit_request(want: FixedQuotaNeed, permille: int) -> Request:
    """Return a request for one unit."""
    models = tuple(sorted({slot.gpu.name for slot in want.slots}))
    isolation = Isolation.EXCLUSIVE if permille == WHOLE_PERMILLE else Isolation.SHARED
    return Request(compute_permille=permille, memory_permille=permille, isolation=isolation, models=models)


def _slot(room: FreeCapacity, host: str, pending: Pending) -> Slot | None:
    """Return the GPU of a room; None if no ordinary request could be there."""
    gpu = room.gpu
    if gpu.trouble is not None or instances.wrong_kind(_SHARED, gpu) is not None:
        return None
    free = Amount(max(0, room.free_permille), max(0, room.free_bytes)).less(pending.not_yet_free(gpu.id))
    is_little = room.stray_bytes * WHOLE_PERMILLE <= gpu.leasable_bytes * STRAY_PERMILLE
    return Slot(gpu, host, free, room.stray_bytes if is_little else 0)


def _wants(
    project: Project, slots: Sequence[Slot], ledger: QuotaUsage, pending: Pending
) -> Iterator[FixedQuotaNeed]:
    if not project.has_fixed:
        return
    mine: dict[GpuId, Amount] = defaultdict(lambda: NONE)
    for holder in ledger.roll.of(project.name):
        if holder.lease.request.lease_class is FIXED_CLASS:
            _count(holder.lease.grants, mine)
    held = pending.really_held(project.name, mine)
    for pool, quota in project.quotas():
        of_pool = [slot for slot in slots if project.pool(slot.gpu.name) == pool]
        whole, rest = divmod(quota.fixed, WHOLE_PERMILLE)
        if quota.fixed and of_pool:
            yield FixedQuotaNeed(project.name, pool, whole, rest, of_pool, held)
