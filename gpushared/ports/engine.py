"""Declare the port for the engine that runs containers, with containers' settings and their real state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.host import ContainerMemory
from gpushared.domain.model.lease import ContainerId, Walls


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """Hold the engine's description of how it made the container."""

    labels: Mapping[str, str]
    mark: str = ""
    """Engines keep this value of ``ContainerIDFile`` and do not use it."""
    env: tuple[str, ...] = ()
    """The caller's variables and the image's are here together."""
    privileged: bool = False
    runtime: str = ""
    devices: tuple[str, ...] = ()
    """These are paths on the host."""
    device_rules: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    """These are names of CDI devices, and ``driver:id`` for each id of other drivers."""
    host_namespaces: frozenset[str] = frozenset()
    """The container was to share these namespaces with the machine, by their names in ``/proc/PID/ns``."""
    groups: frozenset[int] = frozenset()
    """These groups are given by their numbers."""
    seccomp: bool = True
    """This is True if nobody requested other system calls than the engine's own choice."""
    binds: tuple[str, ...] = ()
    """These are the sources of requested bind mounts, without the mounts of devices."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """Describe a character device below ``/dev`` of a container."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Allow a cgroup some devices; None allows all numbers. ``kind`` is a, b or c; ``access`` is of rwm."""

    kind: str
    major: int | None
    minor: int | None
    access: str


@dataclass(frozen=True, slots=True)
class Exposure:
    """Name a path of the machine that a container sees at ``target``; the path may not be its own."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """Describe the machine's GPU devices. ``majors`` maps driver numbers to the kernel's names.

    ``minors`` has the numbers of GPUs, if their driver tells; it is empty without a driver.
    """

    majors: Mapping[int, str]
    minors: Mapping[GpuId, int]


@dataclass(frozen=True, slots=True)
class Reality:
    """Describe one container whose first process stayed the same during the look.

    ``capabilities`` are all that the process has or could get, as the kernel's bits. ``rules`` is None if
    they cannot be read. User numbers are the machine's.
    """

    id: ContainerId
    name: str
    pid: int
    start_ticks: int
    described: EngineDescription
    machine: MachineDevices
    uids: frozenset[int]
    gids: frozenset[int]
    """The field includes the supplementary groups."""
    capabilities: int
    no_new_privileges: bool
    seccomp: bool
    maps_users: bool
    """This is True if the container's user numbers differ from the machine's."""
    host_namespaces: frozenset[str]
    nodes: tuple[DeviceNode, ...]
    rules: tuple[DeviceRule, ...] | None
    exposed: tuple[Exposure, ...]


@dataclass(frozen=True, slots=True)
class EditMount:
    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Edits:
    """Hold the settings by which a container uses its lease and nothing else.

    ``env`` always overrides the user's variables; ``env_defaults`` only fills variables that the user left
    unset. The engine makes ``gpus`` visible by its own means (see ``DeviceMechanism``).
    """

    gpus: tuple[GpuId, ...]
    walls: Walls
    env: Mapping[str, str] = field(default_factory=dict)
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[EditMount, ...] = ()
    devices: tuple[str, ...] = ()
    cgroup_parent: str = ""
    """This is Docker's ``CgroupParent``; empty for the engine's own choice."""
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """Name a program of the host that the runtime runs as root before the container's first process.

    The hook is OCI's ``createRuntime``: the container's state comes on its standard input. It works only with
    ``lease_devices``.
    """

    path: str
    args: tuple[str, ...]
    env: tuple[str, ...] = ()
    timeout_seconds: int = 5


class DeviceMechanism(StrEnum):
    """Name how a GPU comes into a container, best first; probed at start."""

    CDI = "cdi"
    DEVICE_REQUEST = "device-request"
    NVIDIA_RUNTIME = "nvidia-runtime"
    PLAIN = "plain"


class CgroupDriver(StrEnum):
    """Name the maker of containers' cgroups: one takes a ``CgroupParent`` as a path, the other as a slice."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Describe the engine and its abilities.

    With ``lease_devices`` the engine applies CDI specs that we write, at every start. ``gpu_mechanism`` says
    how the daemon requests the GPU itself (PLAIN on simulated GPUs). If that is CDI, ``cdi_gpus`` are the
    UUIDs of GPUs and MIG instances that NVIDIA's specs name, as of the last look, and ``other_mechanism``
    serves the GPUs that they do not name.
    """

    version: str
    api_version: str
    lease_devices: bool
    gpu_mechanism: DeviceMechanism
    cgroup_version: int
    cgroup_driver: CgroupDriver = CgroupDriver.CGROUPFS
    cdi_gpus: frozenset[str] = frozenset()
    other_mechanism: DeviceMechanism = DeviceMechanism.PLAIN
    nvidia_by_default: bool = False
    """This is True if NVIDIA's runtime runs every container; it gives GPUs by variables that images have too.
    """
    maps_users: bool = False
    """This is True if containers' users have other numbers on the machine (``userns-remap``)."""
    live_restore: bool = False
    """This is True if containers run on when the engine ends; else it ends them."""


class ContainerStatus(StrEnum):
    """Name the values of Docker's ``State.Status``."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"


DEFAULT_STOP_SECONDS = 10
"""The engine waits this long between a stop's signal and its kill."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """Hold the inspect's facts of one container. ``owner_uid`` is None if the gate did not create it."""

    id: ContainerId
    name: str
    image: str
    status: ContainerStatus
    exit_code: int
    pid: int
    device_name: str
    owner_uid: int | None
    restart_policy: str
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str = ""
    """A stop sends this signal; empty for the engine's default, SIGTERM."""
    stop_seconds: int = DEFAULT_STOP_SECONDS
    """A stop that names no time waits this long; below zero it waits for ever."""
    memory: ContainerMemory | None = None
    """This is the container's limit and use of the host's memory; None if nobody read them."""
    start_error: str = ""
    """This is the engine's message on the newest failed start; empty if the container began."""
    ran_seconds: float | None = None
    """The container's last run took this long; None if it is not over, or the engine does not tell."""
    started_at: float | None = None
    """This is when the newest run began, in seconds since the epoch; None if that is not known."""
    finished_at: float | None = None
    """This is when the newest run ended, in seconds since the epoch; None if that is not known."""


LABEL_DEVICE = "gpushare.device"
"""The daemon finds its containers again by this label: the lease's ``device_name``."""
LABEL_OWNER = "gpushare.owner"
"""This label names the uid for whom the gate created a container."""
LABEL_JOB = "gpushare.job"
"""This label names the job of the container; the gate sets it."""
LABEL_ATTEMPT = "gpushare.attempt"
"""This label has the number of the attempt to run the job; the gate sets it."""
LABEL_GATE = "gpushare.gate"
"""This label names the maker: ``<gate>/confined`` if the gate checked the container, else ``<gate>/trusted``.
"""
LABEL_LEASE = "gpushare.lease"
"""A client sets this label on create, to claim this lease."""


class Engine(Protocol):
    """Run containers. Raises ``EngineUnavailable``, ``TimedOut``, ``NotFound``."""

    async def probe(self) -> EngineFacts: ...

    async def containers(self) -> tuple[ContainerFacts, ...]:
        """Return all containers, running or not, that carry ``LABEL_DEVICE``."""
        ...

    async def inspect(self, container: ContainerId) -> ContainerFacts | None:
        """Return the facts, or None if there is no such container."""
        ...

    async def reality(self, container: ContainerId, barred: Sequence[str]) -> Reality | None:
        """Return the real state of the first process; None if there is none (any more, or yet).

        The answer tells which paths of the machine in ``barred`` the container sees.
        """
        ...

    async def running(self) -> tuple[ContainerId, ...]:
        """Return all containers that run and carry ``LABEL_GATE``."""
        ...

    async def stop(self, container: ContainerId, grace_seconds: int) -> None:
        """Stop a container: signal, grace, kill.

        Returns when the container is stopped; a container that is gone is no error.
        """
        ...

    async def freeze(self, container: ContainerId) -> None:
        """Freeze a container's processes; a frozen one is no error. Also raises ``StateConflict``."""
        ...

    async def thaw(self, container: ContainerId) -> None:
        """Let a container's processes go on; one that is not frozen is no error."""
        ...

    async def signal(self, container: ContainerId, name: str) -> None:
        """Send a main process a signal such as ``SIGUSR1``; a container that does not run is no error."""
        ...

    async def start_again(self, container: ContainerId) -> None:
        """Start a container that has ended; a running one is no error, one that is gone is ``NotFound``."""
        ...

    def events(self) -> AsyncIterator[ContainerFacts | ContainerId]:
        """Yield the changes, each confirmed by an inspect.

        A change is the facts now, or the id of a container that is gone. The stream ends with
        ``EngineUnavailable`` when the engine goes away, with ``EngineGone`` if the engine has ended; the
        caller surveys and listens again.
        """
        ...

    async def write_device(self, device_name: str, edits: Edits) -> None:
        """Make the lease's device known to the engine (only with ``lease_devices``)."""
        ...

    async def remove_device(self, device_name: str) -> None: ...

    async def close(self) -> None: ...
