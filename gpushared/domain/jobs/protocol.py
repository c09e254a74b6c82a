"""Define a coordinator's messages to a node (orders) and a node's messages to a coordinator (reports).

Any message may be lost, doubled, delayed or reordered. An order carries the coordinator's ``epoch``. A node
that has seen a higher epoch takes no orders of a lower one, but does answer its queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpushared.domain.jobs.job import AttemptState, Ending, JobSpec
from gpushared.domain.model.lease import AttemptKey, LeaseId
from gpushared.domain.model.request import Request

CLIENT_END = "the end of its client"
"""A job without a client is cancelled with these words as the canceller."""


@dataclass(frozen=True, slots=True)
class Place:
    """Order a node to run this part of an attempt. The order repeats until the answer, which never changes.

    ``request`` is this node's part of the job's request. ``wait``: the part may wait in the node's own queue.
    ``gang``: the node only reserves, at most for ``reserve_seconds``, until ``Commit`` says that all other
    nodes have reserved too.
    """

    key: AttemptKey
    epoch: int
    spec: JobSpec
    request: Request
    wait: bool = False
    gang: bool = False
    reserve_seconds: int = 60


@dataclass(frozen=True, slots=True)
class Query:
    """Ask for the state of an attempt. A node that never saw the attempt refuses it for ever, and says so."""

    key: AttemptKey
    epoch: int


@dataclass(frozen=True, slots=True)
class CancelPart:
    """Order a node to end the part, or never to begin it."""

    key: AttemptKey
    epoch: int
    grace_seconds: int = 10
    by: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """Describe the gang to each of its members; ``hosts`` is by rank."""

    hosts: tuple[str, ...]
    rank: int
    port: int
    gpus: tuple[int, ...]
    """The number of GPUs of each member, by rank."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Order a node to start its part: all members of the gang have their reservations."""

    key: AttemptKey
    epoch: int
    gang: Gang


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Order a node to end a part that has no container and none under way: the part's client is gone.

    The order is only for interactive jobs. The job's node alone knows whether the container came first.
    """

    key: AttemptKey
    epoch: int


Order = Place | Query | CancelPart | Commit | GiveBack


@dataclass(frozen=True, slots=True)
class Report:
    """Report the state of a part of an attempt on its node. ``revision`` rises with each change of the part.

    ``spec`` and ``request`` come with the reports of a node's registration, for attempts that are under way
    or ended lately, so that a coordinator that lost its memory can make its own records again. ``committed``:
    the gang received its start order. ``started_at`` and ``ended_at`` are by the node's time of day.
    ``guarded``: the node ends the part for want of contact also while its daemon is away or hangs; older
    nodes do not promise that.
    """

    key: AttemptKey
    state: AttemptState
    revision: int
    lease: LeaseId | None = None
    ending: Ending | None = None
    spec: JobSpec | None = None
    request: Request | None = None
    started_at: float | None = None
    committed: bool = False
    ended_at: float | None = None
    guarded: bool = False


def moved(report: Report, clock: Callable[[float], float]) -> Report:
    """Return the report with its times on another clock."""
    started_at, ended_at = report.started_at, report.ended_at
    if started_at is None and ended_at is None:
        return report
    return replace(
        report,
        started_at=None if started_at is None else clock(started_at),
        ended_at=None if ended_at is None else clock(ended_at),
    )


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """Refuse an order, because the node has seen this higher epoch."""

    key: AttemptKey
    epoch: int
