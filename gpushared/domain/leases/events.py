"""Define the events that happen to a node. ``instructions`` defines the daemon's work in answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.jobs.node_messages import AttemptEvent
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.host import ContainerMemory
from gpushared.domain.model.lease import AttemptKey, ContainerId, LeaseId, Walls
from gpushared.domain.model.request import Caller, Process, Request
from gpushared.domain.model.request_spec import NewSize


@dataclass(frozen=True, slots=True)
class Means:
    """Describe the node's abilities.

    ``no_checkpoint`` says why CUDA checkpoints do not work here; empty if they do. ``binds_late``: the engine
    gives a container its settings anew at each start.
    """

    no_checkpoint: str = "this node has no CUDA checkpoints"
    checkpoint_with_mps: bool = False
    binds_late: bool = False


# --- events: from users --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """Ask for a lease.

    ``immediate``: refuse rather than queue. ``device_name``: empty = the lease's id. ``held``: the lease
    waits until its owner releases it.
    """

    request: Request
    caller: Caller
    request_id: str = ""
    device_name: str = ""
    immediate: bool = False
    held: bool = False
    attempt: AttemptKey | None = None
    """The lease is for this attempt of a job, by the order of ``coordinator``."""
    coordinator: str = ""
    holder: Process | None = None
    """The lease is given back when this process ends, as long as the process has created no container."""
    container_name: str = ""
    """The name of the lease's future container, and its image; empty if unknown."""
    image: str = ""


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """Report that a queued lease has had no client for too long, or that its holding process has ended."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class RequestMissed:
    """Report that a queued lease has had no client for this many seconds; 0 if a client waits again."""

    lease: LeaseId
    seconds: int


@dataclass(frozen=True, slots=True)
class ReleaseAsked:
    """Give back a lease that has no container."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End a lease, whatever its state."""

    lease: LeaseId
    caller: Caller
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class ResizeAsked:
    """Give a lease another size."""

    lease: LeaseId
    caller: Caller
    size: NewSize


@dataclass(frozen=True, slots=True)
class HoldAsked:
    """Keep a waiting lease from starting, or release it."""

    lease: LeaseId
    caller: Caller
    held: bool


@dataclass(frozen=True, slots=True)
class PriorityAsked:
    """Give a waiting lease another priority in its project."""

    lease: LeaseId
    caller: Caller
    priority: int


@dataclass(frozen=True, slots=True)
class ExtendAsked:
    """Give a lease more time."""

    lease: LeaseId
    caller: Caller
    seconds: int


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """Take a running lease off its GPUs until a user resumes it."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Bring a paused lease back when there is room."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class PreemptAsked:
    """Make a lease give way."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """Report that a container create that names this lease is under way."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ClaimDropped:
    """Report that the create under way failed; the lease may be claimed again."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ContainerCreated:
    """Report that the container of a claimed lease exists.

    ``stays``: nobody is attached to the container and it is not removed when it ends, so it can be started
    again.
    """

    lease: LeaseId
    container: ContainerId
    name: str
    image: str
    stays: bool = False


@dataclass(frozen=True, slots=True)
class StartAsked:
    """Report a request to start the lease's container."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Report that a restart of the lease's container begins: the container's exit is not the end."""

    lease: LeaseId
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class RestartDone:
    """Report that the restart is over, with or without success; the container must be inspected."""

    lease: LeaseId


# --- events: from the parts ----------------------------------------------------------------------------


class Condition(StrEnum):
    """Name the condition of a container in the engine's words; ``EXITED`` also follows a failed start."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    EXITED = "exited"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """Report a container's condition, confirmed by the engine. ``exit_code`` None means unknown."""

    container: ContainerId
    condition: Condition
    device_name: str = ""
    exit_code: int | None = None
    name: str = ""
    image: str = ""
    memory: ContainerMemory | None = None
    """None if the source did not report it."""
    start_error: str = ""
    """The reason why the container could not be started; empty if its process began."""
    ran_seconds: float | None = None
    """The container's last run took this long; None if it is not over, or the source did not report it."""
    runs_anew: bool = False
    """The container has begun a run since the last report on it."""


@dataclass(frozen=True, slots=True)
class EngineSurveyed:
    """Report all containers with our label, as they were at ``at``.

    A lease's container that is missing here is gone.
    """

    containers: tuple[ContainerSeen, ...]
    at: float


@dataclass(frozen=True, slots=True)
class MeansKnown:
    """Report the node's abilities for containers that have to give way (see ``Means``)."""

    means: Means


@dataclass(frozen=True, slots=True)
class ContainerSuspended:
    """Report that the container's GPU memory is on the host, and its processes are frozen."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SuspendFailed:
    """Report that the container runs on as before. ``lasting``: another try would fail too."""

    lease: LeaseId
    reason: str
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class ContainerResumed:
    """Report that the container runs on its GPUs again."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """Report that the container is still suspended."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class EditsMade:
    """Report that the lease's edits are in place."""

    lease: LeaseId
    walls: Walls


@dataclass(frozen=True, slots=True)
class SettingsTaken:
    """Report that the container began with the settings that were last made for its lease."""

    lease: LeaseId
    container: ContainerId
    walls: Walls


@dataclass(frozen=True, slots=True)
class ContainerRefuted:
    """Report that the lease's container differs from the one that was made; ``ends``: it must not run on."""

    lease: LeaseId
    container: ContainerId
    why: str
    ends: bool


@dataclass(frozen=True, slots=True)
class EditsFailed:
    """Report that the daemon cannot make the settings for a granted lease."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class GpusSurveyed:
    """Report all GPUs of the node."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class GpusSampled:
    """Report a sample of the GPUs at ``at``: the leases with processes there and the memory of all processes.

    ``stray_bytes`` counts processes without a lease. ``readable`` holds the GPUs that answered. ``busy`` may
    hold leases whose bytes are unknown.
    """

    at: float
    busy: frozenset[LeaseId]
    stray_bytes: Mapping[GpuId, int]
    readable: frozenset[GpuId]
    troubles: Mapping[GpuId, str] = field(default_factory=dict)
    used_bytes: Mapping[LeaseId, Mapping[GpuId, int]] = field(default_factory=dict)
    outside_mps: Mapping[LeaseId, tuple[GpuId, int]] = field(default_factory=dict)
    """Leases with a process (host PID) that should be an MPS client on that GPU and is none."""
    xids: Mapping[GpuId, tuple[int, ...]] = field(default_factory=dict)
    """Errors that the driver reported since the last sample."""
    lost: frozenset[GpuId] = frozenset()
    """GPUs on which no work can go on; ``troubles`` has the reasons."""
    idle: frozenset[LeaseId] = frozenset()
    """Leases that run and do nothing on any of their GPUs."""
    active: frozenset[LeaseId] = frozenset()
    """Leases that do work, or whose work cannot be distinguished from other leases' work there."""


@dataclass(frozen=True, slots=True)
class ServerFaulted:
    """Report that an MPS server on these GPUs is in a fatal fault, which hit all its clients.

    The event comes with every look that finds the fault, before that look's ``GpusSampled``, which may end a
    victim. ``victims`` holds the leases whose processes were clients of the server at the fault, and that
    still have processes there or had some at the last look. A lease that is named again and again holds on to
    the server and keeps it from recovering.
    """

    gpus: tuple[GpuId, ...]
    victims: frozenset[LeaseId]
    culprit: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class ClientsParted:
    """Report that this many processes were taken off MPS before the end of their container.

    ``trouble`` is the reason if they could not be taken off.
    """

    lease: LeaseId
    clients: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class GpuDrainAsked:
    """Drain a GPU (``reason`` says why), or undrain it (``reason`` is None)."""

    gpu: GpuId
    caller: Caller
    reason: str | None


@dataclass(frozen=True, slots=True)
class ProjectSet:
    """Set a project; a field that is None stays as it is. GPUs are in permille.

    ``model``: the quota is for the GPUs of this model; empty for the general quota. ``unset``: the project
    follows the configuration again; with a model, the project has no quota of its own for that model.
    """

    project: str
    caller: Caller
    weight: float | None = None
    users: tuple[str, ...] | None = None
    model: str = ""
    guaranteed: int | None = None
    limit: int | None = None
    no_limit: bool = False
    fixed: int | None = None
    unset: bool = False


@dataclass(frozen=True, slots=True)
class DayTimeSet:
    """Report that somebody set the time of day, which is now this far ahead of the rules' clock."""

    ahead_seconds: float


@dataclass(frozen=True, slots=True)
class QuietTimeChanged:
    """Report that a time with other rules for idle leases began or ended."""

    quiet: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Report that time passed; deadlines are checked."""


Event = (
    RequestSubmitted
    | RequestAbandoned
    | RequestMissed
    | ReleaseAsked
    | StopAsked
    | ResizeAsked
    | HoldAsked
    | PriorityAsked
    | ExtendAsked
    | PauseAsked
    | ResumeAsked
    | PreemptAsked
    | MeansKnown
    | ContainerSuspended
    | SuspendFailed
    | ContainerResumed
    | ResumeFailed
    | ClaimAsked
    | ClaimDropped
    | ContainerCreated
    | StartAsked
    | RestartAsked
    | RestartDone
    | ContainerSeen
    | EngineSurveyed
    | EditsMade
    | SettingsTaken
    | ContainerRefuted
    | EditsFailed
    | GpusSurveyed
    | GpusSampled
    | ServerFaulted
    | ClientsParted
    | GpuDrainAsked
    | ProjectSet
    | DayTimeSet
    | QuietTimeChanged
    | AttemptEvent
    | Tick
)
