"""Measure what the coordinator's rules cost by themselves: no links, no store, no waiting, only processor time.

A pool whose GPUs are all busy and whose queue is long; jobs end at a steady rate of the pool's own time,
their nodes say so, and others are placed. Other programs on the machine disturb it through its caches only.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque
from dataclasses import replace

from quiet import machine

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator import handle, restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
    NodeName,
    Owner,
)
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import Place, Report
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, JobId, LeaseId
from gpushared.domain.model.request import Isolation, Request

GIB = 1 << 30
PEOPLE = 20
EXITED = Ending(EndKind.EXITED, "it ended", 0)
S = AttemptState


class World:
    """The machine, and nodes that answer at once. ``spent``: seconds of processor, in passes and in all."""

    def __init__(self, nodes: int) -> None:
        self.now = 1_000_000.0
        self.snapshot = ClusterSnapshot()
        self.state = restore(PoolRules(), epoch=1, now=self.now)
        self.in_passes: list[float] = []
        self.in_all = 0.0
        self.placed = 0
        self._running: deque[tuple[NodeName, AttemptKey]] = deque()
        self._free: dict[NodeName, deque[Gpu]] = {}
        self._held: dict[NodeName, dict[AttemptKey, Holding]] = {}
        for number in range(nodes):
            self._join(NodeName(f"n{number:04}"))
        self.now += 120.0
        for name in self._free:
            self.do(m.NodeHeartbeat(name))

    def _join(self, name: NodeName) -> None:
        gpus = tuple(
            Gpu(GpuId(f"GPU-{name}-{at}"), at, "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB) for at in range(8)
        )
        self._free[name], self._held[name] = deque(gpus), {}
        self.do(m.NodeEnrolled(name))
        self.do(
            m.NodeRegistered(name, Inventory(gpus, 128_000, 1024 * GIB, "10.0.0.1"), HeartbeatReport(), ())
        )

    def do(self, event: m.PoolEvent) -> None:
        """One event, and at once what the nodes make of the orders that it leads to."""
        before, began = self.state.planned_at, time.process_time()
        step = handle(self.state, event, self.now, self.snapshot)
        took = time.process_time() - began
        self.state, self.in_all = step.state, self.in_all + took
        if self.state.planned_at != before:
            self.in_passes.append(took)
        for one in step.instructions:
            if isinstance(one, m.Send) and isinstance(one.order, Place):
                self._begin(one.node, one.order)

    def submit(self, number: int) -> None:
        request = Request(
            compute_permille=1000,
            isolation=Isolation.EXCLUSIVE,
            time_limit_seconds=3600 * (1 + number % PEOPLE),
        )
        person = f"p{number % PEOPLE}"
        spec = JobSpec(request, Owner(f"{person}@pool", person), image="busybox")
        self.do(m.JobSubmitted(JobId(f"j{number}"), spec))

    def _begin(self, node: NodeName, order: Place) -> None:
        gpu = self._free[node].popleft()
        grant = Grant(gpu.id, gpu.leasable_bytes, 1000)
        lease, person = LeaseId(f"l-{order.key.job}"), order.spec.owner.person
        self._held[node][order.key] = Holding(lease, (grant,), person, person, True, order.key)
        self._running.append((node, order.key))
        self.placed += 1
        self.do(m.AttemptReported(node, Report(order.key, S.RUNNING, 2, lease)))
        self._beat(node)

    def end_one(self) -> None:
        node, key = self._running.popleft()
        (grant,) = self._held[node].pop(key).grants
        gpus = self.state.members[node].inventory
        assert gpus is not None
        self._free[node].append(next(gpu for gpu in gpus.gpus if gpu.id == grant.gpu))
        self.do(m.AttemptReported(node, Report(key, S.ENDED, 3, LeaseId(f"l-{key.job}"), EXITED)))
        self._beat(node)

    def _beat(self, node: NodeName) -> None:
        self.do(m.NodeHeartbeat(node, None, HeartbeatReport(tuple(self._held[node].values()))))

    def shuffle(self, chance: random.Random) -> None:
        """Jobs do not end in the order of the nodes."""
        running = list(self._running)
        chance.shuffle(running)
        self._running = deque(running)

    def count_anew(self) -> None:
        gc.collect()
        gc.freeze()  # as the coordinator sets aside what lives long
        self.in_passes, self.in_all, self.placed = [], 0.0, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument(
        "--rate", type=float, default=200.0, help="jobs that end in a second of the pool's time"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the pool's time")
    words = parser.parse_args()
    print(machine())
    for nodes in words.nodes:
        measure(nodes, words.queued, words.rate, words.seconds)


def measure(nodes: int, queued: int, rate: float, seconds: float) -> None:
    world = World(nodes)
    world.state = replace(world.state, rules=replace(world.state.rules, plan_seconds=3600.0))
    for number in range(8 * nodes + queued):
        world.submit(number)
    world.state = replace(world.state, rules=PoolRules())
    while len(world.state.waiting) > queued:
        world.now += 1.0
        world.do(m.PoolTick())
    world.shuffle(random.Random(1))
    world.count_anew()
    for _ in range(int(rate * seconds)):
        world.now += 1.0 / rate
        world.end_one()
    passes = sorted(world.in_passes)
    print(
        f"{nodes} nodes x 8 full, {queued} wait, {rate:.0f} jobs/s: {world.placed} placed in {len(passes)} "
        f"passes of p50 {passes[len(passes) // 2] * 1000:.1f}, most {passes[-1] * 1000:.1f} ms; "
        f"{world.in_all / world.placed * 1000:.2f} ms of processor a job, "
        f"{sum(passes) / world.placed * 1000:.2f} of it in passes"
    )


if __name__ == "__main__":
    main()
