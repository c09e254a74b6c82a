"""What the checks judge: one look at the machine and at the daemon, as plain data.

A part that could not be read is ``Unread``, with the reason. Nothing here reads anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpushared.ports import DeviceMechanism, DriverFacts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a part could not be read, and what may help."""

    why: str
    hint: str = ""


# --- what the daemon itself knows ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU as the daemon last saw it; ``processes`` counts those that are on it."""

    index: int
    name: str
    trouble: str = ""
    sharing_trouble: str = ""
    processes: int = 0
    drained: str = ""
    """What its drain says of it: "is drained by root: new fan"; ``sick``: the daemon drained it."""
    sick: bool = False
    exclusive_process: bool = False
    """The configuration wants this compute mode while it is shared."""
    mode_set_for: int | None = None
    """For how many leases the daemon set that mode, and did not put it back; None where it did not set it."""


@dataclass(frozen=True, slots=True)
class UnmanagedProcess:
    """A process on a GPU that no lease explains."""

    pid: int
    gpu_index: int
    user: str = ""
    command: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """How the node stands with its pool. Times are epoch seconds by this machine's clock, ``now`` too.

    ``away``: since when and why there is no link, empty while there is one. ``clock_ahead_seconds``: by how
    much the coordinator's clock is ahead, None before the first link. ``may_assert``: the node may speak for
    users of ``realm``.
    """

    name: str
    node: str
    address: str
    now: float
    issued_at: float
    expires_at: float
    realm: str
    may_assert: bool = True
    away: str = ""
    clock_ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DaemonView:
    """What the daemon knows without looking anew; ``troubles`` by the part that has it.

    ``wall_trouble``: why the driver limits no container's memory, as it was last tried. ``pool`` is None
    where the node is in none. ``pins_trouble``: why the engine does not see what is held for users, as it
    was last tried.
    """

    gpus: tuple[KnownGpu, ...] = ()
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    wall_trouble: str = ""
    pins_trouble: str = ""
    users_trouble: str = ""
    """Why the kernel does not bound what users' containers have together."""
    pool: PoolView | None = None


# --- the Docker engine and NVIDIA's toolkit ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NvidiaSpecs:
    """What the CDI specs of kind ``nvidia.com/gpu`` say: files, driver versions and GPU UUIDs they name."""

    files: tuple[str, ...] = ()
    driver_versions: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The Docker engine: its own words, and the files it goes by."""

    version: str
    api_version: str
    gpu_mechanism: DeviceMechanism
    cgroup_driver: str
    default_runtime: str
    cdi_dirs: tuple[str, ...] = ()
    nvidia_specs: NvidiaSpecs = NvidiaSpecs()
    authorization_plugins: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    socket_mode: int = 0o660


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit; ``version`` is empty where its program does not tell.

    ``env_switch``: containers without privileges get GPUs by ``NVIDIA_VISIBLE_DEVICES`` (the default).
    """

    version: str = ""
    env_switch: bool = True


# --- MPS -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpsProgram:
    """The installed control daemon; ``version`` is empty where its file does not tell."""

    path: str
    version: str = ""
    serves_many_users: bool = False


@dataclass(frozen=True, slots=True)
class MpsReport:
    """MPS on this machine.

    ``default_pipe``: something lies in ``/tmp/nvidia-mps``, where MPS is by default. ``foreign_pids`` are
    control daemons that are not ours.
    """

    wanted: bool = True
    program: MpsProgram | None = None
    default_pipe: bool = False
    default_pipe_answers: bool = False
    foreign_pids: tuple[int, ...] = ()


# --- the machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Host:
    """The kernel's and the system's side.

    ``memory_limit_bytes`` bounds the daemon's own cgroup, None without a limit.
    """

    kernel: str = ""
    cgroup_version: int = 2
    init_pid_namespace: bool = True
    selinux_enforces: bool = False
    memory_limit_bytes: int | None = None
    persistence_daemon: bool = True
    missing_device_nodes: tuple[str, ...] = ()
    missing_char_links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """Members of the groups that are root in effect, by group."""

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unit:
    """The systemd unit that the daemon runs in: of its settings those that containers depend on."""

    name: str
    kill_mode: str
    runtime_preserve: str


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The daemon's socket: whether a socket is at its path, and whether others can get there."""

    path: str
    is_socket: bool = True
    mode: int = 0o666
    closed_directory: str = ""
    """The first directory above it that other users may not enter."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory and the file system below it."""

    path: str
    file_system: str
    free_bytes: int
    free_inodes: int | None
    """None where the file system makes them as needed."""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The configuration on disk: what is wrong with it, and whether it waits for a reload or restart."""

    problem: str = ""
    differs: bool = False
    needs_restart: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    simulated: bool
    daemon: DaemonView
    driver: DriverFacts | Unread
    engine: EngineReport | Unread
    toolkit: Toolkit | Unread | None
    mps: MpsReport | Unread
    host: Host | Unread
    groups: Groups | Unread
    unit: Unit | Unread | None
    socket: SocketFile | Unread
    runtime_dir: Directory | Unread
    state_dir: Directory | Unread
    config: ConfigState | Unread
