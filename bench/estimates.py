"""Compare the estimates of ``gpushare offer`` and ``queue`` at the request with the start.

The leases of the trace are replayed on one node of 8 GPUs with nothing configured. When a request has to wait,
the node's own forecast is asked, which knows the state of the moment and no durations. With ``limits`` each
request has a time limit of one to three times its duration; with ``typical`` there are none, and the forecast
is asked twice with a low and a high quantile of the runs of the same class that have ended so far.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from queueing import INSTALLED, user_of
from replay import NEVER, Cluster, Job, Orders, read_leases, replay, squeeze_to
from schedulers import Core

from gpushared.domain.leases.forecast import starts
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.host import HostSize
from gpushared.domain.model.lease import Active, ContainerId, Grant, Lease
from gpushared.domain.scheduling.pass_records import PreemptionMode

GPUS = 8
QUANTILES = 0.1, 0.9
DAY_SECONDS = 86_400.0
LEAST_RUNS = 20
"""So many runs must have ended before their lengths say something."""
LONG_SECONDS = 600.0
"""Ranges are compared with waits of at least this length."""


@dataclass(frozen=True, slots=True)
class Told:
    """Hold the estimate for a request: the earliest and the latest start, None = unknown."""

    at: float
    earliest: float | None
    latest: float | None


@dataclass(slots=True)
class RunLengths:
    """The lengths of the runs that have ended, sorted, by class."""

    ended: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def note(self, job: Job, seconds: float) -> None:
        insort(self.ended[job.lease.request.lease_class], seconds)

    def quantile(self, job: Job, so_far: float, part: float) -> float | None:
        """Return a quantile of the lengths beyond what the job has run already."""
        known = self.ended[job.lease.request.lease_class]
        longer = known[bisect_right(known, so_far) :]
        return longer[int(part * len(longer))] if len(longer) >= LEAST_RUNS else None


class Asked(Core):
    """The core, asked for an estimate when every so-manieth request has to wait."""

    def __init__(self, cluster: Cluster, *, every: int, typical: bool) -> None:
        super().__init__(cluster, INSTALLED, PreemptionMode.REQUEUE, user_of)
        self.told: dict[str, Told] = {}
        self._every = every
        self._typical = typical
        self._waits = 0
        self._lengths = RunLengths()

    def decide(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> Orders:
        orders = super().decide(waiting, running, now)
        started = {job.lease.id: grants for job, grants in orders.starts}
        new = [job for job in waiting if job.submitted == now and job.lease.id not in started]
        for job in new:
            self._waits += 1
            if self._waits % self._every == 0:
                self.told[job.lease.id] = self._ask(job, waiting, running, orders, now)
        return orders

    def _ask(
        self, job: Job, waiting: Sequence[Job], running: Sequence[Job], orders: Orders, now: float
    ) -> Told:
        parts = QUANTILES if self._typical else (None,)
        found = []
        for part in parts:
            leases = [self._lease(one, part, now) for one in (*running, *waiting)]
            held = {one.lease.id: grants for one, grants in orders.starts}
            leases = [_granted(lease, held.get(lease.id, ()), now) for lease in leases]
            start = starts(self._state(leases), now).get(job.lease.id)
            found.append(None if start is None else start.at)
        return Told(now, found[0] if self._typical else now, found[-1])

    def _lease(self, job: Job, part: float | None, now: float) -> Lease:
        """Return the lease as the node has it, with an assumed length if there is one."""
        lease = replace(job.lease, owner_name=user_of(job))
        limit: float | None = lease.request.time_limit_seconds
        if part is not None:
            limit = self._lengths.quantile(job, now - job.started if job.grants else 0.0, part)
            seconds = None if limit is None else max(1, round(limit))
            lease = replace(lease, request=replace(lease.request, time_limit_seconds=seconds))
        if not job.grants:
            return lease
        expires_at = None if limit is None else max(now + 1.0, job.started + limit)
        return replace(lease, state=Active(job.grants, ContainerId("c"), job.started), expires_at=expires_at)

    def _state(self, leases: Sequence[Lease]) -> NodeState:
        (host,) = self._cluster.hosts
        return NodeState(
            rules=Rules(policy=replace(self._policy, lossless_only=False)),
            gpus={gpu.id: gpu for gpu in host.gpus},
            leases={lease.id: lease for lease in leases},
            usage=self.usage,
            turns=self._turns,
            host=HostSize(host.cpu_milli, host.memory_bytes),
            next_sequence=1_000_000,
        )

    def ended(self, job: Job, start: float, now: float) -> None:
        super().ended(job, start, now)
        self._lengths.note(job, now - start)


def _granted(lease: Lease, grants: tuple[Grant, ...], now: float) -> Lease:
    if not grants:
        return lease
    limit = lease.request.time_limit_seconds
    expires_at = None if limit is None else now + limit
    return replace(lease, state=Active(grants, ContainerId("c"), now), expires_at=expires_at)


def _with_limits(jobs: Sequence[Job]) -> list[Job]:
    chance = random.Random(3)
    for job in jobs:
        limit = max(60, round(job.duration * chance.uniform(1, 3)))
        job.lease = replace(job.lease, request=replace(job.lease.request, time_limit_seconds=limit))
    return list(jobs)


def measure(traces: Path, load: float, days: float, every: int, *, typical: bool) -> str:
    began = time.process_time()
    path = traces / "leases.csv.gz"
    jobs = read_leases(path, squeeze_to(load, path, GPUS))
    core = Asked(Cluster.of(1, GPUS), every=every, typical=typical)
    until = min(job.submitted for job in jobs) + days * DAY_SECONDS
    outcome = replay(jobs if typical else _with_limits(jobs), core, until)
    first = {job.lease.id: job.first_started for job in outcome.jobs}
    asked = [(told, first[lease]) for lease, told in core.told.items()]
    known = [
        (one.at, one.earliest, one.latest, at)
        for one, at in asked
        if one.earliest is not None and one.latest is not None and at is not None
    ]
    inside = [early - 1 <= at <= late + 1 for _, early, late, at in known]
    later = [at > late + 1 for _, _, late, at in known]
    widths = [(late - early) / (at - told) for told, early, late, at in known if at - told >= LONG_SECONDS]
    name = "typical lengths" if typical else "limits of 1 to 3 times the duration"
    return (
        f"| {load:.0%} | {name} | {len(asked)} | {len(known) / max(1, len(asked)):.0%} "
        f"| {sum(inside) / max(1, len(inside)):.0%} | {sum(later) / max(1, len(later)):.0%} "
        f"| {statistics.median(widths) if widths else 0:.2f} | {time.process_time() - began:.0f} s |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder with leases.csv.gz")
    parser.add_argument("--load", type=float, action="append")
    parser.add_argument("--days", type=float, default=NEVER, help="stop after so many days")
    parser.add_argument("--every", type=int, default=4, help="ask when every so-manieth request waits")
    said = parser.parse_args()
    print("| load | the node knows | asked | told | inside | later | median width / wait | took |")
    print("|---|---|---|---|---|---|---|---|")
    for load in said.load or [0.6, 0.9]:
        for typical in (False, True):
            print(measure(said.traces, load, said.days, said.every, typical=typical), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
