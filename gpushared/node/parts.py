"""Make the parts of a node's daemon: real ones, or simulated ones if the configuration says so."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.config.model import CheckpointMode, Config
from gpushared.daemon.clocks import CLOCK_NAME, SteadyClock
from gpushared.domain.leases.node_rules import Action, MpsMode
from gpushared.engine.docker_engine import DockerEngine
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_settings import NvmlComputeModes, NvmlMemoryLimits
from gpushared.gpus.simulated import SimulatedCheckpoints, SimulatedGpus
from gpushared.node.runtime.configured import watchdog_of
from gpushared.ports import Checkpoints, Clock, Engine, Gpus, Journal, Sharing
from gpushared.ports.job_store import JobStore
from gpushared.sharing.canary_watch import CanaryTiming
from gpushared.sharing.checkpoint import CudaCheckpoints, NoCheckpoints
from gpushared.sharing.compute_mode import LEDGER_NAME, ExclusiveModes
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.mps import MpsSharing
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.job_store import NODES_WORDS, SqliteStore
from gpushared.storage.journal.journal_file import SqliteJournal

JOURNAL_NAME = "journal.db"
JOBS_NAME = "jobs.db"
AUDIT_NAME = "audit.db"
MPS_ENVIRONMENT = ("LD_LIBRARY_PATH",)
"""Helper programs that use the driver get these variables besides PATH: they lead to its libraries."""
MPS_BINARY = "nvidia-cuda-mps-control"


@dataclass(frozen=True, slots=True)
class Parts:
    """The daemon's real or simulated world."""

    gpus: Gpus
    sharing: Sharing
    engine: Engine
    checkpoints: Checkpoints
    journal: Journal
    jobs: JobStore
    """The memory of the node's own book of jobs."""
    clock: Clock
    audit: SqliteAudit
    wall: DriverWall = field(default_factory=lambda: DriverWall(None))
    """The driver's memory limits, which ``sharing`` uses too."""
    modes: ExclusiveModes | None = None
    """The compute modes that ``sharing`` sets; None where GPUs have none."""


def real_parts(config: Config) -> Parts:
    """The parts as configured. GPUs are simulated only where the configuration says so, never silently."""
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
    found = config.sharing.mps_binary or shutil.which(MPS_BINARY)
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
            binary=Path(found) if found else None,
            mode=MpsMode(config.sharing.mps),
            simulated=simulated,
            wall=wall,
            modes=modes,
            environ=environ,
            timing=MpsTiming(canary=CanaryTiming(config.sharing.canary_seconds)),
            watched=[one for one, policy in watchdog_of(config).items() if policy.action is not Action.WARN],
        ),
        engine=DockerEngine(f"unix://{config.engine.socket}", simulated_gpus=simulated),
        checkpoints=_checkpoints(config, gpus, environ),
        journal=SqliteJournal(
            Path(config.node.state_dir) / JOURNAL_NAME, keep_ended=config.node.keep_ended_leases
        ),
        jobs=SqliteStore(Path(config.node.state_dir) / JOBS_NAME, words=NODES_WORDS, leads_unwritten=True),
        audit=SqliteAudit(Path(config.node.state_dir) / AUDIT_NAME),
        clock=SteadyClock(Path(config.node.state_dir) / CLOCK_NAME),
    )


def _checkpoints(config: Config, gpus: Gpus, environ: Mapping[str, str]) -> Checkpoints:
    if config.gpus.checkpoints is CheckpointMode.OFF:
        return NoCheckpoints()
    if isinstance(gpus, SimulatedGpus):
        return SimulatedCheckpoints(gpus)
    return CudaCheckpoints(environ)
