"""A lease: the right to use parts of GPUs, its states, and the only ways between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from gpushared.domain.errors import InvalidTransition
from gpushared.domain.gpu import GpuId
from gpushared.domain.jobs.key import AttemptKey
from gpushared.domain.request import Process, Request

LeaseId = NewType("LeaseId", str)
ContainerId = NewType("ContainerId", str)

STORY_KEPT_IN_MEMORY = 100
"""A container that crashes for weeks must not grow the daemon; the journal keeps every entry."""


class MemoryWall(StrEnum):
    """What really keeps a lease inside its memory, from strong to none."""

    WHOLE_GPU = "whole-gpu"
    MIG = "mig"
    DRIVER = "driver"
    MPS_SERVER = "mps-server"
    MPS_CLIENT = "mps-client"
    WATCHDOG = "watchdog"
    NONE = "none"


class ComputeCap(StrEnum):
    """What really keeps a lease inside its share of the compute."""

    WHOLE_GPU = "whole-gpu"
    MIG = "mig"
    MPS_PERCENTAGE = "mps-percentage"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Walls:
    """Which walls hold a lease, as found when its edits were made, never as hoped."""

    memory_wall: MemoryWall
    compute_cap: ComputeCap


@dataclass(frozen=True, slots=True)
class Grant:
    """A part of one GPU."""

    gpu: GpuId
    memory_bytes: int
    compute_permille: int
    compute_limit_permille: int = 0
    """The ceiling of its processes, where that is above its share; 0 where they are the same."""

    @property
    def ceiling_permille(self) -> int:
        """So much of the GPU's compute its processes may use, where others leave it."""
        return max(self.compute_permille, self.compute_limit_permille)


# --- how a lease ended ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """The container's main process ended by itself, or could not be started: ``start_error`` says why."""

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
    """Granted, but no container was started in time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The daemon could not give what it had granted, or it broke: what to do about it is the hint."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Its processes used more memory on a GPU than it holds there."""

    gpu: GpuId
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """It gave way to others; with ``requeue`` it is to be started again when there is room."""

    why: str
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class OutsideMps:
    """A process of a lease that is held by MPS used a GPU without MPS, where nothing holds it."""

    gpu: GpuId
    pid: int


@dataclass(frozen=True, slots=True)
class Idle:
    """It did nothing on its GPUs for so long that its class's policy ended it."""

    seconds: float


Outcome = Finished | Stopped | Expired | NeverClaimed | OverLimit | OutsideMps | Preempted | Idle | Failed


# --- what a lease is told before it ends ---------------------------------------------------------------


class NoticeKind(StrEnum):
    """Why a lease will end."""

    EXPIRES = "expires"
    PREEMPTED = "preempted"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Notice:
    """What the program in the container is told: it ends at ``until`` (epoch seconds).

    Where it is not to end (``ends``) it is only told; ``until`` is then when something else is done, or 0.
    """

    kind: NoticeKind
    until: float
    text: str
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Promised:
    """Room that is made for a waiting lease: these leave, and then it has these grants."""

    grants: tuple[Grant, ...]
    victims: tuple[LeaseId, ...]
    why: str
    turn: bool = False
    """Whether it was its project's turn."""


# --- where a lease is ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queued:
    """Waits for room."""

    since: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """Holds its grants; no container yet. ``claimed``: a create is under way."""

    grants: tuple[Grant, ...]
    since: float
    deadline: float
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Starting:
    """A container exists that is not running yet, or not running again yet.

    ``deadline`` is None while the engine itself will start it again (restart policy, reboot).
    ``held``: a restart is under way, so an exit is not the end.
    """

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float | None
    held: bool = False
    by_node: bool = False
    """The node itself starts it again, tries so from ``deadline`` on; it is ``held`` until that is done."""


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
    """On its way out: the container must go (``exited``), then the GPUs must show the memory back."""

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
    """Its GPU memory is being moved to the host's. ``wanted``: it is to come back when there is room."""

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float
    wanted: bool


@dataclass(frozen=True, slots=True)
class Suspended:
    """Frozen, with nothing on a GPU; ``held`` is what it comes back to.

    ``left_seconds`` of its time limit are left. ``wanted``: it waits in the queue, else to be asked for.
    ``place``: in the queue it stands before all requests with this sequence and higher ones.
    """

    container: ContainerId
    since: float
    place: int
    held: tuple[Grant, ...]
    left_seconds: float | None
    wanted: bool


@dataclass(frozen=True, slots=True)
class Resuming:
    """Its GPU memory is being moved back."""

    grants: tuple[Grant, ...]
    container: ContainerId
    since: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Requeued:
    """Stopped to give way to others; waits in the queue to be started again. ``held`` is what it had.

    ``place`` as in ``Suspended``.
    """

    container: ContainerId
    since: float
    place: int
    held: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Over; holds nothing."""

    outcome: Outcome
    at: float
    grants: tuple[Grant, ...] = ()
    """What it held, for the history only."""


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
"""States in which a lease's grants count against the GPUs."""
WithContainer = Starting | Active | Paused | Suspending | Suspended | Resuming | Draining | Requeued
Waiting = Queued | Requeued | Suspended
"""States in which a lease may be in the queue."""

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
        (Draining, Starting),  # it had ended by itself, and the engine starts it again
        (Draining, Active),  # the same, seen when it ran again
        (Draining, Ended),
        (Active, Suspending),
        (Suspending, Suspending),  # asked again
        (Suspending, Active),  # it could not be
        (Suspending, Suspended),
        (Suspending, Starting),  # killed meanwhile, restarted by policy
        (Suspending, Draining),
        (Suspended, Resuming),
        (Suspended, Draining),
        (Suspended, Ended),
        (Resuming, Resuming),  # asked again
        (Resuming, Active),
        (Resuming, Suspended),  # it could not be
        (Resuming, Starting),  # killed meanwhile, restarted by policy
        (Resuming, Draining),
        (Draining, Requeued),  # it gave way, and is to be started again
        (Requeued, Starting),  # room was found
        (Requeued, Draining),
        (Requeued, Ended),
    }
)


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One line of a lease's story: when, in which state it was left, and why."""

    at: float
    state: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.state:9} {self.text}"


def state_name(state: LeaseState) -> str:
    """The state's name as users see it: ``queued``, ``active`` ..."""
    return type(state).__name__.lower()


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease with its request, its owner, its state and the newest part of its story.

    ``device_name`` names the lease to the container engine (CDI device, label); it equals the id, except for
    containers that were created before they had a lease. ``request_id`` makes asking twice harmless.
    ``expires_at`` is epoch seconds. ``walls`` is None until the edits were made.
    ``container_name`` and ``image`` are those that were asked for, and the container's own once there is one.
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
    over_since: float | None = None
    """Since when its processes use more GPU memory than it holds, now and again; None while they do not."""
    asked_first: Request | None = None
    """The request as it came, where a resize changed it since."""
    held_by: str = ""
    """Who keeps it from starting while it waits; empty when nobody does."""
    held_by_admin: bool = False
    """Then its owner cannot let it go."""
    project: str = ""
    """Whose quota it counts against; empty in old journals, where it was its owner's own."""
    held_since: float | None = None
    """As ``holds_since`` has it; None in old journals too."""
    served_gpu_seconds: float = 0.0
    """What it held before it last had to give way."""
    behind: tuple[LeaseId, ...] = ()
    """The waiting leases for which its GPUs are kept; it gives way when one of them can start."""
    promised: Promised | None = None
    """What others give way for, while it waits."""
    requeues: bool = False
    """Whether its container is started again after it had to give way."""
    preemptions: int = 0
    """How often it had to."""
    suspend_trouble: str = ""
    """Why it could not be taken off its GPUs when that was tried."""
    notice: Notice | None = None
    """What its program was told of its end."""
    idle_since: float | None = None
    """Since when it has been idle, once something was said or done about it (see ``idle``)."""
    lowered: bool = False
    """It has been idle for so long that it is preemptible, whatever its class and its project's quota."""
    fault: str = ""
    """What broke the lease's GPU or its MPS server under it, where it has not been started again since."""
    faulted_at: float | None = None
    """When it met that fault, or caused one itself (``fault`` is empty then)."""
    restarts: int = 0
    """How often its container was started again after such a fault."""
    outside_since: float | None = None
    """Since when a process of it uses a GPU beside MPS, now and again; None while none does."""
    attempt: AttemptKey | None = None
    """The attempt to run a job that it is for; such a lease waits without anybody waiting for it."""
    coordinator: str = ""
    """By whose order: a pool, or empty for the node's own jobs."""
    holder: Process | None = None
    """The process whose end gives the lease back, as long as no container was created in it."""
    missed_seconds: int = 0
    """For how long nobody has waited for it, in steps, so that a restart of the daemon does not forget it."""
    baked: tuple[Grant, ...] = ()
    """What its container was created with, which its settings say for as long as it exists.

    Earlier releases wrote it only where a resize had changed it since (see ``node.restore``).
    """
    story: tuple[StoryEntry, ...] = field(default=(), compare=False, metadata={"recorded": False})

    @property
    def payer(self) -> str:
        """The project whose quota it counts against."""
        return self.project or self.owner_name

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What counts against the GPUs now."""
        return self.state.grants if isinstance(self.state, Holding) else ()

    @property
    def given(self) -> frozenset[GpuId]:
        """The GPUs that its container may have: those it was created with, and those it has or comes back to.

        A container that was created before its GPUs were known can have others at each start.
        """
        state = self.state
        kept = state.held if isinstance(state, Suspended | Requeued) else self.grants
        return frozenset(grant.gpu for grant in (*self.baked, *kept))

    def walls_with(self, made: Walls) -> Walls:
        """The walls it stands behind where settings with these walls are made for it now.

        A container keeps the settings it was created with, whatever could be made for it now. The driver's
        limit is none of them: it is gone after a boot with a driver that has none.
        """
        if self.walls is None or isinstance(self.state, Reserved):
            return made
        if self.walls.memory_wall is MemoryWall.DRIVER and made.memory_wall is not MemoryWall.DRIVER:
            return replace(self.walls, memory_wall=made.memory_wall)
        return self.walls

    @property
    def holds_since(self) -> float | None:
        """Since when it holds what it holds, None while that is nothing.

        Old journals do not say it; then it is since when it has been in its state, for all who ask.
        """
        if not isinstance(self.state, Holding) or not self.state.grants:
            return None
        return self.state.since if self.held_since is None else self.held_since

    @property
    def container(self) -> ContainerId | None:
        return self.state.container if isinstance(self.state, WithContainer) else None

    def move(self, to: LeaseState, at: float, why: str) -> Lease:
        """The lease in its next state, with a story entry; raises InvalidTransition where no rule leads."""
        if (type(self.state), type(to)) not in TRANSITIONS:
            raise InvalidTransition(
                f"lease {self.id} cannot go from {state_name(self.state)} to {state_name(to)} ({why})",
                story=self.story,
            )
        return replace(self, state=to).note(at, why)

    def note(self, at: float, why: str) -> Lease:
        """The same lease with one more line in its story."""
        entry = StoryEntry(at, state_name(self.state), why)
        return replace(self, story=(*self.story, entry)[-STORY_KEPT_IN_MEMORY:])
