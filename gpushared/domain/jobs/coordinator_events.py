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
    """Somebody asks. Asked again with the same id, or with the same owner's ``request_id``: harmless.

    ``old``: it was in a node's outbox before, so that this coordinator may have known and forgotten it.
    ``past``: of the jobs that it waits for those that are over and that only the archive remembers.
    """

    job: JobId
    spec: JobSpec
    held: bool = False
    priority: int = 0
    old: bool = False
    past: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelAsked:
    job: JobId
    by: Owner
    grace_seconds: int = 10


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The process that asked for an interactive job has ended, as far as its node knows without a container.

    Said again now and then as long as that is so.
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
    """A node's stream is open. ``reports``: all attempts that it has records of, ended ones too.

    ``seen_epoch`` and ``seen_revision``: the highest of this pool that it knows of; above our own they mean
    that our memory is an old one.
    """

    node: NodeName
    inventory: Inventory
    free: HeartbeatReport
    reports: tuple[Report, ...] = ()
    seen_epoch: int = 0
    seen_revision: int = 0


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """Tell that the node lives. ``inventory`` and ``free`` are None if they are as before."""

    node: NodeName
    inventory: Inventory | None = None
    free: HeartbeatReport | None = None


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """Tell that the node's stream is closed, which says nothing about the node."""

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
    """No new work for a node (``reason`` says why), or again (None)."""

    node: NodeName
    by: Owner
    reason: str | None


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """An admin's word that a node is off and will not come back: what ran there is over.

    ``only_waive``: it only need not be waited for in the recovery after a loss of memory.
    """

    node: NodeName
    by: Owner
    only_waive: bool = False


@dataclass(frozen=True, slots=True)
class PoolDayTimeSet:
    """The time of day is so far ahead of the rules' clock now: somebody set it."""

    ahead_seconds: float


@dataclass(frozen=True, slots=True)
class PoolTick:
    """Time passed; deadlines are looked at, and orders without an answer are said again."""


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
    """Tell a node; lost where it is not connected, and said again when it is."""

    node: NodeName
    order: Order


@dataclass(frozen=True, slots=True)
class TellOrigin:
    """Tell the node through which the job came in how it stands now."""

    job: JobId


PoolInstruction = Send | TellOrigin
