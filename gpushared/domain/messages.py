"""What happens to a node: events. What its daemon is to do about them are ``instructions``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.asking import NewSize
from gpushared.domain.gpu import Gpu, GpuId
from gpushared.domain.host import ContainerMemory
from gpushared.domain.jobs.key import AttemptKey
from gpushared.domain.jobs.node_messages import AttemptEvent
from gpushared.domain.lease import ContainerId, LeaseId, Walls
from gpushared.domain.policy.allowance import Allowance
from gpushared.domain.request import Caller, Process, Request


@dataclass(frozen=True, slots=True)
class Means:
    """What this node can do. ``no_checkpoint``: why CUDA checkpoints do not work here, empty where they do.

    ``binds_late``: the engine gives a container its settings anew at each start.
    """

    no_checkpoint: str = "this node has no CUDA checkpoints"
    checkpoint_with_mps: bool = False
    binds_late: bool = False


# --- events: from users --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """Somebody asks. ``immediate``: refuse rather than queue. ``device_name`` empty = the lease's id.

    ``held``: it waits until its owner lets it go.
    """

    request: Request
    caller: Caller
    request_id: str = ""
    device_name: str = ""
    immediate: bool = False
    held: bool = False
    attempt: AttemptKey | None = None
    """The attempt to run a job that it is for, by this coordinator's order."""
    coordinator: str = ""
    holder: Process | None = None
    """The process whose end gives the lease back, as long as no container was created in it."""
    container_name: str = ""
    """What its container will be called, and of which image; empty where that is not known."""
    image: str = ""


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """Nobody has waited for this queued lease for too long, or the process that holds it has ended."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class RequestMissed:
    """Nobody has waited for this queued lease for so long; 0 where somebody does again."""

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
    """Keep a waiting lease from starting, or let it go."""

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
    """Take a running lease off its GPUs until it is resumed."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Bring a paused lease back when there is room."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class PreemptAsked:
    """Let a lease give way."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """A container create that names this lease is under way."""

    lease: LeaseId
    caller: Caller


@dataclass(frozen=True, slots=True)
class ClaimDropped:
    """That create failed; the lease may be claimed again."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ContainerCreated:
    """The container of a claimed lease exists.

    ``stays``: nobody is attached to it and it is not removed when it ends, so that it can be started again.
    """

    lease: LeaseId
    container: ContainerId
    name: str
    image: str
    stays: bool = False


@dataclass(frozen=True, slots=True)
class StartAsked:
    """A start of the lease's container was asked for."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """A restart of the lease's container begins: its exit is not the end."""

    lease: LeaseId
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class RestartDone:
    """The restart is over, well or not: look what became of the container."""

    lease: LeaseId


# --- events: from the parts ----------------------------------------------------------------------------


class Condition(StrEnum):
    """What the engine says of a container; ``EXITED`` also when its start failed."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    EXITED = "exited"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """The condition of a container, confirmed by the engine. ``exit_code`` None = unknown."""

    container: ContainerId
    condition: Condition
    device_name: str = ""
    exit_code: int | None = None
    name: str = ""
    image: str = ""
    memory: ContainerMemory | None = None
    """None where nobody told."""
    start_error: str = ""
    """Why it could not be started; empty where it began."""


@dataclass(frozen=True, slots=True)
class EngineSurveyed:
    """All containers with our label, as they were at ``at``; a lease's container that is not here is gone."""

    containers: tuple[ContainerSeen, ...]
    at: float


@dataclass(frozen=True, slots=True)
class MeansKnown:
    """What this node can do for containers that have to give way (see ``state.Means``)."""

    means: Means


@dataclass(frozen=True, slots=True)
class ContainerSuspended:
    """Its GPU memory is on the host, its processes are frozen."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SuspendFailed:
    """It runs on as before. ``lasting``: it would not work another time either."""

    lease: LeaseId
    reason: str
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class ContainerResumed:
    """It runs on its GPUs again."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """It is as suspended as before."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class EditsMade:
    """The lease's edits are in place."""

    lease: LeaseId
    walls: Walls


@dataclass(frozen=True, slots=True)
class SettingsTaken:
    """The container was seen to have begun with the settings that were last made for its lease."""

    lease: LeaseId
    container: ContainerId
    walls: Walls


@dataclass(frozen=True, slots=True)
class ContainerRefuted:
    """The lease's container was looked at and is not what was made; ``ends``: it must not run on."""

    lease: LeaseId
    container: ContainerId
    why: str
    ends: bool


@dataclass(frozen=True, slots=True)
class EditsFailed:
    """What was granted cannot be given."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class GpusSurveyed:
    """The GPUs of the node, all of them."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class GpusSampled:
    """Who was on the GPUs at ``at``: leases with processes there and their bytes, bytes of strangers.

    ``readable``: the GPUs that answered; ``busy`` may hold leases whose bytes are unknown.
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
    """Errors that the driver told of since the last sample."""
    lost: frozenset[GpuId] = frozenset()
    """GPUs on which nothing can go on; ``troubles`` say why."""
    idle: frozenset[LeaseId] = frozenset()
    """Leases that run and do nothing on any of their GPUs."""
    active: frozenset[LeaseId] = frozenset()
    """Leases that do something, or whose work cannot be told apart from that of others there."""


@dataclass(frozen=True, slots=True)
class ServerFaulted:
    """An MPS server on these GPUs is in a fatal fault, which hit all its clients.

    Told with every look that finds it so, and before that look's ``GpusSampled``, which may end a victim.
    ``victims``: leases whose processes were its clients when it met the fault and that have some there still
    or had at the last look; who is named again and again clings to the server and keeps it from recovering.
    """

    gpus: tuple[GpuId, ...]
    victims: frozenset[LeaseId]
    culprit: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class ClientsParted:
    """Before the end of a container so many of its processes were taken off MPS; ``trouble``: or were not."""

    lease: LeaseId
    clients: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class GpuDrainAsked:
    """Give no new leases on a GPU (``reason`` says why), or give them again (``reason`` None)."""

    gpu: GpuId
    caller: Caller
    reason: str | None


@dataclass(frozen=True, slots=True)
class ProjectSet:
    """An administrator sets a project; what is None stays as it is. GPUs are in permille.

    ``model``: the quota is one for the GPUs of this model; empty for the general one. ``unset``: the project
    is as the configuration has it again, or where a model is named, has no quota of its own there.
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
    """The time of day is so far ahead of the rules' clock now: somebody set it."""

    ahead_seconds: float


@dataclass(frozen=True, slots=True)
class AllowanceKnown:
    """What the node's pool lets it give by itself from now on; None = it is in no pool."""

    allowance: Allowance | None


@dataclass(frozen=True, slots=True)
class QuietTimeChanged:
    """A time began or ended in which other rules hold for idle leases."""

    quiet: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; deadlines are looked at."""


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
    | AllowanceKnown
    | QuietTimeChanged
    | AttemptEvent
    | Tick
)
