"""Place a request on this node's GPUs, or tell why each GPU refused.

Packing rule: a slice goes to the GPU that is left with the least free capacity (best fit), and an untouched GPU comes
last, so that whole GPUs stay whole. Ties go to the lower index, so the same state gives the same answer. MIG
instances are leased whole, the smallest that is enough first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpushared.domain.model import instances
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease
from gpushared.domain.model.request import Isolation, Request

STRAY_PERMILLE = 100
"""A whole GPU may be leased while processes without a lease (a desktop, say) hold at most a tenth of it."""


class Reason(StrEnum):
    """Code the reason why a request waits or was refused; docs/reference/reasons.md explains each code."""

    RESOURCES = "resources"
    QUEUE_ORDER = "queue_order"
    SHARING_MODE = "sharing_mode"
    GPU_UNHEALTHY = "gpu_unhealthy"
    UNMANAGED_USE = "unmanaged_use"
    OTHER_GPU = "other_gpu"
    OTHER_MODEL = "other_model"
    AWAY_FROM = "away_from"
    HOST_RESOURCES = "host_resources"
    NEVER_FITS = "never_fits"
    HELD = "held"
    BEGIN_TIME = "begin_time"
    AFTER_LEASE = "after_lease"
    CLASS_ORDER = "class_order"
    FAIR_SHARE = "fair_share"
    FIXED_QUOTA = "fixed_quota"
    PROJECT_QUOTA = "project_quota"
    PROJECT_LIMIT = "project_limit"
    PREEMPTING = "preempting"


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Describe the free capacity of one GPU."""

    gpu: Gpu
    free_bytes: int
    free_permille: int
    leases: int = 0
    exclusive: bool = False
    stray_bytes: int = 0
    apart_from: str = ""
    """The lease on the GPU that the request keeps away from; known only if a request is explained."""

    def less(self, grant: Grant, *, exclusive: bool) -> FreeCapacity:
        """Return the free capacity after one more grant."""
        return FreeCapacity(
            self.gpu,
            self.free_bytes - grant.memory_bytes,
            self.free_permille - grant.compute_permille,
            self.leases + 1,
            self.exclusive or exclusive,
            self.stray_bytes,
            self.apart_from,
        )

    def more(self, grant: Grant, *, exclusive: bool) -> FreeCapacity:
        """Return the free capacity without a grant; after an exclusive grant the GPU is open to others again."""
        return FreeCapacity(
            self.gpu,
            self.free_bytes + grant.memory_bytes,
            self.free_permille + grant.compute_permille,
            self.leases - 1,
            self.exclusive and not exclusive,
            self.stray_bytes,
            self.apart_from,
        )


FreeCapacities = Mapping[GpuId, FreeCapacity]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Tell why one GPU was not taken."""

    gpu: GpuId
    reason: Reason
    text: str


def free_capacities(
    gpus: Iterable[Gpu], leases: Iterable[Lease], stray: Mapping[GpuId, int]
) -> dict[GpuId, FreeCapacity]:
    """Return the free capacity of each GPU. ``stray``: bytes that processes without a lease hold there."""
    capacities = {
        gpu.id: FreeCapacity(
            gpu, gpu.leasable_bytes - stray.get(gpu.id, 0), WHOLE_PERMILLE, stray_bytes=stray.get(gpu.id, 0)
        )
        for gpu in gpus
    }
    for lease in leases:
        for grant in lease.grants:
            if grant.gpu in capacities:
                capacities[grant.gpu] = capacities[grant.gpu].less(
                    grant, exclusive=lease.request.wants_whole_gpus
                )
    return capacities


def need_on(request: Request, gpu: Gpu) -> Grant:
    """Return the part of this GPU that the request takes if the GPU is chosen; its least if it is elastic."""
    if request.wants_whole_gpus:
        return Grant(gpu.id, request.memory_bytes or 0, WHOLE_PERMILLE)
    memory = request.memory_bytes
    if memory is None:
        memory = gpu.memory_of_share(request.memory_permille or WHOLE_PERMILLE)
    share = request.compute_permille
    share = gpu.share_of_memory(memory) if share is None else share
    limit = request.compute_limit_permille or 0
    return Grant(gpu.id, memory, share, limit if limit > share else 0)


def refuse(request: Request, capacity: FreeCapacity) -> Refusal | None:
    """Return the first reason why this GPU cannot take its part of the request; None if it can."""
    gpu = capacity.gpu
    if request.gpus and gpu.id not in request.gpus:
        return Refusal(gpu.id, Reason.OTHER_GPU, "is not the GPU this container is bound to")
    if request.models and gpu.name not in request.models:
        return Refusal(gpu.id, Reason.OTHER_MODEL, f"is a {gpu.name}")
    if wrong := instances.wrong_kind(request, gpu):
        return Refusal(gpu.id, Reason.SHARING_MODE, wrong)
    if gpu.trouble is not None:
        return Refusal(gpu.id, Reason.GPU_UNHEALTHY, gpu.trouble)
    if instances.wants_instances(request) and instances.too_small(request, gpu):
        return Refusal(gpu.id, Reason.RESOURCES, "is too small a MIG instance")
    if capacity.apart_from:
        return Refusal(gpu.id, Reason.AWAY_FROM, f"holds {capacity.apart_from}, from which it keeps away")
    if capacity.exclusive:
        return Refusal(gpu.id, Reason.SHARING_MODE, "is leased as a whole")
    if request.wants_whole_gpus:
        return _refuse_whole(request, capacity)
    if gpu.exclusive_process and needs_own_server(request):
        return Refusal(gpu.id, Reason.SHARING_MODE, "takes one MPS server only (exclusive_process)")
    return _refuse_slice(need_on(request, gpu), capacity)


def needs_own_server(request: Request) -> bool:
    """Return True if the request's leases cannot share an MPS server with other leases on their GPUs.

    A process can be the client of one server only, so a lease of several GPUs needs a server over just those
    GPUs.
    """
    return request.isolation is Isolation.SEPARATE or max(len(request.gpus), request.gpu_count) > 1


def _refuse_whole(request: Request, capacity: FreeCapacity) -> Refusal | None:
    gpu = capacity.gpu
    if capacity.leases:
        leases = "1 lease" if capacity.leases == 1 else f"{capacity.leases} leases"
        return Refusal(gpu.id, Reason.SHARING_MODE, f"is shared by {leases}")
    if capacity.stray_bytes * WHOLE_PERMILLE > gpu.leasable_bytes * STRAY_PERMILLE:
        return Refusal(gpu.id, Reason.UNMANAGED_USE, "is used by processes without a lease")
    if max(1, request.memory_bytes or 0) > capacity.free_bytes:
        return Refusal(gpu.id, Reason.RESOURCES, "has too little memory")
    return None


def _refuse_slice(need: Grant, capacity: FreeCapacity) -> Refusal | None:
    if need.memory_bytes <= 0:  # a grant of nothing would be a grant without a wall
        return Refusal(capacity.gpu.id, Reason.RESOURCES, "is too small for such a share")
    if need.memory_bytes > capacity.free_bytes:
        if need.memory_bytes <= capacity.free_bytes + capacity.stray_bytes:
            return Refusal(capacity.gpu.id, Reason.UNMANAGED_USE, "is used by processes without a lease")
        return Refusal(capacity.gpu.id, Reason.RESOURCES, "has too little free memory")
    if need.compute_permille > capacity.free_permille:
        return Refusal(capacity.gpu.id, Reason.RESOURCES, "has too little free compute")
    return None


def place(request: Request, capacities: FreeCapacities) -> tuple[Grant, ...] | tuple[Refusal, ...]:
    """Return grants on as many GPUs as the request wants, or one refusal for each GPU that cannot take part.

    An elastic request is placed by its least; ``elastic.largest`` asks for more.
    """
    refusals = []
    fitting = []
    for capacity in capacities.values():
        refusal = refuse(request, capacity)
        if refusal is None:
            fitting.append(capacity)
        else:
            refusals.append(refusal)
    count = len(request.gpus) or request.gpu_count
    if len(fitting) < count:
        return tuple(refusals)
    if instances.wants_instances(request):
        fitting.sort(key=lambda capacity: instances.best_fit(capacity.gpu))
    else:
        fitting.sort(key=lambda capacity: _packing_order(request, capacity))
    return tuple(grant_on(request, capacity) for capacity in fitting[:count])


def _packing_order(request: Request, capacity: FreeCapacity) -> tuple[bool, int, int, int]:
    need = need_on(request, capacity.gpu)
    return (
        capacity.leases == 0,
        capacity.free_permille - need.compute_permille,
        capacity.free_bytes - need.memory_bytes,
        capacity.gpu.index,
    )


def grant_on(request: Request, capacity: FreeCapacity) -> Grant:
    """Return the request's part of a GPU that was chosen for it."""
    if request.wants_whole_gpus:
        return Grant(capacity.gpu.id, capacity.free_bytes, WHOLE_PERMILLE)
    return need_on(request, capacity.gpu)


def is_grant(answer: tuple[Grant, ...] | tuple[Refusal, ...]) -> bool:
    """Return True if ``place`` answered with grants."""
    return bool(answer) and isinstance(answer[0], Grant)
