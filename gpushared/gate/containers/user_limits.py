"""Limit all containers of a user together: their number, their ports, and their resources by the gate's cgroup."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpushared.domain.model.errors import LimitReached, PermissionRefused, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import format_memory
from gpushared.gate.api.body import recorded_ports
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.lease_port import LeasePort
from gpushared.gate.containers.ownership import Container, own_containers
from gpushared.net.http_client import EngineSocket
from gpushared.ports import UserWalls

log = logging.getLogger(__name__)

PIDS_TO_START = 8
"""Runtimes need about six in the new container's cgroup."""
MEMORY_TO_START_BYTES = 16 << 20


class UserContainers:
    """Limit the containers of each user together. Without ``walls`` no common limit applies.

    ``policy`` returns the limits that are in force.
    """

    def __init__(
        self, walls: UserWalls | None, lease_service: LeasePort, policy: Callable[[], SitePolicy]
    ) -> None:
        self._walls = walls
        self._lease_service = lease_service
        self._policy = policy

    async def parent(self, uid: int) -> str:
        """Return Docker's ``CgroupParent`` for a container of the user, with the limits on it.

        Empty if this machine has no such cgroups and only a preset asks for them: the doctor reports that.
        Raises ``LimitReached`` and ``Unavailable``.
        """
        if self._walls is None:
            return ""
        engine, policy = self._lease_service.engine_facts(), self._policy()
        try:
            await self._walls.hold(uid, policy.user_bounds, engine)
        except Unavailable as error:
            if policy.user_bounds_are_configured:
                raise
            log.info("container without the limits of its user uid=%d why=%s", uid, error)
            return ""
        return self._walls.parent_of(uid, engine)

    async def join_files(self, uid: int) -> list[str]:
        """Return the files by which a process of the daemon joins the user's cgroups; empty without cgroups.

        Raises as ``parent`` does.
        """
        if self._walls is None or not await self.parent(uid):
            return []
        return [str(file) for file in await self._walls.join_files(uid, self._lease_service.engine_facts())]

    def name(self, uid: int) -> str:
        """Return the ``CgroupParent`` without making it; also empty if the engine has not answered."""
        try:
            engine = self._lease_service.engine_facts()
        except Unavailable:
            return ""
        return "" if self._walls is None else self._walls.parent_of(uid, engine)

    async def check_start(self, uid: int, container: Container | None = None) -> None:
        """Raise ``LimitReached`` or ``PermissionRefused`` if the start would fail in the kernel.

        Another start of the user's may take the rest before this one: then the kernel refuses this start.
        """
        if self._walls is None or (container is not None and not container.cgroup_parent):
            return
        if container is not None:
            await self.parent(uid)
            if not container.is_stopped:
                return
        bounds, engine = self._policy().user_bounds, self._lease_service.engine_facts()
        use = await self._walls.use(uid, engine)
        if bounds.pids and use.pids + PIDS_TO_START > bounds.pids:
            raise LimitReached(
                f"your containers have {use.pids} of the {bounds.pids} processes that a user may have here",
                hint="end some of them; docker stats shows which have many",
            )
        if bounds.memory_bytes and use.memory_bytes + MEMORY_TO_START_BYTES > bounds.memory_bytes:
            used, most = map(format_memory, (use.memory_bytes, bounds.memory_bytes))
            raise LimitReached(
                f"your containers hold {used} of the {most} of memory that a user may have here",
                hint="end some of them; docker stats shows which hold much",
            )
        if container is not None and bounds.cpus and container.cpus > bounds.cpus:
            raise PermissionRefused(
                f"this container has {container.cpus:g} CPUs, and all of a user may have {bounds.cpus:g}",
                hint=f"docker update --cpus {bounds.cpus:g} {container.name}",
            )


class CreatesUnderWay:
    """Count the creates under way; all creates share one object."""

    def __init__(self, engine: EngineSocket) -> None:
        self._engine = engine
        self._under_way: Counter[int] = Counter()
        self._ports: Counter[int] = Counter()
        """The ports of each user's creates under way."""

    @asynccontextmanager
    async def for_one_more(self, caller: Caller, policy: SitePolicy, ports: int = 0) -> AsyncIterator[None]:
        """Count a create and check the limits, then keep it counted while the block runs.

        Raises ``LimitReached``.
        """
        self._under_way[caller.uid] += 1
        self._ports[caller.uid] += ports
        try:
            more = self._ports[caller.uid] if ports else 0
            await self.check(caller, policy, self._under_way[caller.uid], more)
            yield
        finally:
            self._ports[caller.uid] -= ports
            self._under_way[caller.uid] -= 1
            if not self._under_way[caller.uid]:
                del self._under_way[caller.uid], self._ports[caller.uid]

    async def check(self, caller: Caller, policy: SitePolicy, more: int = 1, ports: int = 0) -> None:
        """Raise ``LimitReached`` if the caller may not have this many more containers, or ports."""
        limit, most = policy.containers_per_user, policy.ports_per_user if ports else 0
        if most and ports > most:
            raise _too_many_ports(ports, most)
        if not limit and not most:
            return
        own = await own_containers(self._engine, caller)
        if limit and len(own) + more > limit:
            have = "one container" if limit == 1 else f"{limit} containers"
            raise LimitReached(
                f"you have the {have} that a user may have here, stopped ones too",
                hint="docker container prune removes those that are stopped",
            )
        if (
            most
            and (published := sum(recorded_ports(each.get("Labels") or {}) for each in own)) + ports > most
        ):
            raise _too_many_ports(published + ports, most)


def _too_many_ports(ports: int, most: int) -> LimitReached:
    return LimitReached(
        f"your containers would publish {ports} ports, and a user may publish {most} here",
        hint="publish those that are needed, by -p; stopped containers' count until they are removed",
    )
