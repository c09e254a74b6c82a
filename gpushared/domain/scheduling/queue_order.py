"""Order the queue.

Between projects: a request within its project's guarantee goes before all others, first that of the project
which holds the least part of its guarantee; then requests for several GPUs that have waited for
``patience_seconds`` and fit at once (``plan``); then the project with the least decayed use by weight.
Inside a project: the higher priority, then the class, then the older request. Besides, once every
``patience_seconds`` a project's next turn is its request that has waited longest, whatever its priority, if
that request has waited longer than that: so priority orders a project's queue but never stops a request in
it for good.

Requests of one project that ask for the same are one *line*: a refusal to the first holds for all behind it in
the same pass, so a pass costs by line and not by request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import attrgetter

from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PassDecision,
    PendingRequest,
    WaitReason,
)
from gpushared.domain.scheduling.projects import Policy

Rank = tuple[int, int, int]


@dataclass(slots=True)
class RequestLine:
    """Hold requests of one project that ask for the same with the same priority, the oldest first."""

    project: str
    candidates: deque[PendingRequest]
    order: int

    @property
    def rank(self) -> Rank:
        first = self.candidates[0]
        return (-first.priority, self.order, first.lease.sequence)


@dataclass(slots=True)
class ProjectQueue:
    """Hold the waiting requests of one project: lines by rank, and its next turn if one is due."""

    heap: list[tuple[Rank, int, RequestLine]] = field(default_factory=list)
    dropped: list[tuple[Rank, int, RequestLine]] = field(default_factory=list)
    turn: PendingRequest | None = None
    turn_due_at: float = NEVER

    def first(self) -> RequestLine | None:
        return self.heap[0][2] if self.heap else None

    def advance(self) -> None:
        """Drop the first request, which is decided; the next of its line takes its rank."""
        _, number, line = heappop(self.heap)
        line.candidates.popleft()
        if line.candidates:
            heappush(self.heap, (line.rank, number, line))

    def drop(self) -> RequestLine:
        """Drop the first line, which is refused as a whole."""
        self.dropped.append(heappop(self.heap))
        return self.dropped[-1][2]

    def lines(self) -> Iterable[RequestLine]:
        """Return all lines, the dropped ones too, in no order."""
        return (line for _, _, line in (*self.heap, *self.dropped))

    def restore(self) -> None:
        """Take the dropped lines back."""
        self.heap += self.dropped
        self.dropped = []
        heapify(self.heap)

    def find_turn(self, last_turn_at: float, policy: Policy, now: float) -> None:
        """Find the request whose turn it is, or when that will be."""
        self.turn, self.turn_due_at = None, NEVER
        if not self.heap:
            return
        longest = min(
            (min(line.candidates, key=attrgetter("since")) for _, _, line in self.heap),
            key=attrgetter("since", "lease.sequence"),
        )
        self.turn_due_at = policy.patience_seconds + max(longest.since, last_turn_at)
        self.turn = longest if self.turn_due_at <= now else None


@lru_cache(maxsize=4096)
def shared(request: Request) -> Request:
    """Return one object for all equal requests, by which a pass knows them at once."""
    return request


def reason_to_hold_back(candidate: PendingRequest, now: float) -> PassDecision | None:
    """Return why the pass may not look at a request yet, or None if it may."""
    if candidate.is_held:
        return PassDecision(WaitReason.HELD, "is held back until somebody unholds it")
    if candidate.begin_at is not None and now < candidate.begin_at:
        return PassDecision(WaitReason.BEGIN_TIME, "is not to begin yet")
    if candidate.after:
        return PassDecision(
            WaitReason.AFTER_LEASE, f"waits for the end of {', '.join(candidate.after)}", candidate.after[0]
        )
    return None


def project_queues(
    ready: Iterable[PendingRequest], policy: Policy, turns: Mapping[str, float], now: float
) -> dict[str, ProjectQueue]:
    """Return the waiting requests as one queue for each project."""
    lines: dict[tuple[str, int, Request], RequestLine] = {}
    by_identity: dict[tuple[str, int, int], RequestLine] = {}
    for candidate in ready:
        request = candidate.lease.request
        identity = (candidate.project, candidate.priority, id(request))
        line = by_identity.get(identity)
        if line is None:
            order = policy.classes[request.lease_class].order
            key = (candidate.project, candidate.priority, request)
            line = lines.setdefault(key, RequestLine(candidate.project, deque(), order))
            by_identity[identity] = line
        line.candidates.append(candidate)
    queues: dict[str, ProjectQueue] = {}
    for number, line in enumerate(lines.values()):
        queues.setdefault(line.project, ProjectQueue()).heap.append((line.rank, number, line))
    for project, queue in queues.items():
        heapify(queue.heap)
        queue.find_turn(turns.get(project, -NEVER), policy, now)
    return queues
