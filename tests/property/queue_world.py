"""A node's part of the queue policy: what is journaled, what time does, and notice before anybody leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    LeaseId,
    Queued,
    Reserved,
)
from gpushared.domain.model.request import Isolation, LeaseClass, Request
from gpushared.domain.scheduling.host_capacity import HostCapacity
from gpushared.domain.scheduling.pass_records import (
    PendingRequest,
    Plan,
    Preemption,
    PreemptionMode,
    RunningLease,
)
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacities, free_capacities
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.use_over_time import Interval, Usage

SIZE = 80_000 * MIB
START = 1_800_000_000.0


def request_of(
    permille: int, gpus: int, lease_class: LeaseClass, time_limit_seconds: int | None = None
) -> Request:
    return Request(
        gpu_count=gpus,
        compute_permille=permille,
        memory_permille=permille,
        isolation=Isolation.EXCLUSIVE if permille == 1000 else Isolation.SHARED,
        lease_class=lease_class,
        time_limit_seconds=time_limit_seconds,
    )


@dataclass
class QueueWorld:
    """Hosts of GPUs, who waits and who holds; ``decide`` runs a pass and does what it says."""

    policy: Policy
    hosts: tuple[int, ...]
    now: float = START
    waiting: dict[LeaseId, PendingRequest] = field(default_factory=dict)
    holders: dict[LeaseId, RunningLease] = field(default_factory=dict)
    under_way: dict[LeaseId, Preemption] = field(default_factory=dict)
    leaves_at: dict[LeaseId, float] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    usage: Usage = field(default_factory=lambda: Usage(86400.0))
    ended: list[Interval] = field(default_factory=list)
    count: int = 0
    step: PreemptionMode = PreemptionMode.REQUEUE
    """All leases give way so."""

    def copy(self) -> QueueWorld:
        """The same world, to try things in."""
        return replace(
            self,
            waiting=dict(self.waiting),
            holders=dict(self.holders),
            under_way=dict(self.under_way),
            leaves_at=dict(self.leaves_at),
            turns=dict(self.turns),
            ended=list(self.ended),
        )

    def gpus(self) -> dict[str, list[Gpu]]:
        return {
            f"host{at}": [Gpu(GpuId(f"{at}-{n}"), n, "H100", SIZE, SIZE) for n in range(count)]
            for at, count in enumerate(self.hosts)
        }

    def capacities(self, leases: Iterable[Lease]) -> FreeCapacities:
        return free_capacities((gpu for gpus in self.gpus().values() for gpu in gpus), leases, {})

    def places(self, leases: Iterable[Lease]) -> HostCapacity:
        capacities = self.capacities(leases)
        return HostCapacity(
            {host: {gpu.id: capacities[gpu.id] for gpu in gpus} for host, gpus in self.gpus().items()}
        )

    def submit(self, project: str, request: Request, priority: int | None = None) -> LeaseId:
        self.count += 1
        name = LeaseId(f"l-{self.count:05d}")
        lease = Lease(name, self.count, request, 1000, project, self.now, Queued(self.now), name)
        rank = self.policy.classes[request.lease_class].priority if priority is None else priority
        self.waiting[name] = PendingRequest(lease, project, rank, self.now, yields=self.count % 3 == 0)
        return name

    def pass_(self) -> Plan:
        """What a pass decides now; nothing changes."""
        return plan(
            list(self.waiting.values()),
            list(self.holders.values()),
            self.places(one.lease for one in self.holders.values()),
            self.usage,
            self.policy,
            self.now,
            under_way=tuple(self.under_way.values()),
            turns=self.turns,
        )

    def decide(self) -> Plan:
        """Run a pass and do what it says: grants at once, victims get their notice."""
        made = self.pass_()
        for lease, grants in made.grants.items():
            self._start(self.waiting.pop(lease), grants, made.behind.get(lease, ()))
            self.under_way.pop(lease, None)
        for one in made.preemptions:
            self.under_way[one.winner] = one
            for victim in one.victims:
                if victim.lease not in self.leaves_at:
                    self.leaves_at[victim.lease] = (
                        self.now + self.policy.notice_seconds + self.policy.grace_seconds
                    )
                    self.holders[victim.lease] = replace(self.holders[victim.lease], leaving=True)
        self.turns = dict(made.turns)
        return made

    def _start(self, one: PendingRequest, grants: tuple[Grant, ...], behind: tuple[LeaseId, ...]) -> None:
        limit = one.lease.request.time_limit_seconds
        lease = replace(
            one.lease,
            state=Reserved(grants, self.now, self.now),
            expires_at=None if limit is None else self.now + limit,
        )
        self.holders[lease.id] = RunningLease(
            lease, one.project, one.priority, self.now, step=self.step, behind=behind
        )

    def end(self, lease: LeaseId) -> RunningLease:
        """A lease ends, or leaves; its interval goes to the books."""
        holder = self.holders.pop(lease)
        self.leaves_at.pop(lease, None)
        permille = sum(grant.compute_permille for grant in holder.lease.grants)
        interval = Interval(holder.project, permille, holder.started_at, self.now)
        self.ended.append(interval)
        self.usage = self.usage.record((interval,))
        return holder

    def requeue(self, lease: LeaseId) -> None:
        """A victim leaves and waits again."""
        holder = self.end(lease)
        waiting = replace(holder.lease, state=Queued(self.now), expires_at=None)
        self.waiting[lease] = PendingRequest(waiting, holder.project, holder.priority, self.now)

    def cancel(self, lease: LeaseId) -> None:
        """A waiting lease is given up; notices that were given for it alone stand."""
        self.waiting.pop(lease)
        self.under_way.pop(lease, None)

    def advance(self, seconds: float) -> None:
        """Time goes by; leases reach their limits and victims leave when it is their time."""
        until = self.now + seconds
        while True:
            due = [(at, lease, False) for lease, at in self.leaves_at.items()]
            due += [
                (one.lease.expires_at, lease, True)
                for lease, one in self.holders.items()
                if one.lease.expires_at is not None
            ]
            if not due or min(due)[0] > until:
                break
            at, lease, over = min(due)
            self.now = max(self.now, at)
            if over:
                self.end(lease)
            else:
                self.requeue(lease)
            self.decide()
        self.now = until
