"""List all checks of the daemon in the order in which they are shown, and read the facts that they judge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from gpushared.config.changes import changed_at_start, changed_settings
from gpushared.config.model import Config
from gpushared.doctor import engine_checks as engine
from gpushared.doctor import gpu_checks as gpu
from gpushared.doctor import host_checks as host
from gpushared.doctor.machine_facts import ConfigState, DaemonView, Directory, DoctorFacts, MpsReport, Unread
from gpushared.doctor.readers import (
    Readers,
    read_directory,
    read_engine,
    read_groups,
    read_host,
    read_mps,
    read_socket,
    read_toolkit,
    read_unit,
)
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.checkup import Check, CheckFinding, CheckOutcome, examine, skipped, warning
from gpushared.domain.model.errors import ConfigError, GpushareError
from gpushared.ports import Driver, DriverFacts

T = TypeVar("T")
FRESH_SECONDS = 1.0
"""The results of a look serve further callers for this long, so that many callers cause few looks."""


def _of(
    part: Callable[[DoctorFacts], T | Unread], judge: Callable[[T], CheckFinding], *, reported_by: str = ""
) -> Callable[[DoctorFacts], CheckFinding]:
    """Return a check of one part. A part that could not be read is a warning: nothing was found wrong.

    If several checks look at the part, ``reported_by`` names the one that reports a part that was not read.
    """

    def look(facts: DoctorFacts) -> CheckFinding:
        value = part(facts)
        if isinstance(value, Unread) and reported_by:
            return skipped("could not be looked at", because=reported_by)
        if isinstance(value, Unread):
            return warning(f"could not be looked at: {value.why}", value.hint)
        return judge(value)

    return look


def _check(name: str, look: Callable[[DoctorFacts], CheckFinding], *after: str) -> Check[DoctorFacts]:
    return Check(name, look, after)


CHECKS: tuple[Check[DoctorFacts], ...] = (
    _check("host", host.host),
    _check("driver", gpu.driver),
    _check("gpu-health", gpu.gpu_health, "driver"),
    _check("drained-gpus", gpu.drained_gpus),
    _check("device-nodes", _of(lambda f: f.host, gpu.device_nodes), "driver", "host"),
    _check("persistence-mode", gpu.persistence_mode, "driver"),
    _check(
        "persistence-daemon",
        _of(lambda f: f.host, gpu.persistence_daemon),
        *("driver", "persistence-mode", "host"),
    ),
    _check("compute-mode", gpu.compute_mode, "driver"),
    _check("mig-mode", gpu.mig_mode, "driver"),
    _check("pid-namespace", _of(lambda f: f.host, gpu.pid_namespace), "driver", "host"),
    _check("cgroup-version", _of(lambda f: f.host, host.cgroup_version), "driver", "host"),
    _check("driver-memory-limits", gpu.driver_memory_limits, "driver", "cgroup-version"),
    _check("mps-program", gpu.mps_program, "driver"),
    _check("mps-version", gpu.mps_version, "driver", "mps-program"),
    _check("mps-users", gpu.mps_users, "driver", "mps-program"),
    _check("mps-architecture", gpu.mps_architecture, "driver", "mps-program"),
    _check(
        "mps-default-pipe", _of(lambda f: f.mps, gpu.mps_default_pipe, reported_by="mps-program"), "driver"
    ),
    _check(
        "mps-foreign-daemon",
        _of(lambda f: f.mps, gpu.mps_foreign, reported_by="mps-program"),
        "driver",
        "mps-default-pipe",
    ),
    _check("mps-daemons", _of(lambda f: f.daemon, gpu.mps_daemons), "driver", "mps-program", "mps-version"),
    _check("mps-clients", _of(lambda f: f.daemon, gpu.mps_clients), "driver", "mps-program"),
    _check("service-memory", _of(lambda f: f.host, gpu.service_memory), "driver", "host"),
    _check("selinux", _of(lambda f: f.host, host.selinux), "driver", "host"),
    _check("unmanaged-processes", gpu.unmanaged_processes),
    _check("memory-figures", _of(lambda f: f.daemon, gpu.memory_figures), "driver"),
    _check("docker", engine.docker),
    _check("docker-api", engine.docker_api, "docker"),
    _check("docker-cdi", engine.docker_cdi, "docker"),
    _check("docker-exposure", engine.docker_exposure, "docker"),
    _check("docker-authorization", engine.docker_authorization, "docker"),
    _check("docker-default-runtime", engine.default_runtime, "docker"),
    _check("mount-pins", _of(lambda f: f.daemon, engine.mount_pins), "docker"),
    _check("user-limits", _of(lambda f: f.daemon, engine.user_limits), "docker"),
    _check("docker-group-members", _of(lambda f: f.groups, engine.docker_group_members)),
    _check("gpu-mechanism", engine.gpu_mechanism, "driver", "docker"),
    _check("cdi-spec", engine.cdi_spec, "driver", "docker", "gpu-mechanism"),
    _check("toolkit", engine.toolkit, "driver"),
    _check("toolkit-env-switch", engine.toolkit_env_switch, "driver", "toolkit"),
    _check("systemd-reload", engine.daemon_reload, "driver", "docker", "host"),
    _check("service-unit", host.service_unit),
    _check("socket", _of(lambda f: f.socket, host.socket)),
    _check("runtime-directory", _of(lambda f: f.runtime_dir, host.runtime_directory)),
    _check("journal-disk", _of(lambda f: f.state_dir, host.journal_disk)),
    _check("journal", _of(lambda f: f.daemon, host.journal), "journal-disk"),
    _check("pool-certificate", _of(lambda f: f.daemon, host.certificate)),
    _check("pool-link", _of(lambda f: f.daemon, host.link), "pool-certificate"),
    _check("pool-clock", _of(lambda f: f.daemon, host.clock)),
    _check("pool-realm", _of(lambda f: f.daemon, host.realm)),
    _check("daemon-parts", host.daemon_parts),
    _check("config", _of(lambda f: f.config, host.config)),
)


class Probe(Protocol):
    """Describe the source of the facts."""

    async def look(self) -> DoctorFacts: ...


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """Hold the daemon's own settings and paths.

    ``config`` is the configuration that the daemon read last; ``started`` is the one read at its start, which
    holds for settings that a reload does not change; ``reread`` returns the configuration that a start would
    find now.
    """

    config: Config
    started: Config
    socket: Path
    reread: Callable[[], Config]


class MachineProbe:
    """Read this machine. ``driver`` is None if GPUs are simulated."""

    def __init__(
        self,
        paths: Callable[[], DaemonPaths],
        view: Callable[[], DaemonView],
        driver: Driver | None,
        readers: Readers | None = None,
    ) -> None:
        self._paths = paths
        self._view = view
        self._driver = driver
        self._readers = readers or Readers()

    async def look(self) -> DoctorFacts:
        """Return the facts within the readers' and the driver's time-outs."""
        paths, read = self._paths(), self._readers.read
        config = paths.started
        trusted = sorted({"docker", *paths.config.gate.trusted_groups})
        async with asyncio.TaskGroup() as group:
            driver = group.create_task(self._read_driver())
            engine = group.create_task(read("docker", lambda: read_engine(config.engine.socket)))
            toolkit = group.create_task(read("toolkit", read_toolkit))
            mps = group.create_task(read("mps", lambda: _read_mps(config)))
            host = group.create_task(read("host", read_host))
            groups = group.create_task(read("groups", lambda: read_groups(trusted)))
            unit = group.create_task(read("unit", lambda: read_unit(os.environ)))
            socket = group.create_task(read("socket", lambda: read_socket(paths.socket)))
            runtime = group.create_task(self._read_directory("runtime", config.node.runtime_dir))
            state = group.create_task(self._read_directory("state", config.node.state_dir))
            stored = group.create_task(read("config", lambda: read_config(paths)))
        return DoctorFacts(
            simulated=self._driver is None,
            daemon=self._view(),
            driver=driver.result(),
            engine=engine.result(),
            toolkit=toolkit.result(),
            mps=mps.result(),
            host=host.result(),
            groups=groups.result(),
            unit=unit.result(),
            socket=socket.result(),
            runtime_dir=runtime.result(),
            state_dir=state.result(),
            config=stored.result(),
        )

    async def _read_directory(self, kind: str, path: str) -> Directory | Unread:
        return await self._readers.read(f"{kind} directory", lambda: read_directory(Path(path)))

    async def _read_driver(self) -> DriverFacts | Unread:
        if self._driver is None:
            return Unread("the GPUs are simulated")
        try:
            return await self._driver.describe()
        except GpushareError as error:
            return Unread(error.message, error.hint)


def _read_mps(config: Config) -> MpsReport:
    enabled = config.sharing.mps is not MpsMode.OFF
    return read_mps(config.sharing.mps_binary, Path(config.node.runtime_dir) / "mps", enabled=enabled)


def read_config(paths: DaemonPaths) -> ConfigState:
    """Compare the files with the configuration that the daemon read."""
    try:
        stored = paths.reread()
        return ConfigState(
            to_reload=changed_settings(paths.config, stored),
            to_restart=changed_at_start(paths.started, stored),
        )
    except ConfigError as error:
        return ConfigState(problem="; ".join(line.strip() for line in error.message.splitlines()))


class Doctor:
    """Look and judge; a caller during a look, or just after it, gets the results of that look."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._look: asyncio.Task[tuple[CheckOutcome, ...]] | None = None
        self._done_at = 0.0

    async def examine(self) -> tuple[CheckOutcome, ...]:
        if self._look is None or (self._look.done() and self._is_stale()):
            self._look = asyncio.create_task(self._examine(), name="doctor")
        # A caller that leaves must not take the look away from others.
        return await asyncio.shield(self._look)

    async def _examine(self) -> tuple[CheckOutcome, ...]:
        results = examine(CHECKS, await self._probe.look())
        self._done_at = asyncio.get_running_loop().time()
        return results

    def _is_stale(self) -> bool:
        assert self._look is not None
        failed = self._look.cancelled() or self._look.exception() is not None
        return failed or asyncio.get_running_loop().time() - self._done_at > FRESH_SECONDS
