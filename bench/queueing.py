"""Who waits how long: a real trace of leases replayed on 24 GPUs, under the project's core and others."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from replay import CLASSES, NEVER, Cluster, Job, Outcome, Scheduler, read_leases, replay, squeeze_to
from schedulers import Core, InOrder, Preemptive

from gpushared.domain.scheduling.pass_records import PreemptionMode
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    Policy,
    Project,
    Quota,
    without_losses,
)

HOSTS, GPUS_PER_HOST = 3, 8
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


def _user(job: Job) -> str:
    """Return one of thirty users, who all ask equally often."""
    return f"user{random.Random(job.lease.sequence).randrange(USERS)}"


def schedulers(cluster: Cluster) -> dict[str, Callable[[], Scheduler]]:
    """Return the schedulers by name, in the order of the table."""
    return {
        "FIFO, blocking head": lambda: InOrder(cluster, _submitted, blocking=True),
        "FIFO, whatever fits": lambda: InOrder(cluster, _submitted),
        "class order": lambda: InOrder(cluster, _class_order),
        "attained service, two queues": lambda: Preemptive(cluster, _attained, _leaves_first_queue),
        "shortest remaining, durations known": lambda: Preemptive(cluster, _remaining),
        **_own(cluster, "installed", INSTALLED, _user),
        **_own(cluster, "one project", ONE_PROJECT, lambda _: "all"),
        **_own(cluster, "three projects", PROJECTS, lambda job: job.group),
    }


def _own(
    cluster: Cluster, name: str, policy: Policy, project: Callable[[Job], str]
) -> dict[str, Callable[[], Scheduler]]:
    def made(mode: PreemptionMode) -> Callable[[], Scheduler]:
        return lambda: Core(cluster, policy, mode, project)

    return {f"{name}, {how}": made(mode) for how, mode in MODES.items()}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder with leases.csv.gz")
    parser.add_argument("--only", help="part of a scheduler's name")
    parser.add_argument(
        "--load", type=float, help="squeeze or stretch the arrivals to this load of the GPUs, such as 0.9"
    )
    parser.add_argument("--longest", type=int, default=0, help="print so many of the longest waits")
    said = parser.parse_args(words)
    cluster = Cluster.of(HOSTS, GPUS_PER_HOST)
    path = said.traces / "leases.csv.gz"
    squeeze = 1.0 if said.load is None else squeeze_to(said.load, path, HOSTS * GPUS_PER_HOST)
    print("queueing in seconds: all that a lease takes beyond its duration, preemptions included")
    print(_row("", "mean", "p99", *(f"{name} mean/p99" for name in CLASSES), "preempted", "lost %", "s"))
    for name, make in schedulers(cluster).items():
        if said.only and said.only not in name:
            continue
        began = time.monotonic()
        outcome = replay(read_leases(path, squeeze), make())
        print(_result(name, outcome, time.monotonic() - began), flush=True)
        for job in sorted(outcome.jobs, key=lambda job: -job.queueing)[: said.longest]:
            print(
                f"    {job.queueing:.0f} s: {job.gpus:g} GPUs of {_user(job)} for {job.duration:.0f} s",
                end="",
            )
            print(f", last {job.reason}")
    return 0


def _result(name: str, outcome: Outcome, took: float) -> str:
    by_class = []
    for qos in CLASSES:
        mean, high = _figures(job for job in outcome.jobs if job.group == qos)
        by_class.append(f"{mean:.0f}/{high:.0f}")
    mean, high = _figures(outcome.jobs)
    lost = sum(job.thrown_away for job in outcome.jobs) / sum(job.gpus * job.duration for job in outcome.jobs)
    return _row(
        name,
        f"{mean:.0f}",
        f"{high:.0f}",
        *by_class,
        str(outcome.preemptions),
        f"{100 * lost:.1f}",
        f"{took:.0f}",
    )


def _figures(jobs: Iterable[Job]) -> tuple[float, float]:
    waits = sorted(job.queueing for job in jobs)
    return sum(waits) / len(waits), waits[min(len(waits) - 1, int(0.99 * len(waits)))]


def _row(*cells: str) -> str:
    return f"{cells[0]:36}" + "".join(f"{cell:>17}" for cell in cells[1:])


if __name__ == "__main__":
    sys.exit(main())
