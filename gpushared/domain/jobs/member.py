"""A member of the pool: a node as its coordinator knows it, and since when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, LeaseId


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hold a node's equipment and abilities. ``address``: containers of a gang reach each other there."""

    gpus: tuple[Gpu, ...]
    cpu_milli: int = 0
    memory_bytes: int = 0
    address: str = ""
    version: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease on a node, of an attempt or of a local user: what it holds counts wherever it came from."""

    lease: LeaseId
    grants: tuple[Grant, ...]
    owner: str
    project: str
    exclusive: bool = False
    attempt: AttemptKey | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReport:
    """Hold a node's report on its GPUs in a beat. ``waiting``: requests in the node's own queue."""

    holdings: tuple[Holding, ...] = ()
    stray_bytes: tuple[tuple[GpuId, int], ...] = ()
    troubles: tuple[tuple[GpuId, str], ...] = ()
    waiting: int = 0


class Presence(StrEnum):
    """Name the coordinator's knowledge of a node. The names are for people: silence decides nothing."""

    NEVER = "never-seen"
    """Enrolled, but not heard of since this coordinator started."""
    READY = "ready"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Member:
    """``heard_at``: the last word of it in this coordinator's life, None = none yet.

    ``realms``: whose users it may vouch for; its own name always. ``connected``: its stream is open.
    ``forgotten_at``: an admin gave their word that it is off.
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
    """Since when it has said without a break that requests wait in its own queue; None = none do."""
    forgotten_at: float | None = None
    excused: bool = False
    """A recovery goes on without this node's report, which may tell of attempts that nobody else knows."""

    def unheard(self) -> Member:
        """Return the member without the facts that a coordinator has from hearing the node, and loses."""
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
    """A node that refused several jobs in a row is tried last until then, and while its own users wait there.

    ``doublings``: how often in a row it refused by the same words. ``said``: those of the newest refusal.
    """

    until: float
    doublings: int
    said: HeartbeatReport
