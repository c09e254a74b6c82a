"""Define every setting: its name, default, bounds and meaning. The reference page is made from here.

A field's key is its name, unless the field carries a unit that the written value tells by itself
(``mps_reserve_bytes`` is written ``mps_reserve = "300MiB"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.config.gate_settings import GateConfig
from gpushared.config.history_settings import HistoryConfig, PrivacyConfig
from gpushared.config.idle import IdleConfig, IdleQuietConfig
from gpushared.config.job_settings import AuditConfig, JobsConfig, PoolConfig
from gpushared.config.kinds import (
    HOUR_SECONDS,
    PATH,
    PATH_OR_EMPTY,
    ByteSize,
    Choice,
    FileMode,
    GpuNames,
    Number,
    Seconds,
    Text,
    Whole,
    setting,
)
from gpushared.config.metrics_settings import MetricsConfig
from gpushared.config.notify import NotifyConfig
from gpushared.config.queue_rules import (
    BuildConfig,
    InferConfig,
    ProjectConfig,
    QueueOrderConfig,
    TrainConfig,
)
from gpushared.config.web_settings import WebConfig
from gpushared.domain.leases.node_rules import Action, MpsMode
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.domain.scheduling.placement.policies import PolicyName, Together

_ACTION_OR_EMPTY = Text(
    "`warn`, `stop`, `kill`, or empty for `action`", lambda text: not text or text in set(Action)
)
PRESETS = "presets"


class CheckpointMode(StrEnum):
    """Say if CUDA checkpoints are made."""

    AUTO = "auto"
    OFF = "off"


class LogLevel(StrEnum):
    """Name the least weight of a line that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Name the form of a log line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The machine and the daemon's own files."""

    name: str = setting("", Text(), "The node's name in listings; empty is the host name.", at_start=True)
    runtime_dir: str = setting(
        "/run/gpushared",
        PATH,
        "Sockets and what containers mount. Keep it short: socket paths have at most about 100 bytes.",
        at_start=True,
    )
    state_dir: str = setting(
        "/var/lib/gpushared", PATH, "The journal, on a local disk (not NFS).", at_start=True
    )
    socket_mode: int = setting(
        0o666,
        FileMode(),
        "Permissions of the socket. The kernel tells who connects, so everybody may.",
        at_start=True,
    )
    keep_ended_leases: int = setting(
        100_000,
        Whole(0, 10_000_000),
        "How many ended leases stay in the journal, with their stories.",
        at_start=True,
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The Docker engine."""

    socket: str = setting("/var/run/docker.sock", PATH, "The engine's socket.", at_start=True)
    stop_grace_seconds: int = setting(
        10,
        Seconds(0, HOUR_SECONDS),
        "The time between a container's stop signal and its kill.",
    )


@dataclass(frozen=True, slots=True)
class GpusConfig:
    """The GPUs of this machine."""

    simulate: str = setting(
        "",
        Text(),
        "Simulated GPUs instead of real ones, such as `h100:2` or `a100,t4:4`; `a100/4x1g.10gb+3g.40gb` is "
        "split by MIG, `h100:8@4` joins each four by NVLink.",
        at_start=True,
    )
    mps_reserve_bytes: int = setting(
        300 * MIB,
        ByteSize(64 * 1024 * MIB),
        "Memory of each GPU that is not leased: an MPS server and the driver need it.",
        key="mps_reserve",
        at_start=True,
    )
    checkpoints: CheckpointMode = setting(
        CheckpointMode.AUTO,
        Choice(CheckpointMode),
        "`auto` moves the GPU memory of paused and preempted containers to the host where CUDA checkpoints "
        "work; `off` never does.",
        at_start=True,
    )
    exclusive_process: tuple[str, ...] = setting(
        (),
        GpuNames(),
        "GPUs in the compute mode EXCLUSIVE_PROCESS while shared leases are on them: [what that "
        "closes](../explanation/how-sharing-isolates.md#who-leaves-mps). Needs root and an MPS for several "
        "users (driver 580).",
        at_start=True,
    )
    sample_seconds: float = setting(1.0, Number(0.1, 60.0), "How often each GPU is sampled.", at_start=True)


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """These settings say how one GPU serves several leases."""

    mps: MpsMode = setting(
        MpsMode.AUTO,
        Choice(MpsMode),
        "`auto` uses MPS where it is installed, `required` refuses shared leases without it, `off` never "
        "uses it: then only the watchdog holds parts of GPUs.",
        at_start=True,
    )
    mps_binary: str = setting(
        "",
        PATH_OR_EMPTY,
        "The program `nvidia-cuda-mps-control`; empty: from the daemon's PATH.",
        at_start=True,
    )
    canary_seconds: float = setting(
        60.0,
        Number(0.0, 86400.0),
        "How often a small CUDA program tries the MPS servers with leases; 0: never.",
        at_start=True,
    )
    fault_patience_seconds: float = setting(
        30.0,
        Number(1.0, 3600.0),
        "A container that stays on a faulted MPS server for so long is ended: nobody can use the server "
        "before all have left.",
    )


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """The watchdog acts on a container whose processes use more GPU memory than its lease holds."""

    action: Action = setting(
        Action.KILL,
        Choice(Action),
        "`kill` ends it at once; `stop` gives it `engine.stop_grace_seconds`; `warn` only says so.",
    )
    build: str = setting("", _ACTION_OR_EMPTY, "Another action for the class `build`.")
    train: str = setting("", _ACTION_OR_EMPTY, "Another action for the class `train`.")
    infer: str = setting("", _ACTION_OR_EMPTY, "Another action for the class `infer`.")
    tolerance_bytes: int = setting(
        256 * MIB,
        ByteSize(64 * 1024 * MIB),
        "So much more on a GPU is no overuse: CUDA contexts count, and drivers round.",
        key="tolerance",
    )
    patience_seconds: float = setting(
        0.0, Number(0.0, 3600.0), "How long overuse may last before the action."
    )


@dataclass(frozen=True, slots=True)
class QueueConfig(QueueOrderConfig):
    """Waiting for room."""

    claim_seconds: int = setting(
        60,
        Seconds(5, HOUR_SECONDS),
        "A granted lease that no container has claimed for so long goes to the next; at once if its "
        "holder's process has ended.",
    )
    orphan_seconds: int = setting(
        30,
        Seconds(1, 24 * HOUR_SECONDS),
        "A queued request that nobody has asked for so long leaves the queue; at once if its holder's "
        "process has ended.",
    )
    notice_seconds: int = setting(
        300,
        Seconds(0, 24 * HOUR_SECONDS),
        "How long before its end a program is told, in `/run/gpushare/notice.json`.",
    )
    max_queued: int = setting(1000, Whole(0, 100_000), "How many requests may wait; 0: none.")
    max_queued_per_user: int = setting(100, Whole(0, 100_000), "How many of one user may wait.")


class HostMode(StrEnum):
    """Say if the CPU and memory of the machine are counted."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """The policy chooses a lease's GPU among those that have room."""

    policy: PolicyName = setting(
        PolicyName.FRAGMENTATION,
        Choice(PolicyName),
        "[How a place is chosen](../how-to/placement.md#policies).",
    )
    together: Together = setting(
        Together.OFF,
        Choice(Together),
        "`project`: [leases of one project together](../how-to/placement.md#leases-of-one-project-together).",
    )
    host: HostMode = setting(
        HostMode.AUTO,
        Choice(HostMode),
        "`auto` counts docker's `--cpus` and `--memory` [of containers with "
        "leases](../how-to/placement.md#cpu-and-memory-of-the-machine).",
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The daemon's log, on standard error."""

    level: LogLevel = setting(
        LogLevel.INFO, Choice(LogLevel), "The lowest level that is logged.", at_start=True
    )
    format: LogFormat = setting(
        LogFormat.TEXT,
        Choice(LogFormat),
        "`text` for people and journald, `json` for collectors.",
        at_start=True,
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """A named request: `gpushare run --preset NAME`. A word that the user types wins over the preset's."""

    gpu: str = setting("", Text(), "As `--gpu`: `0.25`, `2`, `2x0.5` or `0.25..1`.")
    gpu_memory: str = setting("", Text(), "As `--gpu-memory`: `8g` or `8g..24g`.")
    gpu_compute: str = setting("", Text(), "As `--gpu-compute`: `30%` or `25%..100%`.")
    lease_class: str = setting("", Text(), "As `--class`: `build`, `train` or `infer`.", key="class")
    time: str = setting("", Text(), "As `--time`: `8h`.")
    isolation: str = setting("", Text(), "As `--isolation`: `shared`, `separate`, `exclusive` or `mig`.")
    priority: str = setting("", Text(), "As `--priority`: `10`.")
    project: str = setting("", Text(), "As `--project`; only its members can use the preset.")
    restart_on_fault: str = setting("", Text(), "As `--restart-on-fault`: `3`.")
    model: str = setting("", Text(), "As `--model`: `h100` or `h100,a100`.")
    description: str = setting("", Text(), "One line for whoever chooses.")

    @property
    def spec(self) -> RequestSpec:
        """Return the preset as the domain reads it."""
        return RequestSpec(
            gpu=self.gpu,
            gpu_memory=self.gpu_memory,
            gpu_compute=self.gpu_compute,
            isolation=self.isolation,
            lease_class=self.lease_class,
            time=self.time,
            priority=self.priority,
            project=self.project,
            restart_on_fault=self.restart_on_fault,
            models=self.model,
        )


@dataclass(frozen=True, slots=True)
class Config:
    """Hold all settings of a daemon, each with its default."""

    node: NodeConfig = field(default_factory=NodeConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    gpus: GpusConfig = field(default_factory=GpusConfig)
    sharing: SharingConfig = field(default_factory=SharingConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    idle: IdleConfig = field(default_factory=IdleConfig)
    idle_quiet: IdleQuietConfig = field(default_factory=IdleQuietConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    classes_build: BuildConfig = field(default_factory=BuildConfig)
    classes_train: TrainConfig = field(default_factory=TrainConfig)
    classes_infer: InferConfig = field(default_factory=InferConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    jobs: JobsConfig = field(default_factory=JobsConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    web: WebConfig = field(default_factory=WebConfig)
    log: LogConfig = field(default_factory=LogConfig)
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)
