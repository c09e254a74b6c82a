"""What a pass over the queue looks at, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.gpu import GpuId
from gpushared.domain.lease import Grant, Lease, LeaseId

NEVER = float("inf")


class WaitReason(StrEnum):
    """Why a request waits: one code for programs, a sentence beside it for people."""

    RESOURCES = "resources"
    """No room; which kind of room is missing is for the places to say."""
    QUEUE_ORDER = "queue_order"
    """The room is kept for a request that waits longer."""
    CLASS_ORDER = "class_order"
    """The room is kept for a request of the same project that goes first."""
    FAIR_SHARE = "fair_share"
    """The room is kept for a project that used less."""
    FIXED_QUOTA = "fixed_quota"
    """The room is kept for a project's build work."""
    PROJECT_QUOTA = "project_quota"
    """Its class never gives way and it is more than its project is guaranteed."""
    PROJECT_LIMIT = "project_limit"
    """Its project holds as much as it ever may."""
    POOL_ALLOWANCE = "pool_allowance"
    """This node may give no more by itself of what its project may hold in the pool."""
    PREEMPTING = "preempting"
    """Leases are giving way to it."""
    BEGIN_TIME = "begin_time"
    AFTER_LEASE = "after_lease"
    HELD = "held"


class Ladder(StrEnum):
    """How a lease gives way, gentlest first."""

    PAUSE = "pause"
    """Its container stays, frozen, and its GPU memory is given back."""
    NOTIFY = "notify"
    """It is told, saves itself and ends within the notice; asked again later."""
    REQUEUE = "requeue"
    """It is stopped and starts again from its beginning or its last save."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting lease.

    ``since``: when it began to wait, which after a preemption is not when it was asked for.
    ``after``: leases that are not over yet, whose end it waits for. ``begin_at``: not before that time.
    """

    lease: Lease
    project: str
    priority: int
    since: float
    held: bool = False
    begin_at: float | None = None
    after: tuple[LeaseId, ...] = ()
    served: float = 0.0
    """GPU-seconds that it held before it was preempted."""
    yields: bool = False
    """It loses little when it is taken off again: it may use what is kept for others until they start."""
    draws_on: str = ""
    """The pool's project whose share of a limit on this node it counts to."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease that holds parts of GPUs.

    ``started_at``: since when. ``saved_at``: up to when its work would survive a stop; None = not at all.
    ``leaving``: it is on its way out already, whatever for, and cannot be preempted once more.
    """

    lease: Lease
    project: str
    priority: int
    started_at: float
    saved_at: float | None = None
    step: Ladder = Ladder.REQUEUE
    leaving: bool = False
    served: float = 0.0
    """GPU-seconds that it held before this run."""
    behind: tuple[LeaseId, ...] = ()
    """The waiting leases that its GPUs were kept for when it was granted: it goes when one can start."""
    stays: bool = False
    """Whoever decides here cannot take it back: it belongs to somebody else's queue."""
    draws_on: str = ""


@dataclass(frozen=True, slots=True)
class Victim:
    """A lease that gives way, and how."""

    lease: LeaseId
    step: Ladder
    lost_seconds: float
    """GPU-seconds of work that this costs, as far as known."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Leases give way to a winner, whose grants are found already; kept until it starts or stops waiting."""

    winner: LeaseId
    grants: tuple[Grant, ...]
    victims: tuple[Victim, ...]
    why: str
    turn: bool = False
    """Whether it is its project's turn."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs kept for a request that waits; ``start_at`` is infinite where no time limit tells.

    ``lease`` is empty for what is owed to the fixed quota of ``project``.
    """

    lease: LeaseId
    project: str
    gpus: frozenset[GpuId]
    start_at: float
    turn: bool = False
    """Whether it is its project's turn."""
    rank: tuple[int, str] | None = None
    """Priority and class of the request, where it is no turn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a request waits; ``behind``: the lease that the room is kept for, or that it waits for."""

    reason: WaitReason
    text: str
    behind: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass decided.

    Attributes:
        grants: By lease, in the order of the decisions.
        preemptions: New ones; those before are kept by the caller until they are done.
        verdicts: Why each request waits that was granted nothing.
        reservations: The GPUs kept, in order.
        turns: When each project last had its turn; to be stored, and given to the next pass.
        behind: Of those granted room that is kept for others, for whom; to be stored with the lease.
        fixed: By project, the parts of GPUs that are kept free for its build work.
        look_again_at: When time alone may change the answer; infinite where only an event can.
    """

    grants: Mapping[LeaseId, tuple[Grant, ...]]
    preemptions: tuple[Preemption, ...]
    verdicts: Mapping[LeaseId, Verdict]
    reservations: tuple[Reservation, ...] = ()
    turns: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[LeaseId, tuple[LeaseId, ...]] = field(default_factory=dict)
    look_again_at: float = NEVER
    fixed: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
