"""Make places of rooms: a node, or a few hosts, looked through GPU by GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import NOTHING
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacity,
    Rooms,
    is_grant,
    place,
)


class RoomPlaces:
    """Keep the rooms of each host; a request goes where whole GPUs stay whole, then to the fullest host."""

    def __init__(self, hosts: Mapping[str, Rooms]) -> None:
        self._hosts = {host: dict(rooms) for host, rooms in hosts.items()}
        self._host_of = {gpu: host for host, rooms in hosts.items() for gpu in rooms}
        self._models = _smallest_of_each_model(hosts)
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
        found: list[tuple[int, int, int, tuple[Grant, ...]]] = []
        for name in self._worth_looking(request, gone, host):
            rooms = self._rooms(name, request, gone, closed)
            answer = place(request, rooms)
            if is_grant(answer):
                grants = tuple(grant for grant in answer if isinstance(grant, Grant))
                untouched = sum(not rooms[grant.gpu].leases for grant in grants)
                free = sum(room.free_permille for room in rooms.values())
                found.append((untouched, free, self._order[name], grants))
        return min(found, default=(0, 0, 0, ()))[3]

    def _worth_looking(self, request: Request, gone: Sequence[Lease], host: str | None) -> Iterable[str]:
        """Return the hosts on which the request may fit."""
        if gone:
            return self._hosts if host is None else (host,)
        names = self._free if host is None else (host,) if host in self._free else ()
        return [name for name in names if _may_fit(request, *self._free[name])]

    def _look(self, host: str) -> None:
        """Note the most free compute on one GPU of a host, and how many GPUs nobody is on."""
        rooms = self._hosts[host].values()
        most = max((room.free_permille for room in rooms), default=0)
        if most > 0:
            self._free[host] = most, sum(not room.leases for room in rooms)
        else:
            self._free.pop(host, None)

    def _rooms(
        self, host: str, request: Request, gone: Sequence[Lease], closed: Collection[GpuId]
    ) -> dict[GpuId, FreeCapacity]:
        rooms = {
            gpu: room
            for gpu, room in self._hosts[host].items()
            if gpu not in closed and (not request.models or room.gpu.name in request.models)
        }
        for lease in gone:
            for grant in lease.grants:
                if grant.gpu in rooms:
                    rooms[grant.gpu] = _more(rooms[grant.gpu], grant, lease.request)
        return rooms

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:  # noqa: ARG002 - rooms know no leases
        for grant in grants:
            host = self._host_of[grant.gpu]
            rooms = self._hosts[host]
            rooms[grant.gpu] = rooms[grant.gpu].less(grant, exclusive=request.wants_whole_gpus)
            self._look(host)

    def give(
        self,
        lease: LeaseId,  # noqa: ARG002 - rooms know no leases
        request: Request,
        grants: Sequence[Grant],
        *,
        left_bytes: int = 0,  # noqa: ARG002 - rooms know no memory of hosts
    ) -> None:
        for grant in grants:
            host = self._host_of.get(grant.gpu)
            if host is not None:
                rooms = self._hosts[host]
                rooms[grant.gpu] = _more(rooms[grant.gpu], grant, request)
                self._look(host)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._hosts[self._host_of[gpu]][gpu].gpu

    def host_of(self, gpu: GpuId) -> str:
        return self._host_of[gpu]

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return tuple(self._hosts[host])

    def rooms(self) -> Mapping[str, Sequence[FreeCapacity]]:
        return {host: tuple(rooms.values()) for host, rooms in self._hosts.items()}

    def models(self) -> Mapping[str, Gpu]:
        return self._models


def _smallest_of_each_model(hosts: Mapping[str, Rooms]) -> dict[str, Gpu]:
    models: dict[str, Gpu] = {}
    for rooms in hosts.values():
        for room in rooms.values():
            known = models.get(room.gpu.name)
            if known is None or room.gpu.leasable_bytes < known.leasable_bytes:
                models[room.gpu.name] = room.gpu
    return models


def _may_fit(request: Request, most_free: int, untouched: int) -> bool:
    """Return True if a look at the host is worth its time."""
    if request.wants_whole_gpus:
        return untouched >= (len(request.gpus) or request.gpu_count)
    return most_free >= (request.compute_permille or 1)


def _more(room: FreeCapacity, grant: Grant, request: Request) -> FreeCapacity:
    """Return the room without a grant; after an exclusive grant the GPU is open to others again."""
    return replace(
        room,
        free_bytes=room.free_bytes + grant.memory_bytes,
        free_permille=room.free_permille + grant.compute_permille,
        leases=room.leases - 1,
        exclusive=room.exclusive and not request.wants_whole_gpus,
    )
