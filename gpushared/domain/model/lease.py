"""Define a lease: the right to use parts of GPUs, its states, and the only ways between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType, assert_never

from gpushared.domain.model.errors import InvalidTransition
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.request import Process, Request

JobId = NewType("JobId", str)
"""Thirteen characters, ten in older releases, or the id of an array and ``_7`` for its job of that number."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """Identify one attempt to run a job; a node has at most one part of it. A key is never used twice."""

    job: JobId
    number: int

    def __str__(self) -> str:
        return f"{self.job}/{self.number}"


LeaseId = NewType("LeaseId", str)
ContainerId = NewType("ContainerId", str)

BESIDE = {"recorded_beside": True}
"""Journals hold the fields of such a group among the fields of the lease."""
STORY_KEPT_IN_MEMORY = 100
"""The story in memory is bounded, since a container may crash for weeks; the journal keeps every entry."""


class MemoryWall(StrEnum):
    """Name the mechanism that really limits a lease to its memory, from strong to none."""

    WHOLE_GPU = "whole-gpu"
    MIG = "mig"
    DRIVER = "driver"
    MPS_SERVER = "mps-server"
    MPS_CLIENT = "mps-client"
    WATCHDOG = "watchdog"
    NONE = "none"


class ComputeCap(StrEnum):
    """Name the mechanism that really limits a lease to its share of the compute."""

    WHOLE_GPU = "whole-gpu"
    MIG = "mig"
    MPS_PERCENTAGE = "mps-percentage"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Walls:
    """Record the walls of a lease as found when its edits were made, not as planned."""

    memory_wall: MemoryWall
    compute_cap: ComputeCap


@dataclass(frozen=True, slots=True)
class Grant:
    """Describe a part of one GPU."""

    gpu: GpuId
    memory_bytes: int
    compute_permille: int
    compute_limit_permille: int = 0
    """The ceiling of the lease's processes, if it is above the share; 0 if both are the same."""

    @property
    def ceiling_permille(self) -> int:
        """Return the permille of the GPU's compute that the processes may use if others leave it free."""
        return max(self.compute_permille, self.compute_limit_permille)


# --- outcomes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """The container's main process ended by itself, or could not be started; ``start_error`` says why."""

    exit_code: int
    start_error: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody asked for the end: a user, or a client that left the queue."""

    by: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The time limit was reached."""


@dataclass(frozen=True, slots=True)
class NeverClaimed:
    """The lease was granted, but no container was started in time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The daemon could not give the granted parts, or they broke. ``hint`` names the user's remedy."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The lease's processes used more memory on a GPU than the lease holds there."""

    gpu: GpuId
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """The lease gave way to others; with ``requeue`` its container is started again when there is room."""

    why: str
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class OutsideMps:
    """A process of a lease behind MPS walls used a GPU without MPS, where nothing limits the process."""

    gpu: GpuId
    pid: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The lease did nothing on its GPUs for so long that its class's policy ended it."""

    seconds: float


Outcome = Finished | Stopped | Expired | NeverClaimed | OverLimit | OutsideMps | Preempted | Idle | Failed


def outcome_kind(outcome: Outcome) -> str:
    """Return the name of an outcome for programs, as in the API."""
    match outcome:
        case Finished():
            return "finished"
        case Stopped():
            return "stopped"
        case Expired():
            return "expired"
        case NeverClaimed():
            return "never_claimed"
        case OverLimit():
            return "over_limit"
        case OutsideMps():
            return "outside_mps"
        case Preempted():
            return "preempted"
        case Idle():
            return "idle"
        case Failed():
            return "failed"
        case unreachable:
            assert_never(unreachable)


# --- notices before the end ----------------------------------------------------------------------------


class NoticeKind(StrEnum):
    """Name the reason why a lease will end."""

    EXPIRES = "expires"
    PREEMPTED = "preempted"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Notice:
    """Announce to the program in the container that it ends at ``until`` (epoch seconds).

    If ``ends`` is False, the notice only informs; ``until`` is then the time of another action, or 0.
    """

    kind: NoticeKind
    until: float
    text: str
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Promised:
    """Describe the room that is made for a waiting lease: the victims leave, and then it gets the grants."""

    grants: tuple[Grant, ...]
    victims: tuple[LeaseId, ...]
    why: str
    turn: bool = False
    """True if the room is for its project's turn."""


# --- states --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queued:
    """The lease waits for room."""

    since: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """The lease holds its grants and has no container yet. ``claimed``: a create is under way."""

    grants: tuple[Grant, ...]
    since: float
    deadline: float
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Starting:
    """A container exists that is not running yet, or not running again yet.

    ``deadline`` is None while the engine itself will start the container again (restart policy, reboot).
    ``held``: a restart is under way, so an exit is not the end.
    """

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float | None
    held: bool = False
    by_node: bool = False
    """The node itself starts the container again, and tries from ``deadline`` on; ``held`` is True until
    then."""


@dataclass(frozen=True, slots=True)
class Active:
    """The container runs."""

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float


@dataclass(frozen=True, slots=True)
class Paused:
    """The container is frozen and keeps its GPU memory."""

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float


@dataclass(frozen=True, slots=True)
class Draining:
    """The lease is on its way out.

    The container must go (``exited``), then the GPUs must show its memory free.
    """

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    outcome: Outcome
    exited: bool
    retry_at: float
    gone: bool = False
    """The container was removed."""


@dataclass(frozen=True, slots=True)
class Suspending:
    """The lease's GPU memory is being moved to the host's.

    ``wanted``: it is to come back when there is room.
    """

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float
    wanted: bool


@dataclass(frozen=True, slots=True)
class Suspended:
    """The lease is frozen, with nothing on a GPU; ``held`` is what the lease comes back to.

    ``left_seconds`` are left of its time limit. ``wanted``: the lease waits in the queue, else for its owner
    to ask. ``place``: in the queue it stands before all requests with this sequence number and higher ones.
    """

    container: ContainerId
    since: float
    place: int
    held: tuple[Grant, ...]
    left_seconds: float | None
    wanted: bool


@dataclass(frozen=True, slots=True)
class Resuming:
    """The lease's GPU memory is being moved back."""

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Requeued:
    """The container was stopped to make room; the lease waits for its restart. ``held`` are its old grants.

    ``place`` counts as in ``Suspended``.
    """

    container: ContainerId
    since: float
    place: int
    held: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is over and holds nothing."""

    outcome: Outcome
    at: float
    grants: tuple[Grant, ...] = ()
    """The grants at the end, for the history only."""


LeaseState = (
    Queued
    | Reserved
    | Starting
    | Active
    | Paused
    | Suspending
    | Suspended
    | Resuming
    | Draining
    | Requeued
    | Ended
)
Holding = Reserved | Starting | Active | Paused | Suspending | Resuming | Draining
"""In these states a lease's grants count against the GPUs."""
WithContainer = Starting | Active | Paused | Suspending | Suspended | Resuming | Draining | Requeued
Waiting = Queued | Requeued | Suspended
"""In these states a lease may be in the queue."""

TRANSITIONS: frozenset[tuple[type[LeaseState], type[LeaseState]]] = frozenset(
    {
        (Queued, Reserved),  # room was found
        (Queued, Ended),  # cancelled, or nobody waits any more
        (Reserved, Reserved),  # a create began, or failed and may be tried again
        (Reserved, Starting),  # the container exists
        (Reserved, Ended),  # released, or never claimed: nothing ran, nothing to drain
        (Starting, Starting),  # a start was asked for again
        (Starting, Active),
        (Starting, Draining),
        (Active, Starting),  # the engine restarts the container
        (Active, Active),  # the container was restarted so fast that only its start was seen
        (Active, Paused),
        (Active, Draining),
        (Paused, Active),
        (Paused, Starting),  # killed while paused, restarted by policy
        (Paused, Draining),
        (Draining, Draining),  # the container went, or the stop is asked for again
        (Draining, Starting),  # the container had ended by itself, and the engine starts it again
        (Draining, Active),  # the same, seen when the container ran again
        (Draining, Ended),
        (Active, Suspending),
        (Suspending, Suspending),  # a suspension was asked for again
        (Suspending, Active),  # the suspension failed
        (Suspending, Suspended),
        (Suspending, Starting),  # killed in between, restarted by policy
        (Suspending, Draining),
        (Suspended, Resuming),
        (Suspended, Draining),
        (Suspended, Ended),
        (Resuming, Resuming),  # a resumption was asked for again
        (Resuming, Active),
        (Resuming, Suspended),  # the resumption failed
        (Resuming, Starting),  # killed in between, restarted by policy
        (Resuming, Draining),
        (Draining, Requeued),  # the lease gave way, and its container is to be started again
        (Requeued, Starting),  # room was found
        (Requeued, Draining),
        (Requeued, Ended),
    }
)


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """Hold one line of a lease's story: the time, the state that the lease was left in, and the reason."""

    at: float
    state: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.state:9} {self.text}"


def state_name(state: LeaseState) -> str:
    """Return the state's name for users: ``queued``, ``active`` ..."""
    return type(state).__name__.lower()


# --- further facts about a lease -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Health:
    """Record a lease's faulty processes, or the faults of the GPUs and MPS servers below the processes."""

    fault: str = ""
    """The fault of the lease's GPU or MPS server; empty once the container was started again."""
    faulted_at: float | None = None
    """The time at which the lease met that fault, or caused one itself (``fault`` is empty then)."""
    restarts: int = 0
    """The container was started again this many times after such a fault."""
    over_since: float | None = None
    """Since this time the processes, now and again, have used more GPU memory than the lease holds; None if
    they do not."""
    outside_since: float | None = None
    """Since this time a process of the lease, now and again, has used a GPU beside MPS; None while none
    does."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """Record the consequences of a lease's idle time."""

    since: float | None = field(default=None, metadata={"recorded_as": "idle_since"})
    """The lease has been idle since this time; set once its program was notified or the daemon acted."""
    is_preemptible: bool = field(default=False, metadata={"recorded_as": "lowered"})
    """The lease was idle for so long that it is preemptible, whatever its class and its project's quota."""


@dataclass(frozen=True, slots=True)
class LeasePreemption:
    """Record how often a lease gave way, its losses, and the room that other leases make for it."""

    count: int = field(default=0, metadata={"recorded_as": "preemptions"})
    """The lease had to give way this many times."""
    begun_anew: int = 0
    """The lease lost its work by giving way this many times."""
    served_seconds: float = 0.0
    """The seconds for which the lease held GPUs before it last had to give way."""
    requeues: bool = False
    """True if the container is started again after the lease had to give way."""
    suspend_trouble: str = ""
    """The reason why the last attempt to take the lease off its GPUs failed."""
    behind: tuple[LeaseId, ...] = ()
    """The waiting leases for which its GPUs are kept; it gives way when one of them can start."""
    promised: Promised | None = None
    """The room that others make for the lease while it waits."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Hold a lease with its request, its owner, its state and the newest part of its story.

    ``device_name`` names the lease to the container engine (CDI device, label); it equals the id, except for
    containers that were created before they had a lease. ``request_id`` makes asking twice harmless.
    ``expires_at`` is epoch seconds. ``walls`` is None until the edits were made. ``container_name`` and
    ``image`` are from the request, and from the container once there is one.
    """

    id: LeaseId
    sequence: int
    request: Request
    owner_uid: int
    owner_name: str
    created_at: float
    state: LeaseState
    device_name: str
    request_id: str = ""
    expires_at: float | None = None
    walls: Walls | None = None
    container_name: str = ""
    image: str = ""
    asked_first: Request | None = None
    """The request as it came, if a resize has changed it since."""
    held_by: str = ""
    """The user who keeps the waiting lease from starting; empty if nobody does."""
    held_by_admin: bool = False
    """An administrator holds the lease, so its owner cannot release it."""
    project: str = ""
    """The project whose quota the lease counts against; empty in old journals, which mean the owner's own."""
    held_since: float | None = None
    """The recorded value of ``holds_since``; None in old journals too."""
    waiting_since: float | None = None
    """The recorded value of ``waits_since``; None in old journals too."""
    health: Health = field(default=Health(), metadata=BESIDE)
    idleness: Idleness = field(default=Idleness(), metadata=BESIDE)
    preemption: LeasePreemption = field(default=LeasePreemption(), metadata=BESIDE)
    notice: Notice | None = None
    """The notice of the end that the lease's program was given."""
    attempt: AttemptKey | None = None
    """The attempt to run a job that the lease is for; such a lease waits without a client."""
    coordinator: str = ""
    """The coordinator that ordered the attempt: a pool's name, or empty for the node's own jobs."""
    holder: Process | None = None
    """The lease is given back when this process ends, as long as the process has created no container."""
    missed_seconds: int = 0
    """For this long no client has waited for the lease, in steps, so that a restart of the daemon does not
    forget it."""
    created_grants: tuple[Grant, ...] = field(default=(), metadata={"recorded_as": "baked"})
    """The grants that the container was created with; its settings name them for as long as it exists.
    Earlier releases wrote them only if a resize had changed them since (see ``node_machine.restore``)."""
    story: tuple[StoryEntry, ...] = field(default=(), compare=False, metadata={"recorded": False})

    @property
    def payer(self) -> str:
        """Return the project whose quota the lease counts against."""
        return self.project or self.owner_name

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Return the grants that count against the GPUs now."""
        return self.state.grants if isinstance(self.state, Holding) else ()

    @property
    def container_gpus(self) -> frozenset[GpuId]:
        """Return the GPUs that the container may have: those at its creation, and its present or coming ones.

        A container that was created before its GPUs were known can have other GPUs at each start.
        """
        state = self.state
        grants = state.held if isinstance(state, Suspended | Requeued) else self.grants
        return frozenset(grant.gpu for grant in (*self.created_grants, *grants))

    def walls_with(self, new_walls: Walls) -> Walls:
        """Return the walls that hold the lease after settings with ``new_walls`` were made for it.

        A container keeps the settings it was created with, whatever could be made for it now. The driver's
        limit is an exception: the limit is gone after a boot with a driver that has none.
        """
        if self.walls is None or isinstance(self.state, Reserved):
            return new_walls
        if self.walls.memory_wall is MemoryWall.DRIVER and new_walls.memory_wall is not MemoryWall.DRIVER:
            return replace(self.walls, memory_wall=new_walls.memory_wall)
        return self.walls

    @property
    def holds_since(self) -> float | None:
        """Return since when the lease holds its grants; None while it holds nothing.

        Old journals do not record this; then the time since the last change of state stands for it.
        """
        if not isinstance(self.state, Holding) or not self.state.grants:
            return None
        return self.state.since if self.held_since is None else self.held_since

    @property
    def waits_since(self) -> float | None:
        """Return since when the lease waits in the queue, if it does; None if it holds or is over.

        Old journals do not record this; then the time since the last change of state stands for it.
        """
        if not isinstance(self.state, Waiting):
            return None
        return self.state.since if self.waiting_since is None else self.waiting_since

    @property
    def container(self) -> ContainerId | None:
        return self.state.container if isinstance(self.state, WithContainer) else None

    def move(self, to: LeaseState, at: float, why: str) -> Lease:
        """Return the lease in its next state, with a story entry.

        Raises InvalidTransition if no rule leads there.
        """
        if (type(self.state), type(to)) not in TRANSITIONS:
            raise InvalidTransition(
                f"lease {self.id} cannot go from {state_name(self.state)} to {state_name(to)} ({why})",
                story=self.story,
            )
        return replace(self, state=to).note(at, why)

    def with_request(self, request: Request) -> Lease:
        """Return the same lease with a changed request; the request as it came stays in ``asked_first``."""
        return replace(self, request=request, asked_first=self.asked_first or self.request)

    def without_fault(self) -> Lease:
        """Return the same lease without its past fault, and the fault's time."""
        return replace(self, health=replace(self.health, fault="", faulted_at=None))

    def note(self, at: float, why: str) -> Lease:
        """Return the same lease with one more line in its story."""
        entry = StoryEntry(at, state_name(self.state), why)
        return replace(self, story=(*self.story, entry)[-STORY_KEPT_IN_MEMORY:])
