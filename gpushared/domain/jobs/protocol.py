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
"""An interactive job for which nobody waits any more is cancelled with these words as the canceller."""


@dataclass(frozen=True, slots=True)
class Place:
    """Run this part of an attempt. Asked again until it is answered; the answer is always the same.

    ``request`` is this node's part of what the job asks. ``wait``: let it wait in the node's own queue.
    ``gang``: only reserve, until ``Commit`` says that all the others have done so too, at most
    ``reserve_seconds``.
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
    """Ask what became of an attempt. A node that never saw the attempt refuses it for ever, and says so."""

    key: AttemptKey
    epoch: int


@dataclass(frozen=True, slots=True)
class CancelPart:
    """End it, or never begin it."""

    key: AttemptKey
    epoch: int
    grace_seconds: int = 10
    by: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """Tell each member of a gang about the others; ``hosts`` is by rank."""

    hosts: tuple[str, ...]
    rank: int
    port: int
    gpus: tuple[int, ...]
    """GPUs of each, by rank."""


@dataclass(frozen=True, slots=True)
class Commit:
    """All of the gang have their reservations: start."""

    key: AttemptKey
    epoch: int
    gang: Gang


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End it where no container of it is being made or is there: whoever asked for it is gone.

    Only for interactive jobs. Its node alone knows whether the container came first.
    """

    key: AttemptKey
    epoch: int


Order = Place | Query | CancelPart | Commit | GiveBack


@dataclass(frozen=True, slots=True)
class Report:
    """Tell how a part of an attempt stands on its node. ``revision`` rises with each change of the part.

    ``spec`` and ``request`` come with the reports of a node's registration on attempts that are under way or ended
    lately, so that a coordinator that lost its memory can make its own records again. ``committed``: the gang
    was told to start. ``started_at`` and ``ended_at`` are by the node's time of day. ``guarded``: the node
    ends the part for want of contact also while its daemon is away or hangs; older nodes do not promise that.
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
    """The report with its times by another clock."""
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
    """The order was not taken: the node has seen this higher epoch."""

    key: AttemptKey
    epoch: int
