"""Define every setting of a pool's coordinator, ``gpushared-pool``, and load them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.config.history_settings import PoolHistoryConfig, PrivacyConfig
from gpushared.config.idle import IdleConfig, IdleQuietConfig
from gpushared.config.job_settings import AuditConfig
from gpushared.config.kinds import (
    GROUP,
    HOUR_SECONDS,
    PATH,
    ByteSize,
    Choice,
    FileMode,
    Number,
    Seconds,
    Text,
    TextList,
    Whole,
    setting,
)
from gpushared.config.load import (
    check_presets,
    check_projects,
    check_web,
    gather,
    named,
    presets_of,
    projects_of,
    raise_problems,
    read_all,
    sections_of,
)
from gpushared.config.metrics_settings import PoolMetricsConfig
from gpushared.config.model import PRESETS, HostMode, LogConfig, Preset
from gpushared.config.notify import PoolNotifyConfig
from gpushared.config.queue_rules import (
    EVERYBODY,
    USERS,
    BuildConfig,
    InferConfig,
    ProjectConfig,
    QueueOrderConfig,
    TrainConfig,
    UserConfig,
)
from gpushared.config.schema import (
    POOL_PREFIX,
    PRESET_NAME,
    PROJECT_TABLES,
    ConfigSchema,
    NameRule,
    sections_in,
)
from gpushared.config.store_settings import StoreConfig
from gpushared.config.web_settings import WebConfig
from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.gpu import MIB
from gpushared.domain.scheduling.placement.policies import PolicyName

DAY_SECONDS = 24 * HOUR_SECONDS
_POOL_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)?")


def is_listen_address(text: str) -> bool:
    """Return True if the text is ``HOST:PORT``, with IPv6 addresses in brackets."""
    host, colon, port = text.rpartition(":")
    well = bool(host and colon) and not set(host) & set(" /@") and (":" not in host or host.startswith("["))
    return well and port.isdecimal() and 0 <= int(port) < 2**16


_LISTEN = Text("`HOST:PORT`", is_listen_address)


@dataclass(frozen=True, slots=True)
class CoordinatorSection:
    """The coordinator itself and its files."""

    name: str = setting(
        "",
        Text(
            "up to 32 small letters, digits and dashes, or empty",
            lambda text: _POOL_NAME.fullmatch(text) is not None,
        ),
        "The pool's name; empty: as `gpushare pool init` was told.",
    )
    listen: str = setting(
        "[::]:7440",
        _LISTEN,
        "Where users with tokens and joining machines reach it, by TLS. `[::]` is all addresses, IPv4 too; "
        "port 0 is any.",
    )
    listen_nodes: str = setting(
        "[::]:7441", _LISTEN, "Where its nodes reach it, by TLS with their certificates."
    )
    advertise: str = setting(
        "",
        Text("a host's name or address without a port, or empty", lambda text: not set(text) & set(" /@,")),
        "Where several coordinators share a store in etcd: the name or address under which nodes, users and the "
        "other coordinators reach this one; empty: the machine's host name.",
    )
    state_dir: str = setting(
        "/var/lib/gpushared-pool",
        PATH,
        "Keys and certificates, and the store unless `store.url` is set: all that needs a backup. On a local "
        "disk (not NFS).",
    )
    runtime_dir: str = setting("/run/gpushared-pool", PATH, "The socket for administrators of this machine.")
    socket_mode: int = setting(
        0o666,
        FileMode(),
        "Permissions of that socket. The kernel tells who connects: root and the coordinator's user are "
        "administrators.",
    )
    trusted_groups: tuple[str, ...] = setting(
        (), TextList(GROUP), "Their members on this machine are administrators of the pool, too."
    )
    keep_ended_jobs: int = setting(100_000, Whole(0, 10_000_000), "How many ended jobs are still listed.")
    keep_ended_seconds: int = setting(
        90 * DAY_SECONDS,
        Seconds(DAY_SECONDS, 10 * 366 * DAY_SECONDS),
        "How long they are listed, at most.",
        key="keep_ended",
    )


@dataclass(frozen=True, slots=True)
class NodesConfig:
    """These settings hold for the nodes of the pool."""

    beat_seconds: float = setting(
        5.0, Number(0.5, 60.0), "How often a node sends a heartbeat with what is free on it."
    )
    beats_per_second: float = setting(
        50.0,
        Number(1.0, 1000.0),
        "The most heartbeats a second of all nodes; beyond that nodes send them less often.",
    )
    settle_seconds: int = setting(
        60,
        Seconds(1, HOUR_SECONDS),
        "After a start, older jobs are placed when all nodes have reported, or after so long.",
    )
    reserve_seconds: int = setting(
        60,
        Seconds(10, HOUR_SECONDS),
        "How long the nodes of a job on several nodes keep their parts, until all have theirs.",
    )


@dataclass(frozen=True, slots=True)
class PoolQueueConfig(QueueOrderConfig):
    """Waiting for room in the pool."""

    max_queued: int = setting(200_000, Whole(0, 1_000_000), "How many jobs may wait or run.")
    max_queued_bytes: int = setting(
        2048 * MIB,
        ByteSize(64 * 1024 * MIB),
        "What these may take of store and memory.",
        key="max_queued_size",
    )
    max_queued_per_realm: int = setting(
        150_000,
        Whole(0, 1_000_000),
        "How many jobs of one realm's users may wait or run. Each realm may always have a two-hundredth of "
        "what the pool may have.",
    )
    max_queued_bytes_per_realm: int = setting(
        1024 * MIB,
        ByteSize(64 * 1024 * MIB),
        "What these may take of store and memory.",
        key="max_queued_size_per_realm",
    )
    max_queued_per_person: int = setting(
        120_000, Whole(0, 1_000_000), "How many jobs of one person may wait."
    )
    max_queued_bytes_per_person: int = setting(
        512 * MIB,
        ByteSize(64 * 1024 * MIB),
        "What these may take of store and memory, nearly all for their create bodies.",
        key="max_queued_size_per_person",
    )
    stop_grace_seconds: int = setting(
        10,
        Seconds(0, HOUR_SECONDS),
        "As a node's `engine.stop_grace_seconds`.",
    )


@dataclass(frozen=True, slots=True)
class PoolPlacementConfig:
    """The policy chooses a job's node and GPUs among those that have room."""

    policy: PolicyName = setting(
        PolicyName.FRAGMENTATION,
        Choice(PolicyName),
        "`pack` fills GPUs in use first and keeps whole GPUs whole; `spread` gives each job few "
        "neighbours; `fragmentation` leaves rests that fit what this pool asks for.",
    )
    host: HostMode = setting(
        HostMode.AUTO,
        Choice(HostMode),
        "`auto` counts what jobs ask of CPU and memory.",
    )


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Hold all settings of a coordinator, each with its default."""

    coordinator: CoordinatorSection = field(default_factory=CoordinatorSection)
    store: StoreConfig = field(default_factory=StoreConfig)
    nodes: NodesConfig = field(default_factory=NodesConfig)
    queue: PoolQueueConfig = field(default_factory=PoolQueueConfig)
    classes_build: BuildConfig = field(default_factory=BuildConfig)
    classes_train: TrainConfig = field(default_factory=TrainConfig)
    classes_infer: InferConfig = field(default_factory=InferConfig)
    placement: PoolPlacementConfig = field(default_factory=PoolPlacementConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    history: PoolHistoryConfig = field(default_factory=PoolHistoryConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    metrics: PoolMetricsConfig = field(default_factory=PoolMetricsConfig)
    web: WebConfig = field(default_factory=WebConfig)
    notify: PoolNotifyConfig = field(default_factory=PoolNotifyConfig)
    log: LogConfig = field(default_factory=LogConfig)
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)


_PERSON_NAME = NameRule(
    "person",
    lambda name: name == EVERYBODY or is_user_name(name),
    f'use a name as users have them, or "{EVERYBODY}"',
    f'write [{USERS}.ada] and below it principals = ["ada@lab"]',
)
POOL = ConfigSchema(
    path=Path("/etc/gpushared/pool.toml"),
    sections=sections_in(CoordinatorConfig),
    removed={
        "quotas": "take [quotas] out: a pool's limits count the pool's jobs only, and a node's own leases "
        "count towards the limits in its config.toml"
    },
    named={
        **PROJECT_TABLES,
        (USERS, _PERSON_NAME): UserConfig,
        (PRESETS, PRESET_NAME): Preset,
    },
    prefix=POOL_PREFIX,
    page="docs/reference/pool-configuration.md",
    show="see docs/reference/pool-configuration.md for all settings",
)


def load_pool(
    path: Path = POOL.path,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    must_exist: bool = False,
) -> CoordinatorConfig:
    """Return the configuration, from the same kinds of sources as a node's. Raises ConfigError."""
    draft = gather(POOL, path, environ=environ, flags=flags, must_exist=must_exist)
    tables = read_all(draft)
    sections = sections_of(POOL, tables)
    users = {name: UserConfig(**parts) for name, parts in named(USERS, tables).items()}
    projects = projects_of(tables, IdleConfig(), IdleQuietConfig())
    presets = presets_of(tables)
    if not draft.problems:
        check_presets(presets, draft)
        check_projects(projects, draft)
        check_web(sections["web"], draft)
    raise_problems(draft)
    return CoordinatorConfig(**sections, projects=projects, users=users, presets=presets)
