"""Measure what the queue promises: equal shares over a week, guarantees within the notice, and a pass in time."""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import replace

from replay import GPU_BYTES, Cluster, Job, new_job, replay
from schedulers import Core

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import PendingRequest, RunningLease
from gpushared.domain.scheduling.placement.fleet_capacity import FleetCapacity, fleet_with
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import Policy, Project, Quota
from gpushared.domain.scheduling.queue_order import shared
from gpushared.domain.scheduling.use_over_time import Usage

HOUR = 3600.0
WEEK = 7 * 24 * HOUR
CLUSTER = Cluster.of(3, 8)


def main() -> int:
    _fairness()
    _guarantee()
    _pass_in_time()
    return 0


def _fairness() -> None:
    """Two projects of equal weight, one with small and short leases, one with large and long ones.

    Each asks for all GPUs of the week. Some requests wait from the beginning, the others come evenly.
    """
    chance = random.Random(42)
    small, large = [], []
    for number in range(3600):
        permille, hours = chance.choice((250, 500, 1000)), chance.uniform(0.2, 4)
        small.append(_job(number, "small", permille, 1, hours, max(0, number - 200) * WEEK / 3400))
    for number in range(300):
        gpus, hours = chance.choice((1, 2, 4)), chance.uniform(1, 12)
        large.append(_job(3600 + number, "large", 1000, gpus, hours, max(0, number - 30) * WEEK / 270))
    core = Core(CLUSTER, Policy())
    outcome = replay([*small, *large], core, until=WEEK)
    hours = {name: _gpu_hours(outcome.jobs, name) for name in ("small", "large")}
    apart = abs(hours["small"] - hours["large"]) / sum(hours.values())
    waiting = all(any(job.ended is None and not job.grants for job in jobs) for jobs in (small, large))
    print(f"fairness: {hours['small']:.0f} and {hours['large']:.0f} GPU-hours in a week of 24 GPUs")
    print(f"  each {100 * apart:.2f} % from equal; work was endless: {waiting}")


def _job(number: int, group: str, permille: int, gpus: int, hours: float, submitted: float = 0.0) -> Job:
    return new_job(number, group, LeaseClass.TRAIN, submitted, hours * HOUR, gpus, permille)


def _gpu_hours(jobs: list[Job], group: str) -> float:
    served = sum(
        job.gpus * (job.duration if job.ended is not None else job.served + _present_run(job))
        for job in jobs
        if job.group == group
    )
    return served / HOUR


def _present_run(job: Job) -> float:
    return WEEK - job.started if job.grants else 0.0


def _guarantee() -> None:
    """A project that is guaranteed 8 GPUs comes and goes while another one's training fills the machine."""
    chance = random.Random(7)
    policy = Policy(projects={"paid": Project("paid", quota=Quota(guaranteed=8000))})
    training = [_job(n, "other", 1000, 1, chance.uniform(2, 10)) for n in range(900)]
    build, at = [], HOUR
    for number in range(400):  # one every ten minutes at most 80 minutes long: never more than 8 at a time
        at += chance.uniform(600, 900)
        length = chance.uniform(300, 4800)
        build.append(new_job(900 + number, "paid", LeaseClass.BUILD, at, length, 1, 1000))
    outcome = replay([*training, *build], Core(CLUSTER, policy), until=4 * 24 * HOUR)
    waits = [job.started - job.submitted for job in build if job.runs]
    bound = policy.notice_seconds + policy.grace_seconds
    print(f"guarantee: {len(waits)} requests below it waited {statistics.mean(waits):.0f} s in the mean,")
    print(
        f"  {max(waits):.1f} s at most; notice and grace are {bound:.0f} s; {outcome.preemptions} preempted"
    )


def _pass_in_time() -> None:
    """10 000 requests of some hundred kinds wait for 1000 full hosts; then a hundred leases end."""
    chance = random.Random(1)
    hosts = list(Cluster.of(1000, 8).hosts)
    policy = Policy(projects={f"p{n}": Project(f"p{n}", quota=Quota(guaranteed=20_000)) for n in range(20)})
    waiting = _queue(chance)
    kinds = {(one.project, one.priority, one.lease.request) for one in waiting}
    print(f"pass: {len(waiting)} requests of {len(kinds)} kinds, 1000 hosts of 8 GPUs")
    for each in (1, 2):
        holders = _full(hosts, each, chance)
        freed = set(chance.sample(range(len(holders)), 100))
        _time_passes(f"{each} leases on each GPU", waiting, holders, hosts, policy)
        left = [one for at, one in enumerate(holders) if at not in freed]
        _time_passes("  100 of them ended", waiting, left, hosts, policy)


def _time_passes(
    name: str, waiting: list[PendingRequest], holders: list[RunningLease], hosts: list[Host], policy: Policy
) -> None:
    usage = Usage(policy.half_life_seconds)
    leases = [one.lease for one in holders]
    fleet = fleet_with(hosts, leases, {}, PolicyName.PACK)
    index = HolderIndex(policy, FleetCapacity(fleet), holders)  # a pool keeps it from pass to pass, too
    index.sink(10 * HOUR)
    took = []
    for _ in range(25):
        copy = fleet.copy()
        for request in {one.lease.request for one in waiting}:
            copy.place(request)  # a fleet that lives on knows its order of the hosts from the pass before
        places = FleetCapacity(copy)
        began = time.process_time()  # the machine is shared
        made = plan(waiting, index, places, usage, policy, 10 * HOUR)
        took.append(time.process_time() - began)
    print(f"  {name:24} {1000 * statistics.median(took):4.0f} ms in the median,", end=" ")
    print(f"{1000 * min(took):4.0f} at best; {len(made.grants)} granted, {len(made.preemptions)} preemptions")


def _queue(chance: random.Random) -> list[PendingRequest]:
    """Requests of 60 projects and 8 sizes."""
    found = []
    for number in range(10_000):
        permille = chance.choice((100, 250, 330, 500, 750, 1000))
        job = new_job(
            number,
            f"p{chance.randrange(60)}",
            LeaseClass.TRAIN,
            9.5 * HOUR,
            HOUR,
            chance.choice((1, 1, 2, 8)) if permille == 1000 else 1,
            permille,
        )
        lease = replace(job.lease, request=shared(job.lease.request))
        found.append(PendingRequest(lease, job.group, 50, 9.5 * HOUR))
    return found


def _full(hosts: list[Host], each: int, chance: random.Random) -> list[RunningLease]:
    """Put so many leases on every GPU that the GPU is full."""
    gpus = [gpu.id for host in hosts for gpu in host.gpus for _ in range(each)]
    return [_held(20_000 + number, gpu, 1000 // each, chance) for number, gpu in enumerate(gpus)]


def _held(number: int, gpu: GpuId, permille: int, chance: random.Random) -> RunningLease:
    project, started = f"p{chance.randrange(60)}", chance.uniform(0, 9 * HOUR)
    request = Request(compute_permille=permille, memory_permille=permille)
    name = LeaseId(f"l-{number}")
    state = Reserved((Grant(gpu, GPU_BYTES * permille // 1000, permille),), started, started)
    lease = Lease(name, number, request, 1000, project, started, state, name)
    return RunningLease(replace(lease, expires_at=started + 24 * HOUR), project, 50, started)


if __name__ == "__main__":
    sys.exit(main())
