"""Who waits how long: a real trace of leases replayed on 24 GPUs, under the project's core and others."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from replay import CLASSES, NEVER, Cluster, Job, Outcome, Scheduler, read_leases, replay
from schedulers import Core, InOrder, Preemptive

from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    GivesWay,
    Policy,
    Project,
    Quota,
)

HOSTS, GPUS_PER_HOST = 3, 8
TWO_QUEUES_GPU_SECONDS = 3600.0
"""Where attained service moves a job to the second queue."""
LONG_RUN = 3600.0

POLICY = Policy(
    notice_seconds=0.0,  # the others preempt at once, too
    grace_seconds=0.0,
    projects={
        "LS": Project("LS", quota=Quota(guaranteed=16_000)),
        "Burstable": Project("Burstable", quota=Quota(guaranteed=8_000)),
    },
    classes={
        LeaseClass.BUILD: replace(DEFAULT_CLASSES[LeaseClass.BUILD], long_run_gpu_seconds=LONG_RUN),
        LeaseClass.INFER: replace(DEFAULT_CLASSES[LeaseClass.INFER], long_run_gpu_seconds=LONG_RUN),
        LeaseClass.TRAIN: replace(
            DEFAULT_CLASSES[LeaseClass.TRAIN], long_run_gpu_seconds=LONG_RUN, gives_way=GivesWay.ALWAYS
        ),
    },
)


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


def schedulers(cluster: Cluster) -> dict[str, Callable[[], Scheduler]]:
    """By name, in the order of the table."""
    return {
        "FIFO, blocking head": lambda: InOrder(cluster, _submitted, blocking=True),
        "FIFO, whatever fits": lambda: InOrder(cluster, _submitted),
        "class order": lambda: InOrder(cluster, _class_order),
        "attained service, two queues": lambda: Preemptive(cluster, _attained, _leaves_first_queue),
        "shortest remaining, durations known": lambda: Preemptive(cluster, _remaining),
        "gpushared": lambda: Core(cluster, POLICY),
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder with leases.csv.gz")
    parser.add_argument("--only", help="part of a scheduler's name")
    parser.add_argument(
        "--squeeze", type=float, default=1.0, help="let the leases come so many times as fast"
    )
    said = parser.parse_args(words)
    cluster = Cluster.of(HOSTS, GPUS_PER_HOST)
    print("queueing in seconds: all that a lease takes beyond its duration, preemptions included")
    print(_row("", "mean", "p99", *(f"{name} mean/p99" for name in CLASSES), "preempted", "s"))
    for name, make in schedulers(cluster).items():
        if said.only and said.only not in name:
            continue
        began = time.monotonic()
        outcome = replay(read_leases(said.traces / "leases.csv.gz", said.squeeze), make())
        print(_result(name, outcome, time.monotonic() - began), flush=True)
    return 0


def _result(name: str, outcome: Outcome, took: float) -> str:
    by_class = []
    for qos in CLASSES:
        mean, high = _figures(job for job in outcome.jobs if job.group == qos)
        by_class.append(f"{mean:.0f}/{high:.0f}")
    mean, high = _figures(outcome.jobs)
    return _row(name, f"{mean:.0f}", f"{high:.0f}", *by_class, str(outcome.preemptions), f"{took:.0f}")


def _figures(jobs: Iterable[Job]) -> tuple[float, float]:
    waits = sorted(job.queueing for job in jobs)
    return sum(waits) / len(waits), waits[min(len(waits) - 1, int(0.99 * len(waits)))]


def _row(*cells: str) -> str:
    return f"{cells[0]:36}" + "".join(f"{cell:>19}" for cell in cells[1:])


if __name__ == "__main__":
    sys.exit(main())
