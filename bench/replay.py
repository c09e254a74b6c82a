"""A cluster in fast motion: leases arrive, run and end at their times; a scheduler says who runs where."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
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
from gpushared.domain.scheduling.host_capacity import RoomPlaces
from gpushared.domain.scheduling.pass_records import PreemptionMode
from gpushared.domain.scheduling.placement.free_capacity import rooms_of

NEVER = float("inf")
GPU_BYTES = 80_000 * MIB
LOST_SECONDS = 60.0
"""What each preemption costs its victim."""
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
    served: float = 0.0
    """The seconds on GPUs so far, without those of the present run."""
    ended: float | None = None
    runs: int = 0
    mode: PreemptionMode = PreemptionMode.NOTIFY
    """How the job gives way."""
    bound: tuple[GpuId, ...] = ()
    """The GPUs on which a paused job goes on."""
    begun_anew: int = 0
    thrown_away: float = 0.0
    """The GPU-seconds of work that preemptions lost."""
    reason: str = ""
    """The reason why the job waited longest, by the scheduler's own words."""

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
    """What a scheduler wants: these give way now, those start now; and when it wants to be asked again."""

    starts: Sequence[tuple[Job, tuple[Grant, ...]]]
    victims: Sequence[Job] = ()
    look_again_at: float = NEVER


class Scheduler(Protocol):
    """Decides at every arrival and every end."""

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders: ...

    def ended(self, job: Job, start: float, now: float) -> None:
        """A job held its grants from then to now."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts with their GPUs, all alike."""

    hosts: Mapping[str, tuple[Gpu, ...]]

    @classmethod
    def of(cls, hosts: int, gpus: int) -> Cluster:
        return cls({f"h{host}": tuple(_gpu(f"h{host}", at) for at in range(gpus)) for host in range(hosts)})

    def places(self, running: Iterable[Job]) -> RoomPlaces:
        return self.places_of([replace(job.lease, state=Reserved(job.grants, 0.0, 0.0)) for job in running])

    def places_of(self, leases: Sequence[Lease]) -> RoomPlaces:
        rooms = rooms_of((gpu for gpus in self.hosts.values() for gpu in gpus), leases, {})
        return RoomPlaces(
            {host: {gpu.id: rooms[gpu.id] for gpu in gpus} for host, gpus in self.hosts.items()}
        )


def _gpu(host: str, index: int) -> Gpu:
    return Gpu(GpuId(f"{host}-{index}"), index, "GPU", GPU_BYTES, GPU_BYTES)


@dataclass(slots=True)
class Outcome:
    """What a replay came to."""

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
            job.grants, job.started, job.runs = grants, now, job.runs + 1
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
        job.bound = tuple(grant.gpu for grant in job.grants)
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
) -> Job:
    """A job that asks for parts of one GPU or for whole ones."""
    whole = permille >= 1000
    request = Request(
        gpu_count=gpus,
        compute_permille=1000 if whole else permille,
        memory_permille=1000 if whole else permille,
        isolation=Isolation.EXCLUSIVE if whole else Isolation.SHARED,
        lease_class=lease_class,
    )
    identity = LeaseId(f"l-{number:06d}")
    lease = Lease(identity, number, request, 1000, group, submitted, Queued(submitted), identity)
    return Job(lease, group, submitted, duration, submitted, duration)


def squeeze_to(load: float, path: Path, gpus: int) -> float:
    """Return how many times as fast the leases of a trace have to come for a load of so many GPUs."""
    jobs = read_leases(path)
    span = max(job.submitted for job in jobs) - min(job.submitted for job in jobs)
    return load * gpus * span / sum(job.gpus * job.duration for job in jobs)


def read_leases(path: Path, squeeze: float = 1.0) -> list[Job]:
    """Return the leases of a trace by their submission; they come ``squeeze`` times as fast."""
    with gzip.open(path, "rt") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: float(row["submit_s"]))
    return [
        new_job(
            number,
            row["group"],
            CLASSES[row["qos"]],
            float(row["submit_s"]) / squeeze,
            float(row["duration_s"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
        )
        for number, row in enumerate(rows, start=1)
    ]
