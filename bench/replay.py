"""A cluster in fast motion: leases arrive, run and end at their times; a scheduler says who runs where."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    LeaseId,
    Queued,
    Reserved,
)
from gpushared.domain.model.request import Isolation, LeaseClass, Request
from gpushared.domain.scheduling.pass_records import PreemptionMode
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.fleet_capacity import FleetCapacity
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.queue_order import shared

NEVER = float("inf")
GPU_BYTES = 80_000 * MIB
CPU_MILLI_PER_GPU = 16_000
MEMORY_BYTES_PER_GPU = 98_304 * MIB
"""Like hosts with 8 G3 of the trace: 128 cores and 768 GiB. Two leases ask for more than the others have."""
LOST_SECONDS = 60.0
"""What each preemption costs its victim."""
JITTER_SECONDS = 3600.0
CLASSES = {
    "LS": LeaseClass.BUILD,
    "Guaranteed": LeaseClass.INFER,
    "Burstable": LeaseClass.INFER,
    "BE": LeaseClass.TRAIN,
}


@dataclass(slots=True)
class Job:
    """One lease of a replay; its duration is for the clock only, schedulers that know it say so."""

    lease: Lease
    group: str
    submitted: float
    duration: float
    since: float
    remaining: float
    grants: tuple[Grant, ...] = ()
    started: float = 0.0
    first_started: float | None = None
    served: float = 0.0
    """The seconds on GPUs so far, without those of the present run."""
    ended: float | None = None
    runs: int = 0
    mode: PreemptionMode = PreemptionMode.NOTIFY
    """How the job gives way."""
    bound: tuple[Grant, ...] = ()
    """What a paused job goes on with: the same parts of the same GPUs."""
    begun_anew: int = 0
    _held: Lease | None = None
    thrown_away: float = 0.0
    """The GPU-seconds of work that preemptions lost."""
    reason: str = ""
    """The reason why the job waited longest, by the scheduler's own words."""

    @property
    def held(self) -> Lease:
        """Return the lease as it holds its grants."""
        if self._held is None or self._held.state != Reserved(self.grants, self.started, self.started):
            limit = self.lease.request.time_limit_seconds
            self._held = replace(
                self.lease,
                state=Reserved(self.grants, self.started, self.started),
                expires_at=None if limit is None else self.started + limit,
            )
        return self._held

    @property
    def gpus(self) -> float:
        request = self.lease.request
        return request.gpu_count * (request.compute_permille or 1000) / 1000

    @property
    def queueing(self) -> float:
        """All that it took beyond its duration: waiting, and what preemptions cost."""
        assert self.ended is not None
        return self.ended - self.submitted - self.duration

    def service(self, now: float) -> float:
        """GPU-seconds that it has had."""
        return self.gpus * (self.served + (now - self.started if self.grants else 0.0))

    def left(self, now: float) -> float:
        """Seconds that it still needs."""
        return self.remaining - (now - self.started if self.grants else 0.0)


@dataclass(frozen=True, slots=True)
class Orders:
    """Hold a scheduler's orders: the jobs that give way now, those that start now, and when to ask again."""

    starts: Sequence[tuple[Job, tuple[Grant, ...]]]
    victims: Sequence[Job] = ()
    look_again_at: float = NEVER


class Scheduler(Protocol):
    """Decides at every arrival and every end."""

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders: ...

    def ended(self, job: Job, start: float, now: float) -> None:
        """A job held its grants from then to now."""


class Cluster:
    """Hosts with their GPUs, CPU and memory, all alike, and who holds what by the daemon's own placement."""

    def __init__(self, hosts: Sequence[Host], policy: PolicyName = PolicyName.PACK) -> None:
        self.hosts = tuple(hosts)
        self._fleet = Fleet(hosts, policy)
        self._held: dict[LeaseId, tuple[Request, tuple[Grant, ...]]] = {}
        self._seen: set[LeaseId] = set()

    @classmethod
    def of(cls, hosts: int, gpus: int, policy: PolicyName = PolicyName.PACK) -> Cluster:
        cpu, memory = gpus * CPU_MILLI_PER_GPU, gpus * MEMORY_BYTES_PER_GPU
        names = [f"h{host}" for host in range(hosts)]
        return cls(
            [Host(name, tuple(_gpu(name, at) for at in range(gpus)), cpu, memory) for name in names], policy
        )

    def places(self, running: Sequence[Job], waiting: Iterable[Job] = ()) -> FleetCapacity:
        """Return the free capacity; the memory of a paused job stays on its host."""
        wanted = {job.lease.id: (job.lease.request, job.grants) for job in running}
        for job in waiting:
            if job.lease.id not in self._seen:
                self._seen.add(job.lease.id)
                self._fleet.see(job.lease.request)
            if job.bound:
                kept = Request(0, host_memory_bytes=job.lease.request.host_memory_bytes)
                wanted[LeaseId(f"{job.lease.id} paused")] = kept, job.bound
        gone = [lease for lease, held in self._held.items() if wanted.get(lease) != held]
        for lease in gone:
            del self._held[lease]
            self._fleet.give(lease)
        for lease, (request, grants) in wanted.items():
            if lease not in self._held:
                self._held[lease] = request, grants
                host = self._fleet.host_of(grants[0].gpu)
                self._fleet.take(lease, request, Placement(host, grants if request.gpu_count else ()))
        self._fleet.commit()
        return FleetCapacity(self._fleet.copy())


def _gpu(host: str, index: int) -> Gpu:
    return Gpu(GpuId(f"{host}-{index}"), index, "GPU", GPU_BYTES, GPU_BYTES)


@dataclass(slots=True)
class Outcome:
    """Hold the result of a replay."""

    jobs: list[Job]
    preemptions: int
    passes: int
    now: float


def replay(jobs: Sequence[Job], scheduler: Scheduler, until: float = NEVER) -> Outcome:
    """Play the jobs to their end, or to a time; none may be on more of a GPU than there is."""
    events: list[tuple[float, int, Job | None, int]] = []
    number = count()
    for job in jobs:
        heappush(events, (job.submitted, next(number), job, 0))
    waiting: dict[LeaseId, Job] = {}
    running: dict[LeaseId, Job] = {}
    outcome = Outcome(list(jobs), 0, 0, 0.0)
    while events and events[0][0] <= until:
        now = events[0][0]
        while events and events[0][0] == now:
            _happen(heappop(events), waiting, running, scheduler, now)
        orders = scheduler.decide(list(waiting.values()), list(running.values()), now)
        outcome.passes += 1
        outcome.preemptions += len(orders.victims)
        for job in orders.victims:
            _stop(running.pop(job.lease.id), scheduler, now)
            waiting[job.lease.id] = job
        for job, grants in orders.starts:
            running[job.lease.id] = waiting.pop(job.lease.id)
            job.bound = ()
            job.grants, job.started, job.runs = grants, now, job.runs + 1
            job.first_started = now if job.first_started is None else job.first_started
            heappush(events, (now + job.remaining, next(number), job, job.runs))
        _check(running.values())
        if orders.look_again_at < NEVER:
            heappush(events, (max(now + 1e-3, orders.look_again_at), next(number), None, 0))
        outcome.now = now
        if not waiting and not running and all(event[2] is None for event in events):
            break
    return outcome


def _happen(
    event: tuple[float, int, Job | None, int],
    waiting: dict[LeaseId, Job],
    running: dict[LeaseId, Job],
    scheduler: Scheduler,
    now: float,
) -> None:
    _, _, job, run = event
    if job is None:
        return
    if run == 0:
        waiting[job.lease.id] = job
    elif job.grants and job.runs == run:
        del running[job.lease.id]
        scheduler.ended(job, job.started, now)
        job.grants, job.ended, job.remaining = (), now, 0.0


def _stop(job: Job, scheduler: Scheduler, now: float) -> None:
    scheduler.ended(job, job.started, now)
    ran = now - job.started
    if job.mode is PreemptionMode.REQUEUE:
        job.remaining, lost = job.duration, ran
        job.begun_anew += 1
    else:
        job.remaining, lost = job.remaining - ran + LOST_SECONDS, LOST_SECONDS
    if job.mode is PreemptionMode.PAUSE:
        job.bound = job.grants
    job.served += ran
    job.thrown_away += lost * job.gpus
    job.grants, job.since = (), now


def _check(running: Iterable[Job]) -> None:
    load: dict[GpuId, int] = {}
    for job in running:
        for grant in job.grants:
            load[grant.gpu] = load.get(grant.gpu, 0) + grant.compute_permille
    oversold = {gpu: permille for gpu, permille in load.items() if permille > 1000}
    if oversold:
        raise AssertionError(f"oversold: {oversold}")


def new_job(
    number: int,
    group: str,
    lease_class: LeaseClass,
    submitted: float,
    duration: float,
    gpus: int,
    permille: int,
    cpu_milli: int = 0,
    memory_bytes: int = 0,
) -> Job:
    """A job that asks for parts of one GPU or for whole ones, with CPU and memory of the host."""
    whole = permille >= 1000
    request = shared(
        Request(
            gpu_count=gpus,
            compute_permille=1000 if whole else permille,
            memory_permille=1000 if whole else permille,
            isolation=Isolation.EXCLUSIVE if whole else Isolation.SHARED,
            lease_class=lease_class,
            host_cpu_milli=cpu_milli,
            host_memory_bytes=memory_bytes,
        )
    )
    identity = LeaseId(f"l-{number:06d}")
    lease = Lease(identity, number, request, 1000, group, submitted, Queued(submitted), identity)
    return Job(lease, group, submitted, duration, submitted, duration)


def squeeze_to(load: float, path: Path, gpus: int) -> float:
    """Return how many times as fast the leases of a trace have to come for a load of so many GPUs."""
    jobs = read_leases(path)
    span = max(job.submitted for job in jobs) - min(job.submitted for job in jobs)
    return load * gpus * span / sum(job.gpus * job.duration for job in jobs)


def read_leases(path: Path, squeeze: float = 1.0, draw: int = 0) -> list[Job]:
    """Return the leases of a trace by their submission; they come ``squeeze`` times as fast.

    Each ``draw`` but 0 lets each lease come up to an hour sooner or later, by chance.
    """
    chance = random.Random(draw)
    with gzip.open(path, "rt") as lines:
        found = [
            (
                float(row["submit_s"]) / squeeze
                + (chance.uniform(-JITTER_SECONDS, JITTER_SECONDS) if draw else 0),
                row,
            )
            for row in csv.DictReader(lines)
        ]
    first = min(0.0, *(submitted for submitted, _ in found))
    rows = sorted(found, key=itemgetter(0))
    return [
        new_job(
            number,
            row["group"],
            CLASSES[row["qos"]],
            submitted - first,
            float(row["duration_s"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            int(row["cpu_milli"]),
            int(row["memory_mib"]) * MIB,
        )
        for number, (submitted, row) in enumerate(rows, start=1)
    ]
