"""Define the facts that the checks judge: one look at the machine and at the daemon, as plain data.

A part that could not be read is ``Unread``, with the reason. Nothing here reads anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpushared.ports import DeviceMechanism, DriverFacts

T = TypeVar("T")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """Tell why a part could not be read, and what may help."""

    why: str
    hint: str = ""


# --- what the daemon itself knows ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """Describe a GPU as the daemon last saw it; ``processes`` counts those that are on it."""

    index: int
    name: str
    trouble: str = ""
    sharing_trouble: str = ""
    processes: int = 0
    drained: str = ""
    """The words of its drain: "is drained by root: new fan"; ``sick``: the daemon drained the GPU."""
    sick: bool = False
    exclusive_process: bool = False
    """The configuration wants this compute mode while the GPU is shared."""
    mode_set_for: int | None = None
    """So many leases need the mode that the daemon set and did not put back; None if it did not set the
    mode."""


@dataclass(frozen=True, slots=True)
class UnmanagedProcess:
    """Describe a process on a GPU that no lease explains."""

    pid: int
    gpu_index: int
    user: str = ""
    command: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """Describe the node's link to its pool. Times are epoch seconds by this machine's clock, ``now`` too.

    ``away``: since when and why there is no link, empty while there is one. ``hint``: what the coordinator says
    to do if it refuses the link. ``clock_ahead_seconds``: by how much the coordinator's clock is ahead, None
    before the first link. ``may_assert``: the node may speak for users of ``realm``.
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
    hint: str = ""
    coordinators: int = 1
    clock_ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DaemonView:
    """Hold the daemon's knowledge without a new look; ``troubles`` are by the part that has them.

    ``wall_trouble``: why the driver limits no container's memory, by the last trial. ``pool`` is None if the
    node is in none. ``pins_trouble``: why the engine does not see the mounts that are held for users, by the
    last trial.
    """

    gpus: tuple[KnownGpu, ...] = ()
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    wall_trouble: str = ""
    pins_trouble: str = ""
    users_trouble: str = ""
    """Why the kernel does not bound the sum of a user's containers."""
    pool: PoolView | None = None


# --- the Docker engine and NVIDIA's toolkit ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NvidiaSpecs:
    """Hold the content of the CDI specs of kind ``nvidia.com/gpu``: files, driver versions and GPU UUIDs."""

    files: tuple[str, ...] = ()
    driver_versions: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Describe the Docker engine: its own words, and the files it goes by."""

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
    """Describe NVIDIA's container toolkit; ``version`` is empty if its program does not tell.

    ``env_switch``: containers without privileges get GPUs by ``NVIDIA_VISIBLE_DEVICES`` (the default).
    """

    version: str = ""
    env_switch: bool = True


# --- MPS -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpsProgram:
    """Describe the installed control daemon; ``version`` is empty if its file does not tell."""

    path: str
    version: str = ""
    serves_many_users: bool = False


@dataclass(frozen=True, slots=True)
class MpsReport:
    """Describe MPS on this machine.

    ``default_pipe``: something lies in ``/tmp/nvidia-mps``, where MPS is by default. ``foreign_pids`` are
    control daemons that are not ours.
    """

    enabled: bool = True
    program: MpsProgram | None = None
    default_pipe: bool = False
    default_pipe_answers: bool = False
    foreign_pids: tuple[int, ...] = ()


# --- the machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Describe the kernel's and the system's side.

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
    """List the members of the groups that are root in effect, by group."""

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unit:
    """Hold the settings of the daemon's systemd unit that containers depend on."""

    name: str
    kill_mode: str
    runtime_preserve: str


@dataclass(frozen=True, slots=True)
class SocketFile:
    """Describe the daemon's socket: if a socket is at its path, and if other users can get there."""

    path: str
    is_socket: bool = True
    mode: int = 0o666
    closed_directory: str = ""
    """The first directory above the socket that other users may not enter."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Describe a directory and the file system below it."""

    path: str
    file_system: str
    free_bytes: int
    free_inodes: int | None
    """None if the file system makes inodes as needed."""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class ConfigState:
    """Describe the configuration on disk: its errors, and the settings that wait for a reload or a restart."""

    problem: str = ""
    to_reload: tuple[str, ...] = ()
    to_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Hold all facts of one look."""

    simulated: bool
    daemon: DaemonView
    driver: DriverFacts | Unread
    engine: EngineReport | Unread
    toolkit: Toolkit | Unread | None
    mps: MpsReport | Unread
    host: HostFacts | Unread
    groups: Groups | Unread
    unit: Unit | Unread | None
    socket: SocketFile | Unread
    runtime_dir: Directory | Unread
    state_dir: Directory | Unread
    config: ConfigState | Unread


def driver_of(facts: DoctorFacts) -> DriverFacts:
    """Return the driver's facts, for checks that come after the check ``driver``."""
    assert not isinstance(facts.driver, Unread), "made after `driver` only"
    return facts.driver


def numbers(text: str) -> Version:
    """Return the first numbers in a text, () without any: ``20.10.24+dfsg1`` is (20, 10, 24)."""
    match = _NUMBERS.search(text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def is_rebuilt(text: str) -> bool:
    """Return True if a distribution built it: then it may have fixes that its number does not tell."""
    return any(mark in text for mark in ("+", "-", "~"))
