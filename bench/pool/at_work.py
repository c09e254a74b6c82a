"""Measure what a coordinator spends on a job at work, in processor time: all of it but gRPC and TLS.

The real loop with its store on disk, the history, the links' messages as bytes; the nodes are in the same process
and answer at once, and what they spend is left out. Processor time says something on a machine that does other
work too, where the other benches mostly measure how much of the machine they got.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from busy import spread
from machine import EXITED, GIB, PEOPLE
from quiet import machine

from gpushared.api.v1 import link_pb2
from gpushared.daemon.clocks import SteadyClock
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.coordinator import handle, restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import HERE, AttemptState, JobSpec, NodeName, Owner
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, JobId, LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_recorder import JobRecorder
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.coordinator.node_stream import Context, LinkGuardPort
from gpushared.pool.link import codec
from gpushared.ports.job_store import JobStore
from gpushared.storage.etcd.access import EtcdAccess, endpoints_of
from gpushared.storage.etcd.store import EtcdStore
from gpushared.storage.history import SqliteHistory
from gpushared.storage.job_store import SqliteStore

S = AttemptState
SETTLE_SECONDS = 2.0
RULES = PoolRules(beat_seconds=3600.0)
"""Nodes say something only when something happens; that is quiet.py's part."""


class Guard:
    """Every stream is who it says."""

    pool = "bench"

    def node_of(self, auth: Any) -> NodeName:
        return NodeName(auth["node"])

    def newer_trust(self, _: NodeName, __: int) -> None:
        return None


class Origins:
    def origin_of(self, _: JobId) -> NodeName:
        return HERE

    def update_of(self, _: JobId) -> None:
        return None


class World:
    """All nodes. ``spent``: the processor seconds of their own doing."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.running: list[tuple[Node, AttemptKey]] = []
        self.idle: list[float] = []
        self.placed = 0
        self._more = asyncio.Event()

    def begun(self, node: Node, key: AttemptKey) -> None:
        self.placed += 1
        self.running.append((node, key))
        self._more.set()

    async def full(self, jobs: int) -> None:
        """Wait until so many jobs run."""
        while self.placed < jobs:
            self._more.clear()
            await self._more.wait()

    def end_one(self, chance: random.Random) -> None:
        at = chance.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        node, key = self.running.pop()
        node.end(key)


class Node:
    """A node with 8 GPUs, and the coordinator's call on which it speaks."""

    def __init__(self, name: str, world: World) -> None:
        self._name = name
        self._world = world
        gpus = [
            Gpu(GpuId(f"GPU-{name}-{at}"), at, "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB) for at in range(8)
        ]
        self._free = deque((gpu, 0.0) for gpu in gpus)
        self._held: dict[AttemptKey, Holding] = {}
        self._beats = 0
        self._up: asyncio.Queue[bytes] = asyncio.Queue()
        inventory = Inventory(tuple(gpus), 128_000, 1024 * GIB, "10.0.0.1")
        self._say(
            hello=link_pb2.Hello(
                node=name,
                capabilities=codec.CAPABILITIES,
                inventory=codec.inventory_bytes(inventory),
                free=codec.free_bytes(HeartbeatReport()),
            )
        )

    def auth_context(self) -> dict[str, str]:
        return {"node": self._name}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> None:
        return None

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def read(self) -> link_pb2.Up:
        return link_pb2.Up.FromString(await self._up.get())

    async def write(self, message: link_pb2.Down) -> None:
        data = message.SerializeToString()
        began = time.thread_time()
        if message.WhichOneof("what") == "order":
            self._take(json.loads(link_pb2.Down.FromString(data).order))
        self._world.spent += time.thread_time() - began

    def _take(self, order: dict[str, Any]) -> None:
        key = AttemptKey(JobId(order["key"]["job"]), order["key"]["number"])
        if order["kind"] != "place" or key in self._held:
            return
        gpu, free_since = self._free.popleft()
        person, lease = order["spec"]["owner"]["person"], LeaseId(f"l-{key.job}")
        grant = Grant(gpu.id, gpu.leasable_bytes, 1000)
        self._held[key] = Holding(lease, (grant,), person, person, True, key)
        self._report(Report(key, S.PREPARING, 1))
        self._report(Report(key, S.RUNNING, 2, lease, started_at=time.time()))
        self._beat()
        self._world.begun(self, key)
        if free_since:
            self._world.idle.append(time.perf_counter() - free_since)

    def end(self, key: AttemptKey) -> None:
        began = time.thread_time()
        held = self._held.pop(key)
        (grant,) = held.grants
        gpu = Gpu(grant.gpu, 0, "NVIDIA H100 80GB HBM3", 80 * GIB, grant.memory_bytes)
        self._free.append((gpu, time.perf_counter()))
        self._report(Report(key, S.ENDED, 3, held.lease, EXITED, ended_at=time.time()))
        self._beat()
        self._world.spent += time.thread_time() - began

    def _report(self, report: Report) -> None:
        self._say(report=codec.report_bytes(report))

    def _beat(self) -> None:
        self._beats += 1
        free = codec.free_bytes(HeartbeatReport(tuple(self._held.values())))
        self._say(beat=link_pb2.Beat(seq=self._beats, free=free))

    def _say(self, **what: Any) -> None:
        self._up.put_nowait(link_pb2.Up(**what).SerializeToString())


def queued(nodes: list[str], jobs: int) -> PoolState:
    """The nodes are enrolled, and the jobs wait."""
    state = restore(replace(RULES, plan_seconds=3600.0), epoch=1, now=time.time())
    events: list[m.PoolEvent] = [m.NodeEnrolled(NodeName(name)) for name in nodes]
    for number in range(jobs):
        person = f"p{number % PEOPLE}"
        limit = 3600 * (1 + number % PEOPLE)
        request = Request(compute_permille=1000, isolation=Isolation.EXCLUSIVE, time_limit_seconds=limit)
        body = json.dumps({"Image": "busybox", "Env": [f"WHAT={'x' * 200}"]})
        spec = JobSpec(request, Owner(f"{person}@pool", person), image="busybox", body=body)
        events.append(m.JobSubmitted(JobId(f"j{number}"), spec))
    for event in events:
        state = handle(state, event, time.time()).state
    return replace(state, rules=RULES)


async def measure(store: JobStore, home: Path, words: argparse.Namespace) -> None:
    """Fill all GPUs, then let jobs end at the rate, and others take their places."""
    world, troubles, chance = World(), Troubles(), random.Random(1)
    names = [f"n{number:04}" for number in range(words.nodes)]
    state = queued(names, 8 * words.nodes + words.jobs + 1000)
    loop = PoolLoop(replace(state, epoch=await store.lead()), store, SteadyClock(), troubles)
    history = SqliteHistory(home / "history.db")
    recorder = JobRecorder(loop, history, troubles)
    link = LinkService(
        loop, cast("LinkGuardPort", Guard()), Origins(), beat=lambda _: RULES.beat_seconds, troubles=troubles
    )
    loop.subscribe(link.perform)
    nodes = [cast("Context", Node(name, world)) for name in names]
    async with loop.running():
        tasks = [asyncio.create_task(link.Connect(None, node)) for node in nodes]
        tasks.append(asyncio.create_task(recorder.run()))
        full = asyncio.create_task(world.full(8 * words.nodes))
        done, _ = await asyncio.wait((full, *tasks), return_when=asyncio.FIRST_COMPLETED)
        if full not in done:
            raise SystemExit(f"a stream ended: {done}")
        await asyncio.sleep(SETTLE_SECONDS)
        gc.collect()
        gc.freeze()
        print("full", flush=True)
        placed, world.spent, world.idle = world.placed, 0.0, []
        mine, everything, began = time.thread_time(), time.process_time(), time.perf_counter()
        for _ in range(words.jobs):
            world.end_one(chance)
            await asyncio.sleep(1.0 / words.rate)
        mine, everything = (
            time.thread_time() - mine - world.spent,
            time.process_time() - everything - world.spent,
        )
        seconds, placed = time.perf_counter() - began, world.placed - placed
        print(
            f"{words.nodes} nodes at work, {placed} jobs placed in {seconds:.1f} s: "
            f"{everything / placed * 1000:.2f} ms of processor a job, "
            f"{mine / placed * 1000:.2f} of it in the event loop's thread"
        )
        print(f"from a free GPU to the next order for its node: {spread(world.idle)}")
        await link.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await history.close()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1500, help="that end and are replaced")
    parser.add_argument("--rate", type=float, default=300.0, help="jobs that end in a second, at most")
    parser.add_argument(
        "--etcd", default="", help="the url of an etcd to keep the store in, an empty prefix of it"
    )
    words = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="gsp-") as folder:
        home = Path(folder)
        store: JobStore = SqliteStore(home / "jobs.db")
        if words.etcd:
            store = EtcdStore(EtcdAccess(endpoints_of(words.etcd)), f"/bench-{os.getpid()}/")
        asyncio.run(measure(store, home, words))
    print(machine())


if __name__ == "__main__":
    main()
