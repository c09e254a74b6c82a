"""Define a coordinator's events, and the instructions to its daemon that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.jobs.job import (
    Job,
    JobSpec,
    NodeName,
    Owner,
)
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.lease import JobId

# --- events: from users --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """Submit a job. A repetition with the same id, or with the same owner's ``request_id``, is harmless.

    ``old`` says that the job was in a node's outbox before, so that this coordinator may have known and
    forgotten the job. ``past`` holds the finished jobs that this job waits for and that only the archive
    remembers. ``kept_seconds`` is how long the node says that it kept the job before.
    """

    job: JobId
    spec: JobSpec
    held: bool = False
    priority: int = 0
    old: bool = False
    past: tuple[Job, ...] = ()
    kept_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CancelAsked:
    job: JobId
    by: Owner
    grace_seconds: int = 10


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Report that the client of an interactive job has ended, and that its node knows of no container.

    The node repeats this event now and then, as long as it is true.
    """

    job: JobId
    by: Owner


@dataclass(frozen=True, slots=True)
class JobHoldAsked:
    job: JobId
    by: Owner
    held: bool


@dataclass(frozen=True, slots=True)
class JobPriorityAsked:
    job: JobId
    by: Owner
    priority: int


# --- events: from nodes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    """Report that a node's stream is open. ``reports`` covers all recorded attempts, ended ones too.

    ``seen_epoch`` and ``seen_revision`` are the highest of this pool that the node knows; values above our
    own mean that our memory is an old one.
    """

    node: NodeName
    inventory: Inventory
    free: HeartbeatReport
    reports: tuple[Report, ...] = ()
    seen_epoch: int = 0
    seen_revision: int = 0


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """Report that the node lives. ``inventory`` and ``free`` are None if they are as before."""

    node: NodeName
    inventory: Inventory | None = None
    free: HeartbeatReport | None = None


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """Report that the node's stream is closed, which proves nothing about the node."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class AttemptReported:
    node: NodeName
    report: Report | StaleEpoch


# --- events: from admins -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeEnrolled:
    node: NodeName
    realms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDrainAsked:
    """Stop new work for a node (``reason`` says why), or allow it again (``reason`` is None)."""

    node: NodeName
    by: Owner
    reason: str | None


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """Report an admin's statement that a node is off for good: its attempts are over.

    ``only_waive`` says only that the recovery after a loss of memory need not wait for the node.
    """

    node: NodeName
    by: Owner
    only_waive: bool = False


@dataclass(frozen=True, slots=True)
class PoolDayTimeSet:
    """Report that the time of day is now ahead of the rules' clock by this much, because somebody set it."""

    ahead_seconds: float


@dataclass(frozen=True, slots=True)
class PoolTick:
    """Report that time passed: deadlines are checked, and orders without an answer are sent again."""


PoolEvent = (
    JobSubmitted
    | CancelAsked
    | ClientGone
    | JobHoldAsked
    | JobPriorityAsked
    | NodeRegistered
    | NodeHeartbeat
    | NodeDisconnected
    | AttemptReported
    | NodeEnrolled
    | NodeDrainAsked
    | NodeForgotten
    | PoolDayTimeSet
    | PoolTick
)

# --- instructions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a node. The order is lost if the node is not connected, and sent again when it is."""

    node: NodeName
    order: Order


@dataclass(frozen=True, slots=True)
class TellOrigin:
    """Report the job's current state to the node through which the job came in."""

    job: JobId


PoolInstruction = Send | TellOrigin
