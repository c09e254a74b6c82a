"""Choose the leases that give way to a request, at the least cost.

A request may take GPUs back by one of these rights:

- *idle*: from leases that were lowered because they do nothing on their GPUs.
- *claim*: its project is below its guarantee. From leases over quota in other projects.
- *priority*: from leases of its own project with a lower priority.
- *class*: from leases of a class that gives way to all and goes after its own.
- *kept*: from leases that were granted what was kept for it, on condition that they leave.
- *turn*: it is its project's turn. From leases over quota of projects that used more, if they held their
  GPUs for a turn and their class does not go before its own.
- *home*: the same, from leases of its own project with the same or a lower priority.
- *share*: its project holds less than its fair share, and it waited for a quarter of the patience. From
  leases over quota of projects that used more and hold more than their fair share.

No lease is preempted before the least run time of its class, which doubles each time that the lease lost its
work. Nor does a lease lose its work to a *claim* or a *priority* before the request has waited for a quarter of
that work, or of the patience, nor to a *priority* once the work is that of a long run. Nor does a turn give way
to its own project before it has lasted ``turn_seconds``. A lease that would lose its work gives way to no
*turn*, *home* or *share*, nor to a priority that is higher only because it runs long; with ``lossless_only`` it
gives way to nobody. Unless it is idle, no lease is preempted by its own project at a higher priority, nor while
its GPUs are guaranteed to its project, except by *priority*, *class* and *home*; and a class that never gives
way never does. And no lease is preempted unless the winner then has a place.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

from gpushared.domain.model.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.long_runs import named_priority
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PendingRequest,
    PreemptionMode,
    RunningLease,
    Victim,
)
from gpushared.domain.scheduling.projects import GivesWay, Policy
from gpushared.domain.scheduling.quota_usage import QuotaUsage
from gpushared.domain.scheduling.reservation import HOSTS_LOOKED_AT, HostIndex

PAUSE_SECONDS = 60.0
"""Pausing and resuming cost so many seconds of the lease's GPUs."""
NOTIFY_SHARE = 0.5
"""A lease that is told may save itself; so much of its work is taken as lost."""
EACH_VICTIM_SECONDS = 60.0
"""Each victim costs so much besides, because somebody is disturbed."""
SHARE_RUN_SECONDS = 600.0
"""A lease runs at least so long before a user who holds less than a fair share may take its GPUs."""
PATIENCE_PART = 0.25
"""A *share* takes GPUs once the request has waited for this part of the patience."""
CLAIM_WAIT = 0.25
"""A *claim* or a *priority* makes work lost once the request has waited for this part of the work, or as long as
for a *share*: meanwhile another lease may end. In a replay of real leases of which none could be saved
(bench/README.md), claims threw away 2 % of the GPU hours instead of 10 %."""
EXACT_UP_TO = 5
"""So many leases on one GPU are tried in all combinations."""


class PreemptionReason(StrEnum):
    """Name the right by which a request may take GPUs back."""

    IDLE = "idle"
    CLAIM = "claim"
    PRIORITY = "priority"
    CLASS = "class"
    KEPT = "kept"
    TURN = "turn"
    HOME = "home"
    SHARE = "share"


WHY = {
    PreemptionReason.IDLE: "nothing has been done there for long",
    PreemptionReason.CLAIM: "its project is guaranteed the room",
    PreemptionReason.PRIORITY: "its priority in the project is higher",
    PreemptionReason.CLASS: "its class goes before best effort",
    PreemptionReason.KEPT: "the room was kept for it",
    PreemptionReason.TURN: "it waited longest in its project and others had their turn",
    PreemptionReason.HOME: "it waited longest in its project",
    PreemptionReason.SHARE: "others hold more than their share, and lose nothing by waiting",
}


class PreemptionRules:
    """Decide which requests may preempt which leases, by the quota usage at each moment of a pass."""

    def __init__(
        self, policy: Policy, quota_usage: QuotaUsage, turns: Mapping[str, float], now: float
    ) -> None:
        """Take ``turns``: when each project last had its turn."""
        self.policy = policy
        self.quota_usage = quota_usage
        self.turns = turns
        self.now = now
        self._over_quota: tuple[int, list[RunningLease]] = (-1, [])
        self._lossless: tuple[int, list[RunningLease]] = (-1, [])
        """The holders, and the version of the holder index that they were found in."""

    def over_quota(self) -> list[RunningLease]:
        """Return the leases that may have to give way to a claim or a turn, kept until something changes."""
        holder_index = self.quota_usage.holder_index
        if self._over_quota[0] != holder_index.version:
            holders = (holder for project in holder_index.projects() for holder in holder_index.of(project))
            self._over_quota = holder_index.version, [holder for holder in holders if self._may_lose(holder)]
        return self._over_quota[1]

    def may_preempt(self, winner: PendingRequest) -> bool:
        """Return True if any lease could have to give way without a claim or a turn."""
        holder_index = self.quota_usage.holder_index
        return (
            bool(holder_index.best_effort or holder_index.behind(winner.lease.id))
            or holder_index.lowest_priority(winner.project, sys.maxsize) < named_priority(winner)
            or (self._is_below_share(winner) and bool(self.lossless()))
        )

    def lossless(self) -> list[RunningLease]:
        """Return those of ``over_quota`` that lose nothing by giving way."""
        holder_index = self.quota_usage.holder_index
        if self._lossless[0] != holder_index.version:
            lossless = [holder for holder in holder_index.lossless.values() if self._may_lose(holder)]
            self._lossless = holder_index.version, lossless
        return self._lossless[1]

    def _may_lose(self, holder: RunningLease) -> bool:
        """Return True if the lease is over quota, and of a class that ever gives way."""
        rules = self.policy.classes[holder.lease.request.lease_class]
        return rules.gives_way is not GivesWay.NEVER and self.quota_usage.over_quota(holder)

    def _is_below_share(self, winner: PendingRequest) -> bool:
        """Return True if the winner's project holds less than its fair share."""
        return self.quota_usage.held(winner.project) < self.quota_usage.fair_share(winner.project)

    def eligible(
        self, winner: PendingRequest, *, claim: bool, turn: bool
    ) -> tuple[dict[LeaseId, tuple[RunningLease, PreemptionReason]], float]:
        """Return the leases that the winner may preempt, by id, and when the next one may be.

        The time is infinite if no other lease may be.
        """
        preemptible: dict[LeaseId, tuple[RunningLease, PreemptionReason]] = {}
        next_at = NEVER
        over_quota = self.over_quota() if claim else self.lossless()
        holder_index = self.quota_usage.holder_index
        behind = holder_index.behind(winner.lease.id).values()
        for holder in (
            *holder_index.of(winner.project),
            *holder_index.best_effort.values(),
            *behind,
            *over_quota,
        ):
            right = self.right(winner, holder, claim=claim, turn=turn)
            if right is None:
                continue
            free_from = self.free_from(winner, holder, right)
            if free_from <= self.now:
                preemptible[holder.lease.id] = (holder, right)
            else:
                next_at = min(next_at, free_from)
        return preemptible, next_at

    def right(
        self, winner: PendingRequest, holder: RunningLease, *, claim: bool, turn: bool
    ) -> PreemptionReason | None:
        """Return the right by which the winner may take this lease's GPUs, the least run time aside."""
        rules = self.policy.classes[holder.lease.request.lease_class]
        if (
            holder.leaving
            or holder.stays
            or (rules.gives_way is GivesWay.NEVER and not holder.lease.idleness.is_preemptible)
        ):
            return None
        if self.policy.lossless_only and not holder.step.loses_nothing:
            return None
        if winner.lease.id in holder.behind:
            return PreemptionReason.KEPT
        if holder.lease.idleness.is_preemptible:
            return PreemptionReason.IDLE
        if holder.project == winner.project:
            return _right_at_home(winner, holder, turn=turn)
        winner_class = self.policy.classes[winner.lease.request.lease_class]
        if rules.gives_way is GivesWay.ALWAYS and winner_class.order < rules.order:
            return PreemptionReason.CLASS
        if claim:
            return PreemptionReason.CLAIM if self.quota_usage.over_quota(holder) else None
        later_class = winner_class.order <= rules.order or holder.sunk > 0
        return self._right_by_use(winner, holder, turn=turn) if later_class else None

    def _right_by_use(
        self, winner: PendingRequest, holder: RunningLease, *, turn: bool
    ) -> PreemptionReason | None:
        """Return the right by which the winner may take GPUs of a project that used more."""
        quota_usage = self.quota_usage
        if not holder.step.loses_nothing or not quota_usage.over_quota(holder):
            return None
        if quota_usage.fair(holder.project) <= quota_usage.fair(winner.project):
            return None
        if self._is_below_share(winner) and quota_usage.keeps_share((holder,)):
            return PreemptionReason.SHARE
        return PreemptionReason.TURN if turn else None

    def may_go_together(
        self, victims: Sequence[RunningLease], rights: Mapping[LeaseId, tuple[RunningLease, PreemptionReason]]
    ) -> bool:
        """Return True if every project keeps its guarantees, and its fair share, when all these leases go."""
        over_quota: dict[str, list[RunningLease]] = defaultdict(list)
        above_share: dict[str, list[RunningLease]] = defaultdict(list)
        for holder in victims:
            right = rights[holder.lease.id][1]
            if right in (PreemptionReason.CLAIM, PreemptionReason.TURN, PreemptionReason.SHARE):
                over_quota[holder.project].append(holder)
            if right is PreemptionReason.SHARE:
                above_share[holder.project].append(holder)
        return all(self.quota_usage.may_lose(holders) for holders in over_quota.values()) and all(
            self.quota_usage.keeps_share(holders) for holders in above_share.values()
        )

    def free_from(self, winner: PendingRequest, holder: RunningLease, right: PreemptionReason) -> float:
        """Return from when on the winner may preempt the lease by that right; infinite if never."""
        if right is PreemptionReason.KEPT:
            return holder.started_at
        least = self.policy.classes[holder.lease.request.lease_class].min_run_seconds
        waited_at, longest_wait_seconds = winner.since, PATIENCE_PART * self.policy.patience_seconds
        if not holder.step.loses_nothing:
            least *= 2**holder.begun_anew
            if right in (PreemptionReason.CLAIM, PreemptionReason.PRIORITY):
                unsaved_seconds = max(0.0, winner.since - unsaved_since(holder))
                waited_at += min(CLAIM_WAIT * unsaved_seconds, longest_wait_seconds)
        at_home = right in (PreemptionReason.PRIORITY, PreemptionReason.HOME)
        if right is PreemptionReason.TURN or (at_home and self._has_the_turn(holder)):
            least = max(least, self.policy.turn_seconds)
        if right is PreemptionReason.SHARE:
            least = max(least, SHARE_RUN_SECONDS)
            waited_at += longest_wait_seconds
        free_from = max(holder.started_at + least, waited_at)
        at = max(free_from, self.now)
        if right is PreemptionReason.PRIORITY and loses_long_run(holder, at, self.policy):
            return NEVER
        return free_from

    def _has_the_turn(self, holder: RunningLease) -> bool:
        """Return True if its project's last turn went to the lease: the oldest of those that started then."""
        started_at = self.turns.get(holder.project)
        if holder.started_at != started_at:
            return False
        return all(
            rival.started_at != started_at or holder.lease.sequence <= rival.lease.sequence
            for rival in self.quota_usage.holder_index.of(holder.project)
        )


def _right_at_home(winner: PendingRequest, holder: RunningLease, *, turn: bool) -> PreemptionReason | None:
    """Return the right by which the winner may take GPUs of its own project.

    A lease that would lose its work has a lower priority only if it would have one without its long run.
    """
    if holder.step.loses_nothing:
        if holder.priority < winner.priority:
            return PreemptionReason.PRIORITY
        return PreemptionReason.HOME if turn and holder.priority == winner.priority else None
    lower = named_priority(holder) < named_priority(winner) and holder.priority < winner.priority
    return PreemptionReason.PRIORITY if lower else None


@dataclass(frozen=True, slots=True)
class Victims:
    """Hold victims, and the grants that the winner has without them."""

    holders: tuple[RunningLease, ...]
    grants: tuple[Grant, ...]
    rights: frozenset[PreemptionReason]

    @property
    def why(self) -> str:
        """Return the weakest right that was needed."""
        return WHY[max(self.rights, key=list(PreemptionReason).index)]


def unsaved_since(holder: RunningLease) -> float:
    """Return the time since which the lease's work would be lost, without a notice."""
    return holder.started_at if holder.saved_at is None else holder.saved_at


def loses_long_run(holder: RunningLease, at: float, policy: Policy) -> bool:
    """Return True if the lease would lose the work of a long run by giving way at that time."""
    if holder.step.loses_nothing:
        return False
    long_run_seconds = policy.classes[holder.lease.request.lease_class].long_run_seconds
    return long_run_seconds is not None and at - unsaved_since(holder) > long_run_seconds


def lost_seconds(holder: RunningLease, now: float) -> float:
    """Return the GPU-seconds of work that preempting this lease costs."""
    gpus = sum(grant.compute_permille for grant in holder.lease.grants) / WHOLE_PERMILLE
    if holder.lease.idleness.is_preemptible:
        return gpus * PAUSE_SECONDS  # no work is under way
    unsaved = max(0.0, now - unsaved_since(holder))
    match holder.step:
        case PreemptionMode.PAUSE:
            return gpus * PAUSE_SECONDS
        case PreemptionMode.NOTIFY:
            return gpus * max(PAUSE_SECONDS, unsaved * NOTIFY_SHARE)
        case PreemptionMode.REQUEUE | PreemptionMode.STOP:
            return gpus * max(PAUSE_SECONDS, unsaved)


def victim(holder: RunningLease, now: float) -> Victim:
    return Victim(holder.lease.id, holder.step, lost_seconds(holder, now))


def memory_left(holders: Iterable[RunningLease]) -> int:
    """Return the bytes of the host's memory that these leases still hold when they have given way."""
    paused = (holder.lease.request for holder in holders if holder.step is PreemptionMode.PAUSE)
    return sum(request.host_memory_bytes or 0 for request in paused)


def _beside(victims: Collection[RunningLease], request: Request) -> Request:
    """Return the request with the memory that the victims leave on the host, which the winner cannot have."""
    if not request.host_memory_bytes:
        return request
    return replace(request, host_memory_bytes=request.host_memory_bytes + memory_left(victims))


def cheapest(
    request: Request,
    may_go: Mapping[LeaseId, tuple[RunningLease, PreemptionReason]],
    index: HostIndex,
    capacity: CapacityPort,
    closed: Collection[GpuId],
    rules: PreemptionRules,
) -> Victims | None:
    """Return the cheapest victims after which the request has a place; None if there are none.

    The result is exact for one GPU with few leases; else each victim is at least needed. Ties go to the
    leases that started last.
    """
    now = rules.now
    by_host: dict[str, list[RunningLease]] = defaultdict(list)
    for holder in sorted((holder for holder, _ in may_go.values()), key=_by_age):
        for host in index.hosts_of(holder):
            by_host[host].append(holder)
    best: tuple[tuple[float, float], Victims] | None = None
    for host in _likely(by_host):
        for victims in _sets_on(host, by_host[host], request, capacity, closed, now):
            if not rules.may_go_together(victims, may_go):
                continue
            gone = [holder.lease for holder in victims]
            grants = capacity.place(_beside(victims, request), gone=gone, closed=closed, host=host)
            price = _price(victims, now)
            if grants and (best is None or price < best[0]):
                rights = frozenset(may_go[holder.lease.id][1] for holder in victims)
                best = price, Victims(tuple(victims), grants, rights)
    return None if best is None else best[1]


def _by_age(holder: RunningLease) -> tuple[int, str]:
    """Return a sort key that does not depend on the order in which the leases came to be known."""
    return holder.lease.sequence, holder.lease.id


def _price(victims: Sequence[RunningLease], now: float) -> tuple[float, float]:
    lost = sum(lost_seconds(holder, now) + EACH_VICTIM_SECONDS for holder in victims)
    return lost, -sum(holder.started_at for holder in victims)


def _likely(by_host: dict[str, list[RunningLease]]) -> list[str]:
    """Return all of a few hosts; of many hosts, those where the most may go."""
    if len(by_host) <= HOSTS_LOOKED_AT:
        return sorted(by_host)
    sizes = {
        host: sum(grant.compute_permille for holder in holders for grant in holder.lease.grants)
        for host, holders in by_host.items()
    }
    return sorted(by_host, key=lambda host: (-sizes[host], host))[:HOSTS_LOOKED_AT]


def _sets_on(
    host: str,
    holders: list[RunningLease],
    request: Request,
    capacity: CapacityPort,
    closed: Collection[GpuId],
    now: float,
) -> Iterable[list[RunningLease]]:
    """Yield sets of victims on a host: those of the cheapest GPUs together, and all that are needed."""

    def fits(victims: Collection[RunningLease]) -> bool:
        gone = [holder.lease for holder in victims]
        return bool(capacity.place(_beside(victims, request), gone=gone, closed=closed, host=host))

    if not fits(holders):
        return
    count = len(request.gpus) or request.gpu_count
    on_each = [
        victims
        for gpu in (request.gpus or capacity.gpus_of(host))
        if gpu not in closed and (victims := _on_gpu(gpu, host, holders, request, capacity, now)) is not None
    ]
    on_each.sort(key=lambda victims: _price(victims, now))
    together = {holder.lease.id: holder for victims in on_each[:count] for holder in victims}
    if together and fits(together.values()):
        yield _needed(list(together.values()), fits, now)
    yield _needed(holders, fits, now)


def _on_gpu(
    gpu: GpuId, host: str, holders: list[RunningLease], request: Request, capacity: CapacityPort, now: float
) -> list[RunningLease] | None:
    """Return the cheapest victims on one GPU; None if all of them would not do."""
    on_gpu = [holder for holder in holders if any(grant.gpu == gpu for grant in holder.lease.grants)]
    pinned = replace(request, gpus=(gpu,), gpu_count=1)

    def fits(victims: Collection[RunningLease]) -> bool:
        gone: list[Lease] = [holder.lease for holder in victims]
        return bool(capacity.place(_beside(victims, pinned), gone=gone, host=host))

    if not fits(on_gpu):
        return None
    if len(on_gpu) > EXACT_UP_TO:
        return _needed(on_gpu, fits, now)
    subsets = [list(subset) for size in range(len(on_gpu) + 1) for subset in combinations(on_gpu, size)]
    subsets.sort(key=lambda subset: _price(subset, now))
    return next(subset for subset in subsets if fits(subset))


def _needed(
    holders: list[RunningLease], fits: Callable[[Collection[RunningLease]], bool], now: float
) -> list[RunningLease]:
    """Return the holders without those that need not go, the dearest of them spared first."""
    needed = list(holders)
    for holder in sorted(holders, key=lambda holder: _price((holder,), now), reverse=True):
        fewer = [other for other in needed if other is not holder]
        if fits(fewer):
            needed = fewer
    return needed
