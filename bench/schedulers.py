"""The schedulers that a replay compares: the project's own core, and what others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from replay import NEVER, Cluster, Job, Orders

from gpushared.domain.model.lease import (
    Grant,
    LeaseId,
)
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import (
    PendingRequest,
    Plan,
    Preemption,
    PreemptionMode,
    RunningLease,
)
from gpushared.domain.scheduling.placement.fleet_capacity import FleetCapacity
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.use_over_time import Interval, Usage

SOON = 1e-3
"""What is done at once takes a moment nevertheless."""
Key = Callable[[Job, float], tuple[float, ...]]


class InOrder:
    """Starts what fits in the order of a key; ``blocking``: nobody passes one that waits."""

    def __init__(self, cluster: Cluster, key: Key, *, blocking: bool = False) -> None:
        self._cluster = cluster
        self._key = key
        self._blocking = blocking

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders:
        places = self._cluster.places(running, waiting)
        starts: list[tuple[Job, tuple[Grant, ...]]] = []
        refused = set()
        for job in sorted(waiting, key=lambda job: self._key(job, now)):
            request = job.lease.request
            grants = () if request in refused else places.place(request)
            if grants:
                places.take(job.lease.id, request, grants)
                starts.append((job, grants))
            elif self._blocking:
                break
            else:
                refused.add(request)
        return Orders(starts)

    def ended(self, job: Job, start: float, now: float) -> None:
        pass


class Preemptive:
    """Those first in the order of a key run, and whoever stands in their way gives way, at any time.

    ``changes_at``: when a running job's key changes by itself.
    """

    def __init__(
        self, cluster: Cluster, key: Key, changes_at: Callable[[Job, float], float] = lambda *_: NEVER
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._changes_at = changes_at

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders:
        places = self._cluster.places(running, waiting)
        settled: set[LeaseId] = set()
        evicted: dict[LeaseId, Job] = {}
        starts: list[tuple[Job, tuple[Grant, ...]]] = []
        order = sorted((*running, *waiting), key=lambda job: (self._key(job, now), job.lease.sequence))
        refused = set()
        for at, job in enumerate(order):
            if job.grants and job.lease.id not in evicted:
                settled.add(job.lease.id)
                continue
            request = job.lease.request
            behind = [one for one in order[at + 1 :] if one.grants and one.lease.id not in evicted]
            if request in refused:
                continue
            grants, victims = self._room(job, behind, places)
            if not grants:
                refused.add(request)
                continue
            for one in victims:
                evicted[one.lease.id] = one
                places.give(one.lease.id, one.lease.request, one.grants)
            if not victims or job.lease.id not in evicted:
                places.take(job.lease.id, request, grants)
                starts.append((job, grants))
                settled.add(job.lease.id)
        again = min((self._changes_at(job, now) for job in running), default=NEVER)
        new = min((self._changes_at(job, now) for job, _ in starts), default=NEVER)
        return Orders(starts, list(evicted.values()), min(again, new))

    def _room(
        self, job: Job, behind: Sequence[Job], places: FleetCapacity
    ) -> tuple[tuple[Grant, ...], list[Job]]:
        """Grants, and the fewest of those behind that must go, the last in the order first."""
        request = job.lease.request
        grants = places.place(request)
        if grants:
            return grants, []
        leases = {one.lease.id: one.held for one in behind}
        if not places.place(request, gone=list(leases.values())):
            return (), []
        kept = list(behind)
        for one in behind:  # the first in the order are spared first
            fewer = [other for other in kept if other is not one]
            if places.place(request, gone=[leases[other.lease.id] for other in fewer]):
                kept = fewer
        return places.place(request, gone=[leases[one.lease.id] for one in kept]), kept

    def ended(self, job: Job, start: float, now: float) -> None:
        pass


class Core:
    """The project's own core, told everything that a node knows and nothing more: no durations."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        mode: PreemptionMode = PreemptionMode.PAUSE,
        project: Callable[[Job], str] = lambda job: job.group,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._mode = mode
        self._project = project
        self.usage = Usage(policy.half_life_seconds)
        self._turns: dict[str, float] = {}
        self._behind: dict[LeaseId, tuple[LeaseId, ...]] = {}
        self._under_way: dict[LeaseId, Preemption] = {}
        self._leaves_at: dict[LeaseId, float] = {}
        self._holders: dict[LeaseId, RunningLease] = {}
        self._index = HolderIndex(policy, cluster.places(()))

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders:
        for job in waiting:
            job.mode = self._mode
        gone = [job for job in running if self._leaves_at.get(job.lease.id, NEVER) <= now]
        stay = [job for job in running if self._leaves_at.get(job.lease.id, NEVER) > now]
        jobs = {job.lease.id: job for job in waiting}
        made = plan(
            [self._candidate(job) for job in waiting],
            self._holding(stay),
            self._cluster.places(stay, waiting),
            self.usage,
            self._policy,
            now,
            under_way=tuple(self._under_way.values()),
            turns=self._turns,
        )
        self._turns = dict(made.turns)
        self._behind |= made.behind
        self._preempt(made, jobs, now)
        starts = [(jobs[lease], grants) for lease, grants in made.grants.items()]
        for lease, verdict in made.verdicts.items():
            jobs[lease].reason = f"{verdict.reason}: {verdict.text}"
        again = min((at for at in self._leaves_at.values() if at > now), default=NEVER)
        return Orders(starts, gone, min(again, made.look_again_at))

    def _preempt(self, made: Plan, jobs: dict[LeaseId, Job], now: float) -> None:
        """Give notice to victims; forget the preemptions whose winners have started."""
        leaves_at = now + self._policy.notice_seconds + self._policy.grace_seconds
        for one in made.preemptions:
            self._under_way[one.winner] = one
            for victim in one.victims:
                self._leaves_at.setdefault(victim.lease, max(leaves_at, now + SOON))
        self._under_way = {
            winner: one
            for winner, one in self._under_way.items()
            if winner in jobs and winner not in made.grants
        }

    def _candidate(self, job: Job) -> PendingRequest:
        lease = job.lease
        if job.bound:
            gpus = tuple(grant.gpu for grant in job.bound)
            lease = replace(lease, request=replace(lease.request, gpus=gpus, host_memory_bytes=None))
        return PendingRequest(
            lease,
            self._project(job),
            self._priority(job),
            job.since,
            served=job.served,
            yields=job.mode.loses_nothing,
        )

    def _holding(self, running: Sequence[Job]) -> HolderIndex:
        """Return who holds something; what has not changed is kept from pass to pass, as in a pool."""
        wanted = {job.lease.id: self._holder(job) for job in running}
        for lease, holder in list(self._holders.items()):
            if wanted.get(lease) != holder:
                self._index.remove(lease)
                del self._holders[lease]
        for lease, holder in wanted.items():
            if lease not in self._holders:
                self._holders[lease] = holder
                self._index.add(holder)
        return self._index

    def _holder(self, job: Job) -> RunningLease:
        return RunningLease(
            job.held,
            self._project(job),
            self._priority(job),
            job.started,
            step=job.mode,
            leaving=job.lease.id in self._leaves_at,
            served=job.served,
            begun_anew=job.begun_anew,
            behind=self._behind.get(job.lease.id, ()),
        )

    def _priority(self, job: Job) -> int:
        return self._policy.classes[job.lease.request.lease_class].priority

    def ended(self, job: Job, start: float, now: float) -> None:
        self._behind.pop(job.lease.id, None)
        self._leaves_at.pop(job.lease.id, None)
        interval = Interval(self._project(job), round(job.gpus * 1000), start, now)
        self.usage = self.usage.record((interval,)).prune(now)
