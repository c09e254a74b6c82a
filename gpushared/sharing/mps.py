"""Share GPUs by NVIDIA MPS: choose the control daemon that serves each lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import GpushareError, SharingUnavailable, TimedOut
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.domain.model.request import Isolation, LeaseClass
from gpushared.ports import EditMount, Edits, EngineFacts, SharingStatus
from gpushared.sharing.compute_mode import ExclusiveModes
from gpushared.sharing.control import DaemonLimits
from gpushared.sharing.daemon_pool import DaemonKey, DaemonPool, MpsTiming
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.lease_directories import LeaseDirectories
from gpushared.sharing.lease_edits import (
    holds_whole_gpus,
    lease_edits,
    ordered_grants,
    own_limits,
)
from gpushared.sharing.lease_file import lease_file, notice_file
from gpushared.sharing.server_watch import detach_clients
from gpushared.sharing.supervisor import Supervisor

_log = logging.getLogger(__name__)


class MpsSharing:
    """Implement the ``Sharing`` port with control daemons under ``<runtime_dir>/mps``.

    There is one daemon for each GPU if the binary can serve several users at once; an older one admits one
    user at a time and lets the others wait, so there each user gets an own daemon. A process can use one
    daemon only, so a lease over several GPUs gets one over exactly those GPUs. A separate lease has a daemon
    of its own, which keeps the lease's limits and ends with it. Daemons start with the first lease that needs
    them, outlive this object if they are needed, and are found again.
    """

    def __init__(
        self,
        runtime_dir: Path,
        *,
        binary: Path | None,
        mode: MpsMode = MpsMode.AUTO,
        simulated: bool = False,
        watched: Collection[LeaseClass] = (),
        mounts: tuple[EditMount, ...] = (),
        timing: MpsTiming | None = None,
        environ: Mapping[str, str] | None = None,
        wall: DriverWall | None = None,
        modes: ExclusiveModes | None = None,
    ) -> None:
        """Raise ConfigError for a runtime directory whose name is too long for sockets.

        ``watched``: the classes whose leases are ended when they use too much memory. ``wall``: the driver's
        own limits, on top of those of MPS.
        """
        self._directories = LeaseDirectories(runtime_dir / "leases")
        self._mode = mode
        self._simulated = simulated
        self._watched = frozenset(watched)
        self._mounts = mounts
        self._timing = timing or MpsTiming()
        self._wall = wall or DriverWall(None)
        self._modes = modes
        self._gpus: dict[GpuId, Gpu] = {}
        self._pool = DaemonPool(
            runtime_dir / "mps",
            self._directories,
            binary=binary,
            canaries=not simulated,
            timing=self._timing,
            environ=environ or {},
        )

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        """Prepare everything that the lease's grants need; see the port and ``MpsMode``."""
        grants = ordered_grants(lease, gpus)
        self._gpus.update((gpu.id, gpu) for gpu in gpus.values())
        whole = holds_whole_gpus(lease, gpus)
        granted = [gpus[grant.gpu] for grant in grants]
        if whole and self._modes is not None:
            for gpu in granted:
                await self._modes.free(gpu)
        mps = not whole and await self._serve(lease, granted)
        # A lease that grew to a whole GPU must not be kept to its old size.
        walled = not whole or self._wall.holds(lease.device_name)
        placement = await self._wall.build(lease, grants, engine) if walled else None
        edits = lease_edits(
            lease,
            gpus,
            directory=str(self._directories.path(lease.device_name)),
            mps=mps,
            placement=placement,
            simulated=self._simulated,
            watched=lease.request.lease_class in self._watched,
            mounts=self._mounts,
        )
        walls = lease.walls_with(edits.walls)
        text = lease_file(lease, grants, gpus, walls, simulated=self._simulated)
        self._directories.write(lease.device_name, text)
        return edits

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        """Remove the lease's directory; the daemon ends a while after its last lease."""
        del lease  # the directories are named after the container's device
        self._pool.leave_others(device_name, name="")
        self._directories.remove(device_name)
        await self._leave_modes(device_name)
        await self._wall.close(device_name)

    def holds(self, lease: Lease) -> bool:
        return self._wall.holds(lease.device_name)

    async def hold(self, lease: Lease, path: str) -> None:
        """Limit the container's own cgroup by the driver; MPS limits processes, not cgroups."""
        await self._wall.hold(lease.device_name, path)

    async def detach_clients(self, lease: Lease, pids: Collection[int]) -> int:
        """Detach clients from their servers; see the port.

        Only the lease's own daemon is asked, and any daemon that was seen to serve one of the processes:
        other programs may keep further daemons from answering. A daemon that does not answer is asked only if
        it was seen to serve one.
        """
        controls = [
            daemon.control
            for daemon in self._pool.all()
            if daemon.serving
            and (daemon.served & set(pids) or (daemon.trouble is None and lease.device_name in daemon.leases))
        ]
        try:
            async with asyncio.timeout(self._timing.detach_seconds):
                results = await asyncio.gather(
                    *(detach_clients(control, pids) for control in controls), return_exceptions=True
                )
        except TimeoutError:
            seconds = self._timing.detach_seconds
            raise TimedOut(f"MPS did not let go of its clients in {seconds:g} s") from None
        for error in results:
            if isinstance(error, BaseException):
                raise error
        return sum(count for count in results if isinstance(count, int))

    async def status(self) -> tuple[SharingStatus, ...]:
        """Return the state of every GPU of opened leases, by the last look.

        This makes no new look.
        """
        whole = [gpu for gpu in self._gpus.values() if gpu.parent is None and not gpu.split]
        gpus = sorted(whole, key=lambda gpu: (gpu.index, gpu.id))
        return tuple(self._status_of(gpu.id) for gpu in gpus)

    async def look_soon(self, gpu: GpuId) -> None:
        for daemon in self._pool.of_gpu(gpu):
            daemon.look_soon()

    async def tell(self, lease: Lease) -> None:
        text = None if lease.notice is None else notice_file(lease.notice)
        self._directories.write_notice(lease.device_name, text)

    async def sweep(self, live: Collection[str]) -> None:
        """Remove the leftovers of earlier runs, given the device names of every unfinished lease.

        Call this once those leases are known; a daemon whose socket still lies in a lease's directory is left
        alone.
        """
        self._directories.remove_others(live)
        await self._restore_unneeded_modes(live)
        await self._wall.sweep(live, tuple(self._gpus))
        await self._pool.sweep()

    async def close(self, *, keep_running: bool) -> None:
        """End the adapter; with ``keep_running``, daemons that have leases go on."""
        await self._pool.close(keep_running=keep_running)
        if not keep_running:
            self._directories.remove_others(())
            await self._restore_unneeded_modes(())
        if self._modes is not None:
            self._modes.close()
        await self._pool.ended()

    # --- serving a lease ---

    async def _serve(self, lease: Lease, granted: Sequence[Gpu]) -> bool:
        """Serve the lease with MPS; return False if the lease must do without MPS."""
        if self._mode is MpsMode.OFF:
            return False
        try:
            daemon = await self._daemon_for(lease, granted)
            await self._hold_modes(lease, granted)
            await daemon.relimit(_limits_of(lease, granted))
            await daemon.attach(lease.device_name)
        except (SharingUnavailable, TimedOut) as error:
            if self._mode is MpsMode.REQUIRED or not (self._simulated or not self._pool.installed):
                self._pool.leave_others(lease.device_name, name="")
                await self._leave_modes(lease.device_name)
                raise
            await self._leave_modes(lease.device_name)
            _log.warning("mps.without_walls lease=%s why=%s", lease.id, error.message)
            return False
        return True

    async def _daemon_for(self, lease: Lease, granted: Sequence[Gpu]) -> Supervisor:
        if not self._pool.installed:
            raise SharingUnavailable(
                _not_installed(), hint='it comes with NVIDIA\'s driver; or set mps = "off"'
            )
        gpus = tuple(gpu.id for gpu in granted)
        multiuser = await self._pool.knows_multiuser(gpus)
        if not multiuser and any(gpu.exclusive_process for gpu in granted):
            raise SharingUnavailable(
                "this MPS needs a server for each user, and `exclusive_process` lets a GPU have one only",
                hint="update the driver (release 580 serves several users at once), or empty the setting",
            )
        key = (
            DaemonKey(gpus, device_name=lease.device_name)
            if lease.request.isolation is Isolation.SEPARATE
            else DaemonKey(gpus, None if multiuser else lease.owner_uid)
        )
        self._pool.leave_others(lease.device_name, key.name)
        return await self._pool.get(key, _limits_of(lease, granted), multiuser=multiuser)

    # --- compute modes ---

    async def _hold_modes(self, lease: Lease, granted: Sequence[Gpu]) -> None:
        for gpu in granted:
            if gpu.exclusive_process and self._modes is not None:
                await self._modes.hold(lease.device_name, gpu)

    async def _leave_modes(self, device_name: str) -> None:
        if self._modes is not None:
            with _logging_trouble("compute modes"):
                await self._modes.leave(device_name)

    async def _restore_unneeded_modes(self, live: Collection[str]) -> None:
        if self._modes is not None:
            with _logging_trouble("compute modes"):
                await self._modes.restore_unneeded(live)

    # --- status ---

    def _status_of(self, gpu: GpuId) -> SharingStatus:
        daemons = self._pool.of_gpu(gpu)
        pids = sorted({pid for daemon in daemons for pid in daemon.servers})
        clients = sorted({pid for daemon in daemons for pid in daemon.clients})
        mode = "mps" if any(daemon.serving for daemon in daemons) else "none"
        trouble = self._trouble(daemons)
        faults = tuple(fault for daemon in daemons for fault in daemon.faults)
        return SharingStatus(gpu, mode, trouble, tuple(pids), tuple(clients), _oldest_look(daemons), faults)

    def _trouble(self, daemons: Iterable[Supervisor]) -> str | None:
        if self._wall.lost is not None:
            return self._wall.lost
        if self._mode is MpsMode.OFF:
            return "MPS is switched off: nothing but the watchdog holds parts of GPUs"
        if not self._pool.installed:
            return _not_installed()
        if self._pool.probe_trouble is not None:
            return self._pool.probe_trouble
        return next((daemon.trouble for daemon in daemons if daemon.trouble), None)


def _limits_of(lease: Lease, granted: Sequence[Gpu]) -> DaemonLimits:
    """Return the daemon's limits: the lease's own if the daemon serves no other, else all leasable memory."""
    if lease.request.isolation is Isolation.SEPARATE:
        return own_limits(ordered_grants(lease, {gpu.id: gpu for gpu in granted}))
    return DaemonLimits(tuple(max(1, gpu.leasable_bytes // MIB) for gpu in granted))


def _oldest_look(daemons: Iterable[Supervisor]) -> float | None:
    """Return when the oldest look at clients began; None if a daemon does not know its clients."""
    looks = [daemon.clients_at for daemon in daemons]
    times = [at for at in looks if at is not None]
    return min(times) if times and len(times) == len(looks) else None


@contextmanager
def _logging_trouble(subject: str) -> Iterator[None]:
    """Log trouble that must not keep a lease from ending, and go on."""
    try:
        yield
    except GpushareError as error:
        _log.warning("sharing.trouble what=%s why=%s", subject, error.message)


def _not_installed() -> str:
    return "nvidia-cuda-mps-control is not installed: nothing but the watchdog holds parts of GPUs"
