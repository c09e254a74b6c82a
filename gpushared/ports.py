"""What the daemon needs from the world: five narrow ports.

Each has a real adapter and a public fake in ``gpushared.testing``; both pass the same contract tests.
Methods are coroutines that come back within their adapter's time-out, with a result or with an error of
``gpushared.domain.errors``; none of them ever blocks the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gpushared.domain.gpu import Drained, Gpu, GpuId
from gpushared.domain.host import ContainerMemory
from gpushared.domain.jobs.attempt import Attempt
from gpushared.domain.jobs.contact import Contact
from gpushared.domain.lease import ContainerId, Grant, Lease, LeaseId, StoryEntry, Walls
from gpushared.domain.policy.standing import Standing, StandingChange
from gpushared.domain.request import Isolation

# --- GPUs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; ``pid`` is a host PID, ``memory_bytes`` None where the driver does not tell.

    ``mps_client``: whether the driver lists it as a client of an MPS server; None where it does not tell.
    ``utilization_ratio``: how busy it kept the GPU since the last look, 0-1; None where nobody knows.
    """

    pid: int
    memory_bytes: int | None
    mps_client: bool | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at one GPU; every figure is None where the GPU does not tell. Utilisation is a ratio 0-1.

    ``xids``: the errors (NVIDIA's XID numbers) that the driver told of since the last reading. ``lost``: the
    GPU is off the bus or needs a reset, so that nothing on it can go on; ``trouble`` says which.
    """

    gpu: GpuId
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    trouble: str | None = None
    xids: tuple[int, ...] = ()
    lost: bool = False


class Gpus(Protocol):
    """The GPUs of this machine. Errors: ``GpusUnavailable``, ``TimedOut``."""

    simulated: bool

    async def survey(self) -> tuple[Gpu, ...]:
        """All GPUs, by index, each before its MIG instances. A lost one is listed with its ``trouble``."""
        ...

    async def sample(self) -> tuple[GpuReading, ...]:
        """A reading of each GPU; a GPU that fails gives a reading with ``trouble`` and no figures."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How the driver is set for one GPU; None where GPU or driver do not tell.

    ``compute_mode`` is NVML's number: 0 default, 2 prohibited, 3 exclusive process.
    """

    gpu: GpuId
    index: int
    name: str
    persistence: bool | None = None
    compute_mode: int | None = None
    mig: bool | None = None
    mig_instances: tuple[GpuId, ...] = ()
    compute_capability: tuple[int, int] | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver itself, and how it is set for each of its GPUs."""

    version: str
    gpus: tuple[GpuSettings, ...] = ()


class Driver(Protocol):
    """A driver that tells of itself. Errors: ``GpusUnavailable``, ``TimedOut``."""

    async def describe(self) -> DriverFacts: ...


class ComputeModes(Protocol):
    """Who may use a GPU, by the numbers of ``GpuSettings``. Errors: ``GpusUnavailable``, ``TimedOut``."""

    async def compute_mode(self, gpu: GpuId) -> int | None:
        """None where the GPU does not tell."""
        ...

    async def set_compute_mode(self, gpu: GpuId, mode: int) -> None: ...


class MemoryLimiter(Protocol):
    """The driver's own limit on the GPU memory of a cgroup. Errors: ``GpusUnavailable``, ``TimedOut``."""

    async def memory_limits_trouble(self) -> str | None:
        """Why this machine has no such limits, found by trial; None where it has them."""
        ...

    async def limit_memory(self, gpu: GpuId, cgroup: str, limit_bytes: int) -> None:
        """Let the processes of a cgroup (its full path) hold at most so much on a GPU."""
        ...

    async def release_memory(self, gpu: GpuId, cgroup: str) -> None:
        """Take limit and guarantee off, which is due before the cgroup goes; without them it is harmless."""
        ...


# --- Sharing -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container gets so that it uses its lease and nothing else.

    ``env`` always wins over the user's; ``env_defaults`` only fills what the user left unset.
    ``gpus`` are to be made visible by the engine's own means (see ``DeviceMechanism``).
    """

    gpus: tuple[GpuId, ...]
    walls: Walls
    env: Mapping[str, str] = field(default_factory=dict)
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    cgroup_parent: str = ""
    """Docker's ``CgroupParent``, empty for the engine's own."""
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host that the runtime runs as root before the container's first process.

    OCI's ``createRuntime``: the container's state comes on its standard input. Only where ``lease_devices``.
    """

    path: str
    args: tuple[str, ...]
    env: tuple[str, ...] = ()
    timeout_seconds: int = 5


@dataclass(frozen=True, slots=True)
class ServerFault:
    """An MPS server met a fatal fault: all its clients fail, and it takes no new ones until they are gone.

    ``clients``: host PIDs that were on it; ``culprit`` the one that its log names, if any.
    """

    server: int
    clients: tuple[int, ...]
    culprit: int | None = None


@dataclass(frozen=True, slots=True)
class SharingStatus:
    """How one GPU is shared now: ``mode`` is ``mps`` or ``none``; ``trouble`` a sentence or None."""

    gpu: GpuId
    mode: str
    trouble: str | None = None
    pids: tuple[int, ...] = ()
    """Host PIDs of servers of ours, whose GPU memory is nobody's lease."""
    clients: tuple[int, ...] = ()
    """Host PIDs of their clients, as the last look found them."""
    clients_at: float | None = None
    """When that look began (``time.monotonic``); None where not all of them are known."""
    faults: tuple[ServerFault, ...] = ()
    """Servers that are in a fault now."""


class Sharing(Protocol):
    """Makes leases real on GPUs. Errors: ``SharingUnavailable``, ``TimedOut``."""

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        """Make ready what the lease's grants need; doing it again is harmless and heals what was lost.

        ``engine`` is None before the engine has answered for the first time.
        """
        ...

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        """Take it down again; unknown leases are no error."""
        ...

    def holds(self, lease: Lease) -> bool:
        """Whether there is anything that only the lease's running container can be given."""
        ...

    async def hold(self, lease: Lease, place: str) -> None:
        """Give it that: its own cgroup exists now, at this path from the top of the tree of cgroup v2."""
        ...

    async def part_clients(self, lease: Lease, pids: Collection[int]) -> int:
        """Take a lease's processes (host PIDs) off their MPS servers, so that their end harms nobody else.

        Returns how many were clients; others are no error. Comes back when the servers have let them go, or
        within a few seconds with an error: no reason to let the processes live on.
        """
        ...

    async def tell(self, lease: Lease) -> None:
        """Put the lease's notice where its container can read it, or take it away where there is none."""
        ...

    async def sweep(self, live: Collection[str]) -> None:
        """Remove what earlier lives left behind; ``live``: device names that leases or containers use."""
        ...

    async def status(self) -> tuple[SharingStatus, ...]: ...

    async def look_soon(self, gpu: GpuId) -> None:
        """Have ``status`` show anew who shares this GPU, without waiting for it."""
        ...

    async def close(self, *, keep_running: bool) -> None:
        """End the adapter. ``keep_running`` leaves alone what running containers still use."""
        ...


class Checkpoints(Protocol):
    """Moves GPU memory of processes to the host's and back. Errors: ``SharingUnavailable``, ``TimedOut``."""

    with_mps: bool
    """Whether that works for clients of MPS too."""
    needs_host_memory: bool
    """Whether what is saved takes the host's memory."""

    async def trouble(self) -> str:
        """Why it does not work on this machine; empty where it does."""
        ...

    async def save(self, pids: Collection[int]) -> None:
        """All of these processes (host PIDs), or none; those that use no GPU are no error."""
        ...

    async def restore(self, pids: Collection[int]) -> None:
        """Those among these that were saved go on where they were."""
        ...

    async def close(self) -> None: ...


# --- Engine --------------------------------------------------------------------------------------------


class DeviceMechanism(StrEnum):
    """How a GPU comes into a container, best first; probed at start."""

    CDI = "cdi"
    DEVICE_REQUEST = "device-request"
    NVIDIA_RUNTIME = "nvidia-runtime"
    PLAIN = "plain"


class CgroupDriver(StrEnum):
    """Who makes the cgroups of containers: a ``CgroupParent`` is a path for one, a slice for the other."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine is and can do. ``lease_devices``: it applies CDI specs that we write, at every start.

    ``gpu_mechanism`` says how the GPU itself is asked for (PLAIN on simulated GPUs). Where that is CDI,
    ``cdi_gpus`` are the UUIDs of GPUs and MIG instances that NVIDIA's specs name, as of the last look, and
    ``other_mechanism`` serves what they do not name.
    """

    version: str
    api_version: str
    lease_devices: bool
    gpu_mechanism: DeviceMechanism
    cgroup_version: int
    cgroup_driver: CgroupDriver = CgroupDriver.CGROUPFS
    cdi_gpus: frozenset[str] = frozenset()
    other_mechanism: DeviceMechanism = DeviceMechanism.PLAIN


class ContainerStatus(StrEnum):
    """Docker's words for ``State.Status``."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"


DEFAULT_STOP_SECONDS = 10
"""How long the engine waits between a stop's signal and its kill."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What inspect says of one container. ``owner_uid`` is None where the gate did not create it."""

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
    """What a stop sends it, empty for the engine's default, SIGTERM."""
    stop_seconds: int = DEFAULT_STOP_SECONDS
    """How long a stop waits that names no time; below zero it waits for ever."""
    memory: ContainerMemory | None = None
    """Its limit and its use of the host's memory; None where that was not looked at."""
    start_error: str = ""
    """Why its newest start failed, in the engine's words; empty where it began."""


LABEL_DEVICE = "gpushare.device"
"""The label by which the daemon finds its containers again: the lease's ``device_name``."""
LABEL_OWNER = "gpushare.owner"
"""The uid for whom the gate created a container."""
LABEL_JOB = "gpushare.job"
"""The job whose container it is; set by the gate."""
LABEL_ATTEMPT = "gpushare.attempt"
"""Which attempt to run the job, by its number; set by the gate."""
LABEL_LEASE = "gpushare.lease"
"""Set by a client on create: claim this lease."""


class Engine(Protocol):
    """The container engine. Errors: ``EngineUnavailable``, ``TimedOut``, ``NotFound``."""

    async def probe(self) -> EngineFacts: ...

    async def containers(self) -> tuple[ContainerFacts, ...]:
        """All containers, running or not, that carry ``LABEL_DEVICE``."""
        ...

    async def inspect(self, container: ContainerId) -> ContainerFacts | None:
        """The facts, or None when there is no such container."""
        ...

    async def stop(self, container: ContainerId, grace_seconds: int) -> None:
        """Stop signal, grace, kill. Comes back when it is stopped; a container that is gone is no error."""
        ...

    async def freeze(self, container: ContainerId) -> None:
        """Freeze its processes; one that is frozen already is no error. Errors besides: ``StateConflict``."""
        ...

    async def thaw(self, container: ContainerId) -> None:
        """Let them go on; one that is not frozen is no error."""
        ...

    async def signal(self, container: ContainerId, name: str) -> None:
        """Send its main process a signal such as ``SIGUSR1``; one that does not run is no error."""
        ...

    async def start_again(self, container: ContainerId) -> None:
        """Start a container that has ended; one that runs is no error, one that is gone is ``NotFound``."""
        ...

    def events(self) -> AsyncIterator[ContainerFacts | ContainerId]:
        """What changed, each confirmed by an inspect: the facts now, or the id of a container that is gone.

        Ends with ``EngineUnavailable`` when the engine goes away; the caller surveys and listens again.
        """
        ...

    async def write_device(self, device_name: str, edits: Edits) -> None:
        """Make the lease's device known to the engine (only where ``lease_devices``)."""
        ...

    async def remove_device(self, device_name: str) -> None: ...

    async def close(self) -> None: ...


# --- Journal -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """What a restarted daemon knows: leases that are not over, the next one's number, the drained GPUs."""

    leases: tuple[Lease, ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    attempts: tuple[Attempt, ...] = ()
    """All records that are not forgotten."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """What is known of each coordinator."""


@dataclass(frozen=True, slots=True)
class JournalWrite:
    """One transaction: leases as they now are, and what was added to their stories."""

    leases: tuple[Lease, ...]
    entries: tuple[tuple[LeaseId, StoryEntry], ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] | None = None
    """All GPUs that are drained from now on; None = as before."""
    standing: StandingChange | None = None
    """What is new of the projects; None = nothing."""
    attempts: tuple[Attempt, ...] = ()
    """Records of attempts as they now are."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """What is new of coordinators."""
    forgotten_before: float | None = None
    """Final records of attempts that are older are to go; None = none."""


class Journal(Protocol):
    """The durable memory. Errors: ``JournalUnavailable`` (nothing of the write happened then)."""

    async def load(self) -> JournalSnapshot: ...

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """All of them durably, or none."""
        ...

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]: ...

    async def lease(self, lease: LeaseId) -> Lease | None:
        """A lease, also one that is over."""
        ...

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        """Leases that are over, newest first."""
        ...

    async def close(self) -> None: ...


# --- Clock ---------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time for the rules: seconds since the epoch, because deadlines outlive the daemon. Nobody sets it."""

    def now(self) -> float: ...

    def ahead(self) -> float:
        """By how many seconds the time of day, which people set, is ahead of ``now``; exact while nobody does."""
        ...

    def keep(self) -> None:
        """Have it go on from here in the daemon's next life. Blocks. Raises Unavailable."""
        ...


__all__ = [
    "LABEL_ATTEMPT",
    "LABEL_DEVICE",
    "LABEL_JOB",
    "LABEL_LEASE",
    "LABEL_OWNER",
    "CgroupDriver",
    "Checkpoints",
    "Clock",
    "ComputeModes",
    "ContainerFacts",
    "ContainerStatus",
    "DeviceMechanism",
    "Driver",
    "DriverFacts",
    "Edits",
    "Engine",
    "EngineFacts",
    "GpuProcess",
    "GpuReading",
    "GpuSettings",
    "Gpus",
    "Grant",
    "Hook",
    "Isolation",
    "Journal",
    "JournalSnapshot",
    "JournalWrite",
    "MemoryLimiter",
    "Mount",
    "ServerFault",
    "Sharing",
    "SharingStatus",
]
