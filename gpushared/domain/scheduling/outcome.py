"""Describe the result of a pass for one request, and why the request has no room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacities,
    FreeCapacity,
    Reason,
    Refusal,
    free_capacities,
    is_grant,
    place,
    refuse,
)


@dataclass(frozen=True, slots=True)
class KeptGpus:
    """Name GPUs kept for a request that waits; ``start_at`` is infinite if no time limit tells the start."""

    head: LeaseId
    gpus: frozenset[GpuId]
    start_at: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Hold the decision of one pass on one request: the grants, or the reason for none."""

    lease: LeaseId
    position: int
    grants: tuple[Grant, ...] = ()
    reason: Reason | None = None
    refusals: tuple[Refusal, ...] = ()
    reservation: KeptGpus | None = None
    text: str = ""
    """A sentence on the reason, if the reason is not a lack of room."""
    lasting: bool = False
    """No end of a lease helps."""


def granted(lease: Lease, grants: tuple[Grant, ...], now: float) -> Lease:
    """Return the lease as it would hold these grants from now on."""
    limit = lease.request.time_limit_seconds
    expires_at = None if limit is None else now + limit
    return replace(lease, state=Reserved(grants, now, now), expires_at=expires_at)


_LEASES_FIRST = (
    Reason.RESOURCES,
    Reason.SHARING_MODE,
    Reason.AWAY_FROM,
    Reason.UNMANAGED_USE,
    Reason.GPU_UNHEALTHY,
    Reason.OTHER_GPU,
    Reason.OTHER_MODEL,
)
_LEASES_LAST = (
    Reason.UNMANAGED_USE,
    Reason.GPU_UNHEALTHY,
    Reason.RESOURCES,
    Reason.OTHER_GPU,
    Reason.OTHER_MODEL,
    Reason.SHARING_MODE,
)


def why_no_room(request: Request, capacities: FreeCapacities) -> tuple[Reason, tuple[Refusal, ...]]:
    """Return the reason that stands closest to a grant, and the refusal of each GPU.

    If the end of all leases would not help, the reason is the one that would be left then.
    """
    refusals = _refusals(request, capacities)
    if is_grant(place(request, capacities)):
        return Reason.QUEUE_ORDER, refusals
    if waits_for_leases(request, capacities):
        return _first_of(_LEASES_FIRST, refusals), refusals
    return _first_of(_LEASES_LAST, _refusals(request, _emptied(capacities))), refusals


def waits_for_leases(request: Request, capacities: FreeCapacities) -> bool:
    """Return True if the request would fit if all leases ended."""
    return is_grant(place(request, _emptied(capacities)))


def _refusals(request: Request, capacities: FreeCapacities) -> tuple[Refusal, ...]:
    refusals = (refuse(request, capacity) for capacity in capacities.values())
    return tuple(refusal for refusal in refusals if refusal is not None)


def _first_of(order: Sequence[Reason], refusals: Iterable[Refusal]) -> Reason:
    seen = {refusal.reason for refusal in refusals}
    return next((reason for reason in order if reason in seen), Reason.RESOURCES)


def _emptied(capacities: FreeCapacities) -> dict[GpuId, FreeCapacity]:
    gpus = (capacity.gpu for capacity in capacities.values())
    return free_capacities(gpus, (), {gpu: capacity.stray_bytes for gpu, capacity in capacities.items()})
