"""Give the doctor the facts about the daemon, and turn its results into messages of the API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpushared.api.v1 import node_pb2
from gpushared.config.load import Loaded
from gpushared.config.model import Config
from gpushared.config.show import settings
from gpushared.daemon.troubles import Troubles
from gpushared.doctor.checks import DaemonPaths, Doctor, MachineProbe
from gpushared.doctor.machine_facts import DaemonView, KnownGpu, PoolView, UnmanagedProcess
from gpushared.domain.model.checkup import CheckOutcome
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.request import Caller
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sampler, Stranger
from gpushared.node.services.views import owner_and_name
from gpushared.ports import Driver
from gpushared.sharing.compute_mode import ExclusiveModes
from gpushared.sharing.driver_wall import DriverWall


class Examination:
    """Run the doctor on this daemon.

    ``config`` returns the newest settings, ``reread`` the settings that a start would find now.
    """

    def __init__(
        self,
        loop: Loop,
        sampler: Sampler,
        troubles: Troubles,
        *,
        driver: Driver | None,
        wall: DriverWall,
        modes: ExclusiveModes | None = None,
        socket: Path,
        config: Callable[[], Config],
        reread: Callable[[], Config],
        pool: Callable[[], PoolView | None] = lambda: None,
        mounts_trouble: Callable[[], str] = lambda: "",
        users_trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self._loop = loop
        self._sampler = sampler
        self._troubles = troubles
        self._wall = wall
        self._simulated = driver is None
        self._modes = modes
        self._config = config
        self._pool = pool
        self._mounts_trouble = mounts_trouble
        self._users_trouble = users_trouble
        started = config()
        self._doctor = Doctor(
            MachineProbe(lambda: DaemonPaths(config(), started, socket, reread), self._view, driver)
        )

    async def report(self, caller: Caller) -> node_pb2.DoctorReport:
        results = await self._doctor.examine()
        report = node_pb2.DoctorReport(
            checks=[_message(result) for result in results],
            simulated=self._simulated,
            examined_at=self._loop.state.day(self._loop.now()),
        )
        if caller.trusted:
            loaded = Loaded(self._config(), {})
            report.settings.extend(
                node_pb2.Setting(section=setting.section, name=setting.name, value=setting.value)
                for setting in settings(loaded)
            )
        return report

    def _view(self) -> DaemonView:
        sample = self._sampler.newest
        return DaemonView(
            gpus=tuple(self._gpu(gpu) for gpu in self._loop.state.gpus.values()),
            unmanaged=tuple(self._process(stranger) for stranger in sample.strangers),
            troubles=self._troubles.by_part(),
            wall_trouble=self._wall.last_trouble or "",
            pool=self._pool(),
            pins_trouble=self._mounts_trouble(),
            users_trouble=self._users_trouble(),
        )

    def _gpu(self, gpu: Gpu) -> KnownGpu:
        sample = self._sampler.newest
        drained = self._loop.state.drain_of(gpu.id)
        reading, sharing = sample.readings.get(gpu.id), sample.sharing.get(gpu.id)
        return KnownGpu(
            index=gpu.index,
            name=gpu.name,
            trouble=gpu.trouble or "",
            sharing_trouble=(sharing.trouble or "") if sharing else "",
            processes=len(reading.processes) if reading else 0,
            drained=drained.trouble if drained else "",
            sick=drained is not None and drained.sick,
            exclusive_process=gpu.exclusive_process,
            mode_set_for=self._mode_set_for(gpu),
        )

    def _mode_set_for(self, gpu: Gpu) -> int | None:
        entry = self._modes.last_ledger.get(gpu.id) if self._modes is not None else None
        return None if entry is None else len(entry.leases)

    def _process(self, stranger: Stranger) -> UnmanagedProcess:
        gpu = self._loop.state.gpus.get(stranger.gpu)
        user, command = owner_and_name(stranger.pid)
        return UnmanagedProcess(stranger.pid, gpu.index if gpu else -1, user, command, stranger.memory_bytes)


def _message(result: CheckOutcome) -> node_pb2.CheckResult:
    finding = result.finding
    return node_pb2.CheckResult(
        name=result.name,
        status=finding.status,
        detail=finding.detail,
        fix=finding.fix,
        blocked_by=result.blocked_by,
    )
