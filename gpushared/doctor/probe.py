"""Look at everything once: read the facts that the checks judge, beside each other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpushared.config.model import Config
from gpushared.doctor.checks import CHECKS
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
from gpushared.domain.model.checkup import CheckOutcome, examine
from gpushared.domain.model.errors import ConfigError, GpushareError
from gpushared.ports import Driver, DriverFacts

FRESH_SECONDS = 1.0
"""A look serves further callers for so long, so that they cannot keep the machine busy with looks."""


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
        places: Callable[[], DaemonPaths],
        view: Callable[[], DaemonView],
        driver: Driver | None,
        readers: Readers | None = None,
    ) -> None:
        self._places = places
        self._view = view
        self._driver = driver
        self._readers = readers or Readers()

    async def look(self) -> DoctorFacts:
        """Return the facts within the readers' and the driver's time-outs."""
        places, read = self._places(), self._readers.read
        config = places.started
        trusted = sorted({"docker", *places.config.gate.trusted_groups})
        async with asyncio.TaskGroup() as group:
            driver = group.create_task(self._read_driver())
            engine = group.create_task(read("docker", lambda: read_engine(config.engine.socket)))
            toolkit = group.create_task(read("toolkit", read_toolkit))
            mps = group.create_task(read("mps", lambda: _read_mps(config)))
            host = group.create_task(read("host", read_host))
            groups = group.create_task(read("groups", lambda: read_groups(trusted)))
            unit = group.create_task(read("unit", lambda: read_unit(os.environ)))
            socket = group.create_task(read("socket", lambda: read_socket(places.socket)))
            runtime = group.create_task(self._read_directory("runtime", config.node.runtime_dir))
            state = group.create_task(self._read_directory("state", config.node.state_dir))
            stored = group.create_task(read("config", lambda: read_config(places)))
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
    wanted = config.sharing.mps is not MpsMode.OFF
    return read_mps(config.sharing.mps_binary, Path(config.node.runtime_dir) / "mps", wanted=wanted)


def read_config(places: DaemonPaths) -> ConfigState:
    """Compare the files with the configuration that the daemon read."""
    try:
        stored = places.reread()
        restart = _fixed(stored, places.config) != _fixed(places.started, places.config)
        return ConfigState(differs=stored != places.config, needs_restart=restart)
    except ConfigError as error:
        return ConfigState(problem="; ".join(line.strip() for line in error.message.splitlines()))


def _fixed(config: Config, other: Config) -> Config:
    """Return the settings that only a restart changes; all other settings come from ``other``."""
    engine = replace(config.engine, stop_grace_seconds=other.engine.stop_grace_seconds)
    return replace(
        config,
        engine=engine,
        queue=other.queue,
        gate=other.gate,
        watchdog=other.watchdog,
        presets=other.presets,
    )


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
