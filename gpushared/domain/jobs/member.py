"""Define a member of the pool: the coordinator's view of a node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, LeaseId


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hold a node's equipment and abilities. Containers of a gang reach each other at ``address``."""

    gpus: tuple[Gpu, ...]
    cpu_milli: int = 0
    memory_bytes: int = 0
    address: str = ""
    version: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """Record a lease on a node, of an attempt or of a local user. Its grants count in either case."""

    lease: LeaseId
    grants: tuple[Grant, ...]
    owner: str
    project: str
    exclusive: bool = False
    attempt: AttemptKey | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReport:
    """Hold a node's report on its GPUs in a heartbeat. ``waiting``: requests in the node's own queue."""

    holdings: tuple[Holding, ...] = ()
    stray_bytes: tuple[tuple[GpuId, int], ...] = ()
    troubles: tuple[tuple[GpuId, str], ...] = ()
    waiting: int = 0


class Presence(StrEnum):
    """Name the coordinator's knowledge of a node. The names are for people: silence decides nothing."""

    NEVER = "never-seen"
    """The member is enrolled, and has sent nothing since this coordinator started."""
    READY = "ready"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Member:
    """Hold a member's data. ``heard_at`` is its last message to this coordinator, None before the first.

    The node may vouch for the users of ``realms``, and always for the users of its own name. ``connected``:
    its stream is open. ``forgotten_at``: an admin stated then that the node is off.
    """

    name: NodeName
    enrolled_at: float
    realms: tuple[str, ...] = ()
    drained_by: str = ""
    drain_reason: str = ""
    inventory: Inventory | None = None
    free: HeartbeatReport = field(default_factory=HeartbeatReport)
    connected: bool = False
    heard_at: float | None = None
    silent_since: float | None = None
    refusals: int = 0
    """The node has refused this many places, one after the other."""
    queue_since: float | None = None
    """Since this time the node has reported without a break that requests wait in its own queue; None if no
    request waits."""
    forgotten_at: float | None = None
    excused: bool = False
    """A recovery goes on without this node's report, which may name attempts that no other node knows."""

    def unheard(self) -> Member:
        """Return the member without the facts from this coordinator's messages, which a restart loses."""
        return replace(
            self,
            free=HeartbeatReport(),
            connected=False,
            heard_at=None,
            silent_since=None,
            refusals=0,
            queue_since=None,
        )


@dataclass(frozen=True, slots=True)
class RefusalPause:
    """Pause a node that refused several jobs in a row: it is tried last until ``until``.

    The node is also tried last while its own users wait. ``doublings`` counts the consecutive refusals with
    the same report. ``report`` is the one that came with the newest refusal.
    """

    until: float
    doublings: int
    report: HeartbeatReport
