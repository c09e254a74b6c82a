"""Build the driver's wall: a limit on the GPU memory of a lease's whole cgroup (r615 and later)."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushared.domain.model.errors import GpushareError, SharingUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant, Lease, MemoryWall
from gpushared.ports import EngineFacts, Hook, MemoryLimiter
from gpushared.sharing import limit_hook
from gpushared.sharing.cgroups import CgroupPlace, LeaseCgroups

_log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
NOT_THERE = "the GPUs are simulated: no driver limits a container's memory"


@dataclass(frozen=True, slots=True)
class CgroupPlacement:
    """Hold the settings that put a container below its lease's own cgroup, which has the limits."""

    cgroup_parent: str
    hooks: tuple[Hook, ...]


class DriverWall:
    """Keep one cgroup for each lease, with the lease's limits, in which the engine puts its container.

    The limit is on this parent before there is a container, so there is no moment without one. The
    container's own cgroup gets the limit too, because only then do programs inside see it as the GPU's total:
    a hook of the runtime's sets it (see ``limit_hook``), and ``hold`` sets it once the container runs.

    A trial finds out, once, if the driver has such limits; again after a failure, and every ``retry_seconds``
    while there are none.
    """

    def __init__(
        self,
        limiter: MemoryLimiter | None,
        cgroups: LeaseCgroups | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Take ``limiter`` (None for GPUs without limits), and ``environ``, which the hook needs.

        The variables lead the hook to the driver.
        """
        self._limiter = limiter
        self._cgroups = cgroups or LeaseCgroups()
        self._environ = tuple(f"{name}={value}" for name, value in (environ or {}).items())
        self._retry_seconds = retry_seconds
        self._lock = asyncio.Lock()
        self._tried_at: float | None = None
        self._trouble: str | None = NOT_THERE if limiter is None else None
        self._limits: dict[str, dict[GpuId, int]] = {}
        self._leaves: dict[str, str] = {}
        self._lost: str | None = None

    def put_into(self, users: CgroupPlace) -> None:
        """Put leases into the places of their users below this place."""
        self._cgroups.users = users

    @property
    def lost(self) -> str | None:
        """Return the failure of a driver that had limits before, until it works again."""
        return self._lost

    @property
    def last_trouble(self) -> str | None:
        """Return why there is no such wall, by the last trial; this makes no new trial."""
        return self._trouble

    async def trouble(self) -> str | None:
        """Return why there is no such wall now, None if there is one.

        Tries when that is due. Never raises.
        """
        if self._limiter is None:
            return self._trouble
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._tried_at is None or self._is_due(now):
                self._trouble = await self._try(self._limiter)
                self._tried_at = now
            return self._trouble

    async def build(
        self, lease: Lease, grants: Sequence[Grant], engine: EngineFacts | None
    ) -> CgroupPlacement | None:
        """Set the lease's limits, also on containers that run; None if the driver has no limits.

        ``engine`` is None before it has answered. Raises SharingUnavailable if this lease's container is
        behind this wall already, and the driver does not answer: the limits that are set hold on, at the old
        size.
        """
        name = lease.device_name
        if self._limiter is None:
            return None
        trouble = await self.trouble()
        if trouble is not None and self._lost is None:
            self._limits.pop(name, None)
            return None
        limits = {grant.gpu: grant.memory_bytes for grant in grants}
        try:
            if trouble is not None:
                raise SharingUnavailable(trouble)
            parent = await self._cgroups.make(name, engine, lease.owner_uid)
            for cgroup in (parent.path, *await self._leaves_of(name)):
                await self._limit(self._limiter, cgroup, limits)
        except GpushareError as error:
            self._fail(error)
            if _is_behind(lease):
                raise SharingUnavailable(error.message, hint=error.hint) from error
            _log.warning("driver_wall.without lease=%s why=%s", lease.id, error)
            return None
        self._lost = None
        self._limits[name] = limits
        by_hook = engine is None or engine.lease_devices
        return CgroupPlacement(parent.docker_name, (self._hook(limits),) if by_hook else ())

    def holds(self, device_name: str) -> bool:
        """Return True if a container of this device must get limits."""
        return device_name in self._limits

    async def hold(self, device_name: str, path: str) -> None:
        """Set the limits on a running container's own cgroup as well; without limits there is nothing to do.

        ``path`` is the cgroup's path from the top of the tree. Errors: ``SharingUnavailable``; an error
        leaves the limits on the parent as they are.
        """
        cgroup = f"{self._cgroups.root}{path}"
        limits = self._limits.get(device_name)
        if self._limiter is None or limits is None:
            return
        try:
            await self._limit(self._limiter, cgroup, limits)
        except GpushareError as error:
            self._fail(error)
            raise SharingUnavailable(
                f"the container's own cgroup has no limit: {error.message}", hint=error.hint
            ) from error
        self._leaves[device_name] = cgroup

    async def close(self, device_name: str) -> None:
        """Remove limits and cgroup; those still in use stay for a later ``sweep``."""
        limits, leaf = self._limits.pop(device_name, {}), self._leaves.pop(device_name, None)
        if leaf is not None and await self._cgroups.is_there(leaf):
            await self._release(leaf, limits)
        if self._limiter is not None:
            await self._take_down(device_name, limits)

    async def sweep(self, live: Collection[str], gpus: Collection[GpuId]) -> None:
        """Remove the cgroups that an earlier run left behind, of leases that are over."""
        if self._limiter is None or await self.trouble() is not None:
            return
        for name in await self._cgroups.names():
            if name not in live and name not in self._limits:
                await self._take_down(name, gpus)

    # --- helpers ---

    async def _try(self, limiter: MemoryLimiter) -> str | None:
        try:
            trouble = await limiter.memory_limits_trouble()
        except GpushareError as error:
            self._lost = f"whether the driver limits memory is not known: {error}"
            return self._lost
        self._lost = None
        _log.info("driver_wall.tried trouble=%s", trouble)
        return trouble

    def _is_due(self, now: float) -> bool:
        assert self._tried_at is not None
        return self._lost is not None or (
            self._trouble is not None and now - self._tried_at >= self._retry_seconds
        )

    def _fail(self, error: GpushareError) -> None:
        """Note that the limits fail now, so that they are tried anew before the next lease."""
        if self._lost is None:
            self._lost = f"the driver's memory limits fail: {error}"

    async def _limit(self, limiter: MemoryLimiter, cgroup: str, limits: Mapping[GpuId, int]) -> None:
        for gpu, limit_bytes in limits.items():
            await limiter.limit_memory(gpu, cgroup, limit_bytes)

    async def _release(self, cgroup: str, gpus: Collection[GpuId]) -> None:
        assert self._limiter is not None
        for gpu in gpus:
            try:
                await self._limiter.release_memory(gpu, cgroup)
            except GpushareError as error:
                # The limit goes with its cgroup; no guarantee remains.
                _log.info("driver_wall.not_released cgroup=%s gpu=%s why=%s", cgroup, gpu, error)

    async def _leaves_of(self, device_name: str) -> list[str]:
        """Return the cgroups of containers of this device, below the lease's own one and elsewhere."""
        below = await self._cgroups.below(device_name)
        leaf = self._leaves.get(device_name)
        if leaf is not None and not await self._cgroups.is_there(leaf):
            del self._leaves[device_name]
            leaf = None
        return below if leaf is None or leaf in below else [*below, leaf]

    async def _take_down(self, device_name: str, gpus: Collection[GpuId]) -> None:
        for path in await self._cgroups.paths(device_name):
            await self._release(path, gpus)
        await self._cgroups.remove(device_name)

    def _hook(self, limits: Mapping[GpuId, int]) -> Hook:
        """Return the hook: a shell that always ends with success.

        The engine may not see this Python, and a failed hook would keep the container from starting.
        """
        limit_arguments = [f"{gpu}={limit_bytes}" for gpu, limit_bytes in limits.items()]
        program = (sys.executable, "-I", "-S", limit_hook.__file__, str(self._cgroups.root), *limit_arguments)
        args = ("sh", "-c", '"$@" || :', "sh", *program)
        return Hook("/bin/sh", args, self._environ, timeout_seconds=HOOK_SECONDS)


def _is_behind(lease: Lease) -> bool:
    walls = lease.walls
    return lease.container is not None and walls is not None and walls.memory_wall is MemoryWall.DRIVER


HOOK_SECONDS = 2 * int(limit_hook.PATIENCE_SECONDS)
"""A hook that takes longer keeps the container from starting, so the hook ends itself long before."""
