"""Replay a real trace of leases on hosts of 8 GPUs, under the project's core and others."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean, stdev

from replay import NEVER, Cluster, Job, Outcome, Scheduler, read_leases, replay, squeeze_to
from schedulers import Core, InOrder, Preemptive

from gpushared.domain.scheduling.pass_records import PreemptionMode
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    Policy,
    Project,
    Quota,
    without_losses,
)

GPUS_PER_HOST = 8
TWO_QUEUES_GPU_SECONDS = 3600.0
"""Where attained service moves a job to the second queue."""
USERS = 30
MODES = {
    "nothing saved": PreemptionMode.REQUEUE,
    "paused": PreemptionMode.PAUSE,
    "saved": PreemptionMode.NOTIFY,
}

PROJECTS = Policy(
    notice_seconds=0.0,  # the others preempt at once, too
    grace_seconds=0.0,
    projects={
        "LS": Project("LS", quota=Quota(guaranteed=16_000)),
        "Burstable": Project("Burstable", quota=Quota(guaranteed=8_000)),
    },
)
ONE_PROJECT = Policy(notice_seconds=0.0, grace_seconds=0.0, projects={"all": Project("all")})
INSTALLED = without_losses(Policy(notice_seconds=0.0, grace_seconds=0.0))


def _submitted(job: Job, _now: float) -> tuple[float, ...]:
    return (job.submitted,)


def _class_order(job: Job, _now: float) -> tuple[float, ...]:
    order = DEFAULT_CLASSES[job.lease.request.lease_class].order
    return (order, job.submitted)


def _attained(job: Job, now: float) -> tuple[float, ...]:
    return (job.service(now) >= TWO_QUEUES_GPU_SECONDS, job.submitted)


def _leaves_first_queue(job: Job, now: float) -> float:
    left = TWO_QUEUES_GPU_SECONDS - job.service(now)
    return now + left / job.gpus if left > 0 else NEVER


def _remaining(job: Job, now: float) -> tuple[float, ...]:
    return (job.left(now) * job.gpus, job.submitted)


def user_of(job: Job) -> str:
    """Return one of thirty users, who all ask equally often."""
    return _numbered_user(job.lease.sequence)


@cache
def _numbered_user(number: int) -> str:
    return f"user{random.Random(number).randrange(USERS)}"


def schedulers(cluster: Cluster) -> dict[str, Callable[[], Scheduler]]:
    """Return the schedulers by name, in the order of the table."""
    return {
        "FIFO, blocking head": lambda: InOrder(cluster, _submitted, blocking=True),
        "FIFO, whatever fits": lambda: InOrder(cluster, _submitted),
        "class order": lambda: InOrder(cluster, _class_order),
        "attained service, two queues": lambda: Preemptive(cluster, _attained, _leaves_first_queue),
        "shortest remaining, durations known": lambda: Preemptive(cluster, _remaining),
        **_own(cluster, "installed", INSTALLED, user_of),
        **_own(cluster, "one project", ONE_PROJECT, lambda _: "all"),
        **_own(cluster, "three projects", PROJECTS, lambda job: job.group),
    }


def _own(
    cluster: Cluster, name: str, policy: Policy, project: Callable[[Job], str]
) -> dict[str, Callable[[], Scheduler]]:
    def made(mode: PreemptionMode) -> Callable[[], Scheduler]:
        return lambda: Core(cluster, policy, mode, project)

    return {f"{name}, {how}": made(mode) for how, mode in MODES.items()}


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table at one load."""

    traces: Path
    name: str
    load: float | None
    hosts: int
    placement: PolicyName
    longest: int
    draws: int


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder with leases.csv.gz")
    parser.add_argument("--only", action="append", help="part of a scheduler's name")
    parser.add_argument(
        "--load",
        type=float,
        action="append",
        help="squeeze or stretch the arrivals to this load of the GPUs, such as 0.9",
    )
    parser.add_argument("--hosts", type=int, default=3, help="the number of hosts with 8 GPUs")
    parser.add_argument("--longest", type=int, default=0, help="print so many of the longest waits")
    parser.add_argument("--placement", type=PolicyName, choices=list(PolicyName), default=PolicyName.PACK)
    parser.add_argument(
        "--draws",
        type=int,
        default=0,
        help="replay each row so often, with arrivals up to an hour sooner or later, and print the means",
    )
    parser.add_argument("--processes", type=int, default=1)
    said = parser.parse_args(words)
    names = [
        name
        for name in schedulers(Cluster.of(said.hosts, GPUS_PER_HOST))
        if not said.only or any(part in name for part in said.only)
    ]
    runs = [
        Run(said.traces, name, load, said.hosts, said.placement, said.longest, said.draws)
        for load in said.load or [None]
        for name in names
    ]
    print("queueing in seconds: all that a lease takes beyond its duration, preemptions included")
    print("| load | scheduler | mean | p99 | mean of LS | preempted | thrown away | took |")
    print("|---|---|---|---|---|---|---|---|")
    with Pool(said.processes) as pool:
        for rows in pool.imap(result, runs):
            print(rows, flush=True)
    return 0


def result(run: Run) -> str:
    """Return a row of the table, with the longest waits of the first draw below it."""
    began = time.process_time()
    path = run.traces / "leases.csv.gz"
    squeeze = 1.0 if run.load is None else squeeze_to(run.load, path, run.hosts * GPUS_PER_HOST)
    cluster = Cluster.of(run.hosts, GPUS_PER_HOST, run.placement)
    outcomes = [
        replay(read_leases(path, squeeze, draw), schedulers(cluster)[run.name]())
        for draw in (range(1, run.draws + 1) if run.draws else (0,))
    ]
    over = [[job for job in outcome.jobs if job.ended is not None] for outcome in outcomes]
    means, highs = zip(*map(_figures, over), strict=True)
    sensitive = fmean(_figures(job for job in jobs if job.group == "LS")[0] for jobs in over)
    stuck = sum(len(outcome.jobs) for outcome in outcomes) - sum(map(len, over))
    name = f"{run.name} ({stuck} never ended)" if stuck else run.name
    lost = fmean(map(_thrown_away, outcomes))
    load = "as it is" if run.load is None else f"{run.load:.0%}"
    mean = f"{fmean(means):.0f}" + (f" ± {stdev(means) / len(means) ** 0.5:.0f}" if len(means) > 1 else "")
    preempted = fmean(outcome.preemptions for outcome in outcomes)
    row = (
        f"| {load} | {name} | {mean} | {fmean(highs):.0f} | {sensitive:.0f} | {preempted:.0f} "
        f"| {lost:.1%} | {time.process_time() - began:.0f} s |"
    )
    longest = sorted(over[0], key=lambda job: -job.queueing)[: run.longest]
    return "\n".join([row, *map(_wait, longest)])


def _thrown_away(outcome: Outcome) -> float:
    """Return the part of the GPU time that preemptions threw away."""
    return sum(job.thrown_away for job in outcome.jobs) / sum(job.gpus * job.duration for job in outcome.jobs)


def _wait(job: Job) -> str:
    return (
        f"    {job.queueing:.0f} s: {job.gpus:g} GPUs of {user_of(job)} for {job.duration:.0f} s, "
        f"last {job.reason}"
    )


def _figures(jobs: Iterable[Job]) -> tuple[float, float]:
    waits = sorted(job.queueing for job in jobs)
    return sum(waits) / len(waits), waits[min(len(waits) - 1, int(0.99 * len(waits)))]


if __name__ == "__main__":
    sys.exit(main())
