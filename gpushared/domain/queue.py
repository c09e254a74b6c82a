"""Who goes next: first come, first served, with backfill that never delays the first one that waits.

The rule, in full:

1. Requests are looked at in the order in which they came. One that fits is granted.
2. The first one that waits for leases to end is the *head*. The GPUs where it will fit soonest are reserved
   for it: soonest by the time limits of the leases there, and where limits say nothing, those that lack
   least.
3. A later request may still be granted (backfill) on GPUs that are not reserved, or on a reserved one if
   its own time limit ends before the head can start there.
4. A request that would not fit even if all leases ended (a GPU is in trouble, or used by processes without
   a lease) keeps its place, but reserves nothing: one broken GPU must not make the others idle.

So the reserved GPUs only ever get emptier for the head, and what it lacks on the GPU that lacks least never
grows: it starts at the latest when the leases that hold its reserved GPUs have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushared.domain.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.lease import Grant, Lease, LeaseId, Reserved
from gpushared.domain.placement import (
    Reason,
    Refusal,
    Room,
    Rooms,
    is_grant,
    need_on,
    place,
    refuse,
    rooms_of,
    take,
)
from gpushared.domain.request import Request

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs kept for the head of the queue; ``start_at`` is infinite where no time limit tells."""

    head: LeaseId
    gpus: frozenset[GpuId]
    start_at: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What one pass decided for one request: the grants, or why not."""

    lease: LeaseId
    position: int
    grants: tuple[Grant, ...] = ()
    reason: Reason | None = None
    refusals: tuple[Refusal, ...] = ()
    reservation: Reservation | None = None
    text: str = ""
    """Why not, where that is no matter of room."""


@dataclass(slots=True)
class _Pass:
    """Scratch of one pass over the queue."""

    rooms: dict[GpuId, Room]
    now: float
    holders: list[Lease]
    reservation: Reservation | None = None
    refused: dict[Request, tuple[Reason, tuple[Refusal, ...]]] = field(default_factory=dict)


def decide(
    waiting: Iterable[Lease], rooms: Mapping[GpuId, Room], holders: Sequence[Lease], now: float
) -> tuple[Decision, ...]:
    """One pass over the queue, in order. ``holders``: the leases that hold something now."""
    scratch = _Pass(dict(rooms), now, list(holders))
    return tuple(_decide_one(lease, at, scratch) for at, lease in enumerate(waiting, start=1))


def _decide_one(lease: Lease, position: int, scratch: _Pass) -> Decision:
    request = lease.request
    # Rooms only shrink during a pass: what was refused once is refused again.
    if request in scratch.refused:
        reason, refusals = scratch.refused[request]
        return Decision(lease.id, position, (), reason, refusals, scratch.reservation)
    answer = place(request, _open_rooms(request, scratch))
    if is_grant(answer):
        grants = tuple(grant for grant in answer if isinstance(grant, Grant))
        take(scratch.rooms, grants, exclusive=request.wants_whole_gpus)
        scratch.holders.append(granted(lease, grants, scratch.now))
        return Decision(lease.id, position, grants)
    refusals = _refusals(request, scratch.rooms)
    waits = waits_for_leases(request, scratch.rooms)
    reason = _reason(request, refusals, scratch.rooms, waits=waits)
    if scratch.reservation is None and waits:
        scratch.reservation = reserve(lease, scratch.rooms, scratch.holders, scratch.now)
    scratch.refused[request] = (reason, refusals)
    return Decision(lease.id, position, (), reason, refusals, scratch.reservation)


def granted(lease: Lease, grants: tuple[Grant, ...], now: float) -> Lease:
    """The lease as it would hold these grants from now on."""
    limit = lease.request.time_limit_seconds
    expires_at = None if limit is None else now + limit
    return replace(lease, state=Reserved(grants, now, now), expires_at=expires_at)


def _open_rooms(request: Request, scratch: _Pass) -> Rooms:
    """The GPUs that a request behind the head may use."""
    kept = scratch.reservation
    if kept is None:
        return scratch.rooms
    limit = request.time_limit_seconds
    if limit is not None and scratch.now + limit <= kept.start_at < NEVER:
        return scratch.rooms
    return {gpu: room for gpu, room in scratch.rooms.items() if gpu not in kept.gpus}


def _refusals(request: Request, rooms: Rooms) -> tuple[Refusal, ...]:
    return tuple(r for r in (refuse(request, room) for room in rooms.values()) if r is not None)


_LEASES_FIRST = (
    Reason.RESOURCES,
    Reason.SHARING_MODE,
    Reason.UNMANAGED_USE,
    Reason.GPU_UNHEALTHY,
    Reason.OTHER_GPU,
)
_LEASES_LAST = (
    Reason.UNMANAGED_USE,
    Reason.GPU_UNHEALTHY,
    Reason.RESOURCES,
    Reason.OTHER_GPU,
    Reason.SHARING_MODE,
)


def _reason(request: Request, refusals: tuple[Refusal, ...], rooms: Rooms, *, waits: bool) -> Reason:
    """What stands closest to a grant; where the end of all leases would not help, what would be left."""
    if is_grant(place(request, rooms)):
        return Reason.QUEUE_ORDER
    if waits:
        return _first_of(_LEASES_FIRST, refusals)
    return _first_of(_LEASES_LAST, _refusals(request, _emptied(rooms)))


def _first_of(order: Sequence[Reason], refusals: Iterable[Refusal]) -> Reason:
    seen = {refusal.reason for refusal in refusals}
    return next((reason for reason in order if reason in seen), Reason.RESOURCES)


def waits_for_leases(request: Request, rooms: Rooms) -> bool:
    """Whether the request would fit if all leases ended."""
    return is_grant(place(request, _emptied(rooms)))


def _emptied(rooms: Rooms) -> dict[GpuId, Room]:
    gpus = (room.gpu for room in rooms.values())
    return rooms_of(gpus, (), {gpu: room.stray_bytes for gpu, room in rooms.items()})


def reserve(head: Lease, rooms: Rooms, holders: Sequence[Lease], now: float) -> Reservation:
    """The GPUs on which the head can start soonest; the head is one that waits for leases."""
    request = head.request
    pinned = request.gpus
    hopeless = {refusal.gpu for refusal in _refusals(request, _emptied(rooms))}
    candidates = [room for room in rooms.values() if room.gpu.id not in hopeless]
    ranked = sorted(candidates, key=lambda room: _soonness(request, room, holders, now))
    chosen = ranked[: len(pinned) or request.gpu_count]
    starts = [free_at(request, room, holders, now) for room in chosen]
    return Reservation(head.id, frozenset(room.gpu.id for room in chosen), max(starts, default=NEVER))


def _soonness(request: Request, room: Room, holders: Sequence[Lease], now: float) -> tuple[float, float, int]:
    return (
        free_at(request, room, holders, now),
        _shortfall(request, room),
        room.gpu.index,
    )


def _shortfall(request: Request, room: Room) -> float:
    """How much of a GPU is missing, as a share."""
    if request.wants_whole_gpus:
        return float(WHOLE_PERMILLE - room.free_permille)
    need = need_on(request, room.gpu)
    memory = (need.memory_bytes - room.free_bytes) * WHOLE_PERMILLE / max(1, room.gpu.leasable_bytes)
    return max(0.0, float(need.compute_permille - room.free_permille), memory)


def free_at(request: Request, room: Room, holders: Sequence[Lease], now: float) -> float:
    """When this GPU can take its part if every lease uses its whole time limit; infinite without limits."""
    if refuse(request, room) is None:
        return now
    leaving = sorted(
        (lease for lease in holders if any(grant.gpu == room.gpu.id for grant in lease.grants)),
        key=lambda lease: lease.expires_at or NEVER,
    )
    for lease in leaving:
        if lease.expires_at is None:
            return NEVER
        room = _without(room, lease)
        if refuse(request, room) is None:
            return max(now, lease.expires_at)
    return NEVER


def _without(room: Room, lease: Lease) -> Room:
    """The room when this lease is gone; whoever was there alone leaves nobody who is."""
    grant = next(grant for grant in lease.grants if grant.gpu == room.gpu.id)
    return Room(
        room.gpu,
        room.free_bytes + grant.memory_bytes,
        room.free_permille + grant.compute_permille,
        room.leases - 1,
        exclusive=False,
        stray_bytes=room.stray_bytes,
    )
