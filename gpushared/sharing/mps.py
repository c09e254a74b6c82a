"""The sharing of GPUs by NVIDIA MPS: which control daemon serves which lease."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gpushared.domain.errors import GpushareError, SharingUnavailable, TimedOut
from gpushared.domain.gpu import MIB, Gpu, GpuId
from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.request import Isolation, LeaseClass
from gpushared.ports import Edits, EngineFacts, Mount, SharingStatus
from gpushared.sharing.canary_watch import CanaryTiming, CanaryWatch
from gpushared.sharing.compute_mode import ExclusiveModes
from gpushared.sharing.control import ControlTiming, DaemonLimits, MpsControl, check_pipe_path
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.edits import holds_whole_gpus, lease_edits, ordered_grants, own_limits
from gpushared.sharing.lease_directories import LeaseDirectories
from gpushared.sharing.lease_file import lease_file
from gpushared.sharing.notice_file import notice_file
from gpushared.sharing.parting import part
from gpushared.sharing.probe import MultiuserProbe
from gpushared.sharing.server_watch import RECYCLE_SECONDS
from gpushared.sharing.supervisor import Supervisor

_log = logging.getLogger(__name__)

_PROBE_NAME = "probe"
_OWN_PREFIX = "l-"
"""Begins the names of daemons that serve one lease."""
_LONGEST_NAME = "u4294967295-0123456789ab"


class MpsMode(StrEnum):
    """What is wanted of MPS.

    ``auto``: used where its program is installed; then on a real GPU a daemon that does not work refuses new
    shared leases, and on a simulated one they go without walls. ``required``: no shared lease without it.
    ``off``: nothing but the watchdog holds parts of GPUs.
    """

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class MpsTiming:
    """``linger_seconds``: how long a daemon without leases is kept for the next one.

    ``part_seconds`` bounds how long a stop waits for servers to let go of clients.
    """

    control: ControlTiming = field(default_factory=ControlTiming)
    poll_seconds: float = 5.0
    linger_seconds: float = 30.0
    retry_probe_seconds: float = 30.0
    part_seconds: float = 3.0
    recycle_seconds: float = RECYCLE_SECONDS
    canary: CanaryTiming = field(default_factory=CanaryTiming)


@dataclass(frozen=True, slots=True)
class _DaemonKey:
    """A daemon serves exactly these GPUs; one user only where ``uid`` is given, one device where that is."""

    gpus: tuple[GpuId, ...]
    uid: int | None = None
    device_name: str | None = None

    @property
    def name(self) -> str:
        words = (*sorted(self.gpus), *([] if self.device_name is None else [self.device_name]))
        digest = hashlib.sha256(",".join(words).encode()).hexdigest()[:12]
        if self.device_name is not None:
            return f"{_OWN_PREFIX}{digest}"
        return f"m-{digest}" if self.uid is None else f"u{self.uid}-{digest}"


class MpsSharing:
    """The ``Sharing`` port over control daemons under ``<runtime_dir>/mps``.

    One daemon a GPU where the binary can serve several users at once; an older one admits one user at a
    time and lets the others wait, so there each user gets a daemon of their own. A process can use one daemon
    only, so a lease over several GPUs gets one over exactly those. A separate lease has a daemon of its own,
    which keeps the lease's limits and goes with it. Daemons start with the first lease that
    needs them, outlive this object where they are wanted, and are found again.
    """

    def __init__(
        self,
        runtime_dir: Path,
        *,
        binary: Path | None,
        mode: MpsMode = MpsMode.AUTO,
        simulated: bool = False,
        watched: Collection[LeaseClass] = (),
        mounts: tuple[Mount, ...] = (),
        timing: MpsTiming | None = None,
        environ: Mapping[str, str] | None = None,
        wall: DriverWall | None = None,
        modes: ExclusiveModes | None = None,
    ) -> None:
        """Raises ConfigError for a runtime directory whose name is too long for sockets.

        ``watched``: the classes whose leases somebody ends when they use too much memory. ``wall``: the
        driver's own limits, on top of those of MPS.
        """
        self._home = runtime_dir / "mps"
        check_pipe_path(self._home / _LONGEST_NAME / "pipe")
        self._directories = LeaseDirectories(runtime_dir / "leases")
        self._binary = binary
        self._mode = mode
        self._simulated = simulated
        self._watched = frozenset(watched)
        self._mounts = mounts
        self._timing = timing or MpsTiming()
        self._environ = dict(environ or {})
        self._wall = wall or DriverWall(None)
        self._modes = modes
        self._gpus: dict[GpuId, Gpu] = {}
        self._daemons: dict[str, Supervisor] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._lingering: dict[str, asyncio.TimerHandle] = {}
        self._probe = MultiuserProbe(self._probe_control, retry_seconds=self._timing.retry_probe_seconds)

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        """Make ready what the lease's grants need; see the port and ``MpsMode``."""
        grants = ordered_grants(lease, gpus)
        self._gpus.update((gpu.id, gpu) for gpu in gpus.values())
        whole = holds_whole_gpus(lease, gpus)
        granted = [gpus[grant.gpu] for grant in grants]
        if whole and self._modes is not None:
            for gpu in granted:
                await self._modes.free(gpu)
        mps = not whole and await self._serve(lease, granted)
        # One that grew to a whole GPU must not be kept to its old size.
        walled = not whole or self._wall.holds(lease.device_name)
        hold = await self._wall.build(lease, grants, engine) if walled else None
        edits = lease_edits(
            lease,
            gpus,
            directory=str(self._directories.path(lease.device_name)),
            mps=mps,
            hold=hold,
            simulated=self._simulated,
            watched=lease.request.lease_class in self._watched,
            mounts=self._mounts,
        )
        walls = lease.walls_with(edits.walls)
        text = lease_file(lease, grants, gpus, walls, simulated=self._simulated)
        self._directories.write(lease.device_name, text)
        return edits

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        """Take the lease's directory down; the daemon goes a while after its last lease."""
        del lease  # directories are named after what the container was given
        self._leave_others(device_name, name="")
        self._directories.remove(device_name)
        await self._leave_modes(device_name)
        await self._wall.close(device_name)

    def holds(self, lease: Lease) -> bool:
        return self._wall.holds(lease.device_name)

    async def hold(self, lease: Lease, place: str) -> None:
        """MPS holds processes, not cgroups; the driver's limit holds the container's own cgroup."""
        await self._wall.hold(lease.device_name, place)

    async def part_clients(self, lease: Lease, pids: Collection[int]) -> int:
        """Take clients off their servers; see the port.

        Only the lease's own daemon is asked, and what was seen to serve one of them: somebody may keep others
        from answering. One that does not answer is asked only where it was seen to serve one.
        """
        asked = [
            daemon.control
            for daemon in self._daemons.values()
            if daemon.serving
            and (daemon.served & set(pids) or (daemon.trouble is None and lease.device_name in daemon.leases))
        ]
        try:
            async with asyncio.timeout(self._timing.part_seconds):
                done = await asyncio.gather(*(part(one, pids) for one in asked), return_exceptions=True)
        except TimeoutError:
            seconds = self._timing.part_seconds
            raise TimedOut(f"MPS did not let go of its clients in {seconds:g} s") from None
        for error in done:
            if isinstance(error, BaseException):
                raise error
        return sum(count for count in done if isinstance(count, int))

    async def status(self) -> tuple[SharingStatus, ...]:
        """Of every GPU that a lease was opened beside, as the last look found it; asks nobody."""
        whole = [gpu for gpu in self._gpus.values() if gpu.parent is None and not gpu.split]
        gpus = sorted(whole, key=lambda gpu: (gpu.index, gpu.id))
        return tuple(self._status_of(gpu.id) for gpu in gpus)

    async def look_soon(self, gpu: GpuId) -> None:
        for daemon in self._daemons_of(gpu):
            daemon.look_soon()

    async def tell(self, lease: Lease) -> None:
        text = None if lease.notice is None else notice_file(lease.notice)
        self._directories.write_notice(lease.device_name, text)

    async def sweep(self, live: Collection[str]) -> None:
        """Remove what earlier lives left behind, given the device names of every lease that is not over.

        To be called once those leases are known; a daemon whose socket still lies in a lease's directory is
        left alone.
        """
        self._directories.remove_others(live)
        await self._put_modes_right(live)
        await self._wall.sweep(live, tuple(self._gpus))
        if self._binary is None or not self._home.is_dir():
            return
        for home in sorted(self._home.iterdir()):
            known = home.name in self._daemons or home.name in self._stopping or home.name == _PROBE_NAME
            if not known and not _in_use(home):
                control = self._control(home.name, (), multiuser=False)
                await self._stop(home.name, control.quit())

    async def close(self, *, keep_running: bool) -> None:
        """End the adapter; with ``keep_running`` the daemons that have leases go on."""
        for timer in self._lingering.values():
            timer.cancel()
        self._lingering.clear()
        for name in list(self._daemons):
            daemon = self._daemons.pop(name)
            if keep_running and daemon.leases:
                await daemon.let_go()
                continue
            for device_name in sorted(daemon.leases):
                daemon.detach(device_name)
            await daemon.stop()
        if not keep_running:
            self._directories.remove_others(())
            await self._put_modes_right(())
        if self._modes is not None:
            self._modes.close()
        await asyncio.gather(*self._stopping.values())

    # --- serving a lease ---

    async def _serve(self, lease: Lease, granted: Sequence[Gpu]) -> bool:
        """Whether MPS serves this lease; it is to go without otherwise."""
        if self._mode is MpsMode.OFF:
            return False
        try:
            daemon = await self._daemon_for(lease, granted)
            await self._hold_modes(lease, granted)
            await daemon.relimit(_limits_of(lease, granted))
            await daemon.attach(lease.device_name)
        except (SharingUnavailable, TimedOut) as error:
            if self._mode is MpsMode.REQUIRED or not (self._simulated or self._binary is None):
                self._leave_others(lease.device_name, name="")
                await self._leave_modes(lease.device_name)
                raise
            await self._leave_modes(lease.device_name)
            _log.warning("mps.without_walls lease=%s why=%s", lease.id, error.message)
            return False
        return True

    async def _daemon_for(self, lease: Lease, granted: Sequence[Gpu]) -> Supervisor:
        if self._binary is None:
            raise SharingUnavailable(
                _not_installed(), hint='it comes with NVIDIA\'s driver; or set mps = "off"'
            )
        gpus = tuple(gpu.id for gpu in granted)
        multiuser = await self._probe.knows_multiuser(gpus)
        if not multiuser and any(gpu.exclusive_process for gpu in granted):
            raise SharingUnavailable(
                "this MPS needs a server for each user, and `exclusive_process` lets a GPU have one only",
                hint="update the driver (release 580 serves several users at once), or empty the setting",
            )
        key = (
            _DaemonKey(gpus, device_name=lease.device_name)
            if lease.request.isolation is Isolation.SEPARATE
            else _DaemonKey(gpus, None if multiuser else lease.owner_uid)
        )
        self._leave_others(lease.device_name, key.name)
        while (stopping := self._stopping.get(key.name)) is not None:
            await asyncio.shield(stopping)
        if timer := self._lingering.pop(key.name, None):
            timer.cancel()
        if key.name not in self._daemons:
            self._daemons[key.name] = self._supervisor(key, _limits_of(lease, granted), multiuser=multiuser)
        return self._daemons[key.name]

    def _supervisor(self, key: _DaemonKey, limits: DaemonLimits, *, multiuser: bool) -> Supervisor:
        control = self._control(key.name, key.gpus, multiuser=multiuser)
        return Supervisor(
            control,
            limits,
            self._directories,
            poll_seconds=self._timing.poll_seconds,
            canary=self._canary(control),
            recycle_seconds=self._timing.recycle_seconds,
        )

    def _canary(self, control: MpsControl) -> CanaryWatch | None:
        """None where there is no CUDA to begin with."""
        if self._simulated or self._timing.canary.interval_seconds <= 0:
            return None
        env = {**self._environ, "CUDA_VISIBLE_DEVICES": ",".join(control.gpus)}
        return CanaryWatch(control.pipe_dir, env, self._timing.canary)

    def _control(self, name: str, gpus: tuple[GpuId, ...], *, multiuser: bool) -> MpsControl:
        assert self._binary is not None
        self._home.mkdir(mode=0o711, parents=True, exist_ok=True)
        return MpsControl(
            self._binary,
            self._home / name,
            gpus,
            multiuser=multiuser,
            timing=self._timing.control,
            environ=self._environ,
        )

    def _probe_control(self, gpus: tuple[GpuId, ...], multiuser: bool) -> MpsControl:
        return self._control(_PROBE_NAME, gpus, multiuser=multiuser)

    def _leave_others(self, device_name: str, name: str) -> None:
        """Take the lease off every daemon but the one of this name."""
        for other, daemon in list(self._daemons.items()):
            if other != name and device_name in daemon.leases:
                daemon.detach(device_name)
                self._linger(other, daemon)

    # --- compute modes ---

    async def _hold_modes(self, lease: Lease, granted: Sequence[Gpu]) -> None:
        for gpu in granted:
            if gpu.exclusive_process and self._modes is not None:
                await self._modes.hold(lease.device_name, gpu)

    async def _leave_modes(self, device_name: str) -> None:
        if self._modes is not None:
            with _noted("compute modes"):
                await self._modes.leave(device_name)

    async def _put_modes_right(self, live: Collection[str]) -> None:
        if self._modes is not None:
            with _noted("compute modes"):
                await self._modes.put_right(live)

    # --- the end of a daemon ---

    def _linger(self, name: str, daemon: Supervisor) -> None:
        if daemon.leases or name in self._lingering:
            return
        if name.startswith(_OWN_PREFIX):
            # The next lease of its device may have other limits, and a server keeps those it began with.
            self._stop_unused(name)
            return
        loop = asyncio.get_running_loop()
        self._lingering[name] = loop.call_later(self._timing.linger_seconds, self._stop_unused, name)

    def _stop_unused(self, name: str) -> None:
        self._lingering.pop(name, None)
        daemon = self._daemons.get(name)
        if daemon is None or daemon.leases:
            return
        del self._daemons[name]
        self._stop(name, daemon.stop())

    def _stop(self, name: str, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let it end in the background; a lease that wants a daemon of this name waits for that."""
        task = asyncio.create_task(ending, name=f"mps stop {name}")
        self._stopping[name] = task
        task.add_done_callback(lambda _: self._stopping.pop(name, None))
        return task

    # --- status ---

    def _status_of(self, gpu: GpuId) -> SharingStatus:
        daemons = self._daemons_of(gpu)
        pids = sorted({pid for daemon in daemons for pid in daemon.servers})
        clients = sorted({pid for daemon in daemons for pid in daemon.clients})
        mode = "mps" if any(daemon.serving for daemon in daemons) else "none"
        trouble = self._trouble(daemons)
        faults = tuple(fault for daemon in daemons for fault in daemon.faults)
        return SharingStatus(gpu, mode, trouble, tuple(pids), tuple(clients), _looked_at(daemons), faults)

    def _daemons_of(self, gpu: GpuId) -> list[Supervisor]:
        return [daemon for daemon in self._daemons.values() if gpu in daemon.control.gpus]

    def _trouble(self, daemons: Iterable[Supervisor]) -> str | None:
        if self._wall.lost is not None:
            return self._wall.lost
        if self._mode is MpsMode.OFF:
            return "MPS is switched off: nothing but the watchdog holds parts of GPUs"
        if self._binary is None:
            return _not_installed()
        if self._probe.trouble is not None:
            return self._probe.trouble
        return next((daemon.trouble for daemon in daemons if daemon.trouble), None)


def _limits_of(lease: Lease, granted: Sequence[Gpu]) -> DaemonLimits:
    """What the lease's daemon allows: the lease where it serves no other, else all that can be leased."""
    if lease.request.isolation is Isolation.SEPARATE:
        return own_limits(ordered_grants(lease, {gpu.id: gpu for gpu in granted}))
    return DaemonLimits(tuple(max(1, gpu.leasable_bytes // MIB) for gpu in granted))


def _looked_at(daemons: Iterable[Supervisor]) -> float | None:
    """When the oldest of their looks at clients began; None where one of them does not know its clients."""
    looks = [daemon.clients_at for daemon in daemons]
    known = [at for at in looks if at is not None]
    return min(known) if known and len(known) == len(looks) else None


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Goes on after trouble that must not keep a lease from ending."""
    try:
        yield
    except GpushareError as error:
        _log.warning("sharing.trouble what=%s why=%s", what, error.message)


def _not_installed() -> str:
    return "nvidia-cuda-mps-control is not installed: nothing but the watchdog holds parts of GPUs"


def _in_use(home: Path) -> bool:
    """Whether the daemon's socket lies in some lease's directory too."""
    try:
        return (home / "pipe" / "control").stat().st_nlink > 1
    except OSError:
        return False
