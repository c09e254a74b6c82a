"""Make the parts of a node's daemon, real or simulated ones, and restore compute modes without a daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.config.model import CheckpointMode, Config
from gpushared.daemon.clocks import CLOCK_NAME, SteadyClock
from gpushared.domain.leases.node_rules import Action, MpsMode
from gpushared.domain.model.errors import GpushareError
from gpushared.engine.docker_engine import DockerEngine
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_settings import NvmlComputeModes, NvmlMemoryLimits
from gpushared.gpus.simulated import SimulatedCheckpoints, SimulatedGpus
from gpushared.node.runtime.configured import watchdog_of
from gpushared.ports import Checkpoints, Clock, ContainerStatus, Engine, Gpus, Journal, Sharing
from gpushared.ports.job_store import JobStore
from gpushared.sharing.canary_watch import CanaryTiming
from gpushared.sharing.checkpoint import CudaCheckpoints, NoCheckpoints
from gpushared.sharing.compute_mode import LEDGER_NAME, ExclusiveModes
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.mps import MpsSharing
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.history import SqliteHistory
from gpushared.storage.job_store import NODE_TEXTS, SqliteStore
from gpushared.storage.journal.journal_file import SqliteJournal

JOURNAL_NAME = "journal.db"
JOBS_NAME = "jobs.db"
AUDIT_NAME = "audit.db"
HISTORY_NAME = "history.db"
MPS_ENVIRONMENT = ("LD_LIBRARY_PATH",)
"""Helper programs that use the driver get these variables besides PATH, because they lead to its
libraries."""
MPS_BINARY = "nvidia-cuda-mps-control"
LONGEST_SECONDS = 20.0
"""The limit is less than systemd's own."""
UP = (ContainerStatus.RUNNING, ContainerStatus.PAUSED, ContainerStatus.RESTARTING)


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold the daemon's real or simulated parts."""

    gpus: Gpus
    sharing: Sharing
    engine: Engine
    checkpoints: Checkpoints
    journal: Journal
    jobs: JobStore
    """The store of the node's own jobs."""
    clock: Clock
    audit: SqliteAudit
    history: SqliteHistory
    wall: DriverWall = field(default_factory=lambda: DriverWall(None))
    """The driver's memory limits, which ``sharing`` uses too."""
    modes: ExclusiveModes | None = None
    """The compute modes that ``sharing`` sets; None if the GPUs have none."""


def real_parts(config: Config) -> Parts:
    """Make the configured parts.

    GPUs are simulated only if the configuration asks for that, never silently.
    """
    simulated = bool(config.gpus.simulate)
    gpus: Gpus = (
        SimulatedGpus.parse(
            config.gpus.simulate,
            machine=config.node.name or socket.gethostname(),
            mps_reserve_bytes=config.gpus.mps_reserve_bytes,
        )
        if simulated
        else NvmlGpus(mps_reserve_bytes=config.gpus.mps_reserve_bytes)
    )
    mps_binary = config.sharing.mps_binary or shutil.which(MPS_BINARY)
    environ = {name: os.environ[name] for name in MPS_ENVIRONMENT if name in os.environ}
    wall = DriverWall(NvmlMemoryLimits(gpus) if isinstance(gpus, NvmlGpus) else None, environ=environ)
    modes = (
        ExclusiveModes(NvmlComputeModes(gpus), Path(config.node.state_dir) / LEDGER_NAME)
        if isinstance(gpus, NvmlGpus)
        else None
    )
    return Parts(
        wall=wall,
        gpus=gpus,
        modes=modes,
        sharing=MpsSharing(
            Path(config.node.runtime_dir),
            binary=Path(mps_binary) if mps_binary else None,
            mode=MpsMode(config.sharing.mps),
            simulated=simulated,
            wall=wall,
            modes=modes,
            environ=environ,
            timing=MpsTiming(canary=CanaryTiming(config.sharing.canary_seconds)),
            watched=[
                kind for kind, policy in watchdog_of(config).items() if policy.action is not Action.WARN
            ],
        ),
        engine=DockerEngine(f"unix://{config.engine.socket}", simulated_gpus=simulated),
        checkpoints=_checkpoints(config, gpus, environ),
        journal=SqliteJournal(
            Path(config.node.state_dir) / JOURNAL_NAME, keep_ended=config.node.keep_ended_leases
        ),
        jobs=SqliteStore(Path(config.node.state_dir) / JOBS_NAME, texts=NODE_TEXTS, leads_unwritten=True),
        audit=SqliteAudit(Path(config.node.state_dir) / AUDIT_NAME),
        history=SqliteHistory(Path(config.node.state_dir) / HISTORY_NAME),
        clock=SteadyClock(Path(config.node.state_dir) / CLOCK_NAME),
    )


def _checkpoints(config: Config, gpus: Gpus, environ: Mapping[str, str]) -> Checkpoints:
    if config.gpus.checkpoints is CheckpointMode.OFF:
        return NoCheckpoints()
    if isinstance(gpus, SimulatedGpus):
        return SimulatedCheckpoints(gpus)
    return CudaCheckpoints(environ)


async def restore_modes(config: Config) -> str | None:
    """Restore the modes, and return a sentence on the result, None if there was nothing to do.

    The unit runs this after every end of the daemon, restarts included. Containers outlive the daemon, so a
    mode stays while the container of a lease that it was set for is up, or might be. If the engine does not
    answer, the next start of the daemon restores the other modes. Errors of the engine and the GPUs become a
    sentence too.
    """
    path = Path(config.node.state_dir) / LEDGER_NAME
    if not path.exists():
        return None
    engine, gpus = DockerEngine(f"unix://{config.engine.socket}"), NvmlGpus()
    modes = ExclusiveModes(NvmlComputeModes(gpus), path)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            before = await modes.ledger()
            up = {facts.device_name for facts in await engine.containers() if facts.status in UP}
            await modes.restore_unneeded(up)
            after = await modes.ledger()
    except TimeoutError:
        return f"not done in {LONGEST_SECONDS:g} s; the daemon does it at its next start"
    except GpushareError as error:
        return f"left for the daemon's next start: {error.message}"
    finally:
        modes.close()
        await engine.close()
        await gpus.close()
    restored = len(before) - len(after)
    return f"compute mode put back on {restored} of the {len(before)} GPUs that it was set on"
