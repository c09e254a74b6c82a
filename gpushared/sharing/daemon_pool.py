"""Keep the control daemons of a node: the first lease that needs one starts it; it ends after the last."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.sharing.canary_watch import CanaryTiming, CanaryWatch
from gpushared.sharing.control import ControlTiming, DaemonLimits, MpsControl, check_pipe_path
from gpushared.sharing.lease_directories import LeaseDirectories
from gpushared.sharing.mps_probe import MultiuserProbe
from gpushared.sharing.server_watch import RECYCLE_SECONDS
from gpushared.sharing.supervisor import Supervisor

_PROBE_NAME = "probe"
_OWN_PREFIX = "l-"
"""The names of daemons that serve one lease begin with this prefix."""
_LONGEST_NAME = "u4294967295-0123456789ab"


@dataclass(frozen=True, slots=True)
class MpsTiming:
    """Time the daemons. A daemon without leases is kept for ``linger_seconds`` for the next one.

    ``detach_seconds`` bounds how long a stop waits for servers to let go of clients.
    """

    control: ControlTiming = field(default_factory=ControlTiming)
    poll_seconds: float = 5.0
    linger_seconds: float = 30.0
    retry_probe_seconds: float = 30.0
    detach_seconds: float = 3.0
    recycle_seconds: float = RECYCLE_SECONDS
    canary: CanaryTiming = field(default_factory=CanaryTiming)


@dataclass(frozen=True, slots=True)
class DaemonKey:
    """Identify a daemon by its GPUs; with ``uid`` it serves one user only, with a name one device."""

    gpus: tuple[GpuId, ...]
    uid: int | None = None
    device_name: str | None = None

    @property
    def name(self) -> str:
        parts = (*sorted(self.gpus), *([] if self.device_name is None else [self.device_name]))
        digest = hashlib.sha256(",".join(parts).encode()).hexdigest()[:12]
        if self.device_name is not None:
            return f"{_OWN_PREFIX}{digest}"
        return f"m-{digest}" if self.uid is None else f"u{self.uid}-{digest}"


class DaemonPool:
    """Keep control daemons under ``home``, by name; those of earlier lives are found again."""

    def __init__(
        self,
        home: Path,
        directories: LeaseDirectories,
        *,
        binary: Path | None,
        canaries: bool,
        timing: MpsTiming,
        environ: Mapping[str, str],
    ) -> None:
        """Take ``canaries``: True if there is CUDA to run canaries with.

        Raises ConfigError if ``home`` is too long.
        """
        check_pipe_path(home / _LONGEST_NAME / "pipe")
        self._home = home
        self._directories = directories
        self._binary = binary
        self._canaries = canaries
        self._timing = timing
        self._environ = dict(environ)
        self._daemons: dict[str, Supervisor] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._lingering: dict[str, asyncio.TimerHandle] = {}
        self._probe = MultiuserProbe(self._probe_control, retry_seconds=timing.retry_probe_seconds)

    @property
    def installed(self) -> bool:
        return self._binary is not None

    @property
    def probe_trouble(self) -> str | None:
        """Return why the binary's abilities are unknown."""
        return self._probe.trouble

    async def knows_multiuser(self, gpus: tuple[GpuId, ...]) -> bool:
        """Return True if one server can serve several users at once."""
        return await self._probe.knows_multiuser(gpus)

    def all(self) -> list[Supervisor]:
        return list(self._daemons.values())

    def of_gpu(self, gpu: GpuId) -> list[Supervisor]:
        return [daemon for daemon in self._daemons.values() if gpu in daemon.control.gpus]

    async def get(self, key: DaemonKey, limits: DaemonLimits, *, multiuser: bool) -> Supervisor:
        """Return the daemon of this key, not started yet if it is new.

        A daemon that is ending is waited for.
        """
        while (stopping := self._stopping.get(key.name)) is not None:
            await asyncio.shield(stopping)
        if timer := self._lingering.pop(key.name, None):
            timer.cancel()
        if key.name not in self._daemons:
            self._daemons[key.name] = self._supervisor(key, limits, multiuser=multiuser)
        return self._daemons[key.name]

    def _supervisor(self, key: DaemonKey, limits: DaemonLimits, *, multiuser: bool) -> Supervisor:
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
        """Return a watch for the daemon's server; None if there is no CUDA."""
        if not self._canaries or self._timing.canary.interval_seconds <= 0:
            return None
        env = {**self._environ, "CUDA_VISIBLE_DEVICES": ",".join(control.gpus)}
        return CanaryWatch(control.pipe_dir, env, self._timing.canary)

    def _control(self, name: str, gpus: tuple[GpuId, ...], *, multiuser: bool) -> MpsControl:
        if self._binary is None:
            raise SharingUnavailable(
                "nvidia-cuda-mps-control is not installed", hint="it comes with NVIDIA's driver"
            )
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

    def leave_others(self, device_name: str, name: str) -> None:
        """Detach the lease from every daemon but the one of this name."""
        for other, daemon in list(self._daemons.items()):
            if other != name and device_name in daemon.leases:
                daemon.detach(device_name)
                self._linger(other, daemon)

    # --- the end of a daemon ---

    def _linger(self, name: str, daemon: Supervisor) -> None:
        if daemon.leases or name in self._lingering:
            return
        if name.startswith(_OWN_PREFIX):
            # The device's next lease may have other limits, and a server keeps the limits it began with.
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
        """End a daemon in the background; a lease for a daemon of this name waits for the end."""
        task = asyncio.create_task(ending, name=f"mps stop {name}")
        self._stopping[name] = task
        task.add_done_callback(lambda _: self._stopping.pop(name, None))
        return task

    async def sweep(self) -> None:
        """End daemons of earlier lives, but none whose socket still lies in a lease's directory."""
        if self._binary is None or not self._home.is_dir():
            return
        for home in sorted(self._home.iterdir()):
            is_known = home.name in self._daemons or home.name in self._stopping or home.name == _PROBE_NAME
            if not is_known and not _in_use(home):
                control = self._control(home.name, (), multiuser=False)
                await self._stop(home.name, control.quit())

    async def close(self, *, keep_running: bool) -> None:
        """End the daemons; with ``keep_running``, daemons that have leases go on."""
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

    async def ended(self) -> None:
        """Wait for the daemons that are ending."""
        await asyncio.gather(*self._stopping.values())


def _in_use(home: Path) -> bool:
    """Return True if the daemon's socket lies in some lease's directory too."""
    try:
        return (home / "pipe" / "control").stat().st_nlink > 1
    except OSError:
        return False
