"""Define what a pass over the queue looks at, and the form of its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId

NEVER = float("inf")


class WaitReason(StrEnum):
    """Code why a request waits; a sentence for people goes with the code."""

    RESOURCES = "resources"
    """There is no room; the refusals of the GPUs tell which kind of room is missing."""
    QUEUE_ORDER = "queue_order"
    """The room is kept for a request that waits longer."""
    CLASS_ORDER = "class_order"
    """The room is kept for a request of the same project that goes first."""
    FAIR_SHARE = "fair_share"
    """The room is kept for a project that used less."""
    FIXED_QUOTA = "fixed_quota"
    """The room is kept for a project's build work."""
    PROJECT_QUOTA = "project_quota"
    """The request's class never gives way, and the request is more than its project is guaranteed."""
    PROJECT_LIMIT = "project_limit"
    """The project holds as much as it ever may."""
    PREEMPTING = "preempting"
    """Leases are giving way to the request."""
    BEGIN_TIME = "begin_time"
    AFTER_LEASE = "after_lease"
    HELD = "held"


class PreemptionMode(StrEnum):
    """Name how a lease gives way, the gentlest first."""

    PAUSE = "pause"
    """The container stays, frozen, and its GPU memory is given back."""
    NOTIFY = "notify"
    """The program is told, saves itself and ends within the notice; the lease is asked again later."""
    REQUEUE = "requeue"
    """The container is stopped and starts again from its beginning or its last save."""
    STOP = "stop"
    """The container is stopped and does not start again."""

    @property
    def loses_nothing(self) -> bool:
        """Return True if the work goes on later where it was."""
        return self in (PreemptionMode.PAUSE, PreemptionMode.NOTIFY)


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Describe a waiting lease.

    ``since``: when it began to wait, which after a preemption is not the time of the request. ``after``:
    leases that are not over yet, whose end it waits for. ``begin_at``: it does not start before that time.
    """

    lease: Lease
    project: str
    priority: int
    since: float
    is_held: bool = False
    begin_at: float | None = None
    after: tuple[LeaseId, ...] = ()
    served: float = 0.0
    """The seconds for which the lease held GPUs before it was preempted."""
    sunk: int = 0
    """The steps by which its long run has lowered its priority."""
    yields: bool = False
    """The lease loses little when it is taken off again: it may use GPUs kept for others until they start."""


@dataclass(frozen=True, slots=True)
class RunningLease:
    """Describe a lease that holds parts of GPUs.

    ``started_at``: since when it holds them. ``saved_at``: up to when its work would survive a stop; None =
    not at all. ``leaving``: it is on its way out already, for any reason, and cannot be preempted once more.
    """

    lease: Lease
    project: str
    priority: int
    started_at: float
    saved_at: float | None = None
    step: PreemptionMode = PreemptionMode.REQUEUE
    leaving: bool = False
    served: float = 0.0
    """The seconds for which the lease held GPUs before this run."""
    begun_anew: int = 0
    """The number of times that the lease lost its work by giving way."""
    sunk: int = 0
    """The steps by which its long run has lowered its priority."""
    behind: tuple[LeaseId, ...] = ()
    """The waiting leases that its GPUs were kept for when it was granted: it goes when one of them can
    start."""
    stays: bool = False
    """The decider here cannot take the lease back: it belongs to another queue."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Describe a lease that gives way, and how."""

    lease: LeaseId
    step: PreemptionMode
    lost_seconds: float
    """The GPU-seconds of work that this costs, as far as known."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Let leases give way to a winner, whose grants are found already.

    The caller keeps the preemption until the winner starts or stops waiting.
    """

    winner: LeaseId
    grants: tuple[Grant, ...]
    victims: tuple[Victim, ...]
    why: str
    turn: bool = False
    """True if it is the project's turn."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Keep GPUs for a request that waits; ``start_at`` is infinite if no time limit tells the start.

    ``lease`` is empty for GPUs that the fixed quota of ``project`` is owed. ``drains``: the GPUs stay free for
    the request though nobody can foresee its start.
    """

    lease: LeaseId
    project: str
    gpus: frozenset[GpuId]
    start_at: float
    turn: bool = False
    """True if it is the project's turn."""
    rank: tuple[int, str] | None = None
    """The priority and class of the request, if it is no turn."""
    drains: bool = False

    @property
    def is_firm(self) -> bool:
        """Return True if nobody else starts on the GPUs unless it leaves in time."""
        return self.drains or not self.lease or self.start_at < NEVER


@dataclass(frozen=True, slots=True)
class PassDecision:
    """Tell why a request waits.

    ``behind``: the lease that the room is kept for, or that it waits for. ``lasting``: no end of a lease helps.
    """

    reason: WaitReason
    text: str
    behind: LeaseId | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the decisions of one pass.

    Attributes:
        grants: The grants by lease, in the order of the decisions.
        preemptions: The new ones; the caller keeps earlier ones until they are done.
        verdicts: The reason for each request that was granted nothing.
        reservations: The GPUs kept, in order.
        turns: When each project last had its turn; to be stored, and given to the next pass.
        behind: The owners of kept room, by the lease that was granted the room; to be stored with the lease.
        fixed: By project, the parts of GPUs that are kept free for its build work.
        look_again_at: When time alone may change the answer; infinite if only an event can.
    """

    grants: Mapping[LeaseId, tuple[Grant, ...]]
    preemptions: tuple[Preemption, ...]
    verdicts: Mapping[LeaseId, PassDecision]
    reservations: tuple[Reservation, ...] = ()
    turns: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[LeaseId, tuple[LeaseId, ...]] = field(default_factory=dict)
    look_again_at: float = NEVER
    fixed: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
