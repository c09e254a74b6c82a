"""Measure a page of metrics: the time that it takes of the daemon's loop, its size, and prometheus_client's time.

Eight GPUs have 64 leases of 16 users. The client library writes the same families, whose values it has already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpushared.daemon.measures import LONG_SECONDS, SHORT_SECONDS, Distribution, Totals
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.lease import Active, ComputeCap, ContainerId, Grant, Lease, MemoryWall, Walls
from gpushared.domain.model.request import LeaseClass
from gpushared.net.exposition import Family, Format, write
from gpushared.node.runtime.sampler import LeaseUse, Sample
from gpushared.node.services.node_counters import NodeCounters
from gpushared.node.services.node_metrics import NodeFigures, Viewer, node_families
from gpushared.ports import GpuReading
from gpushared.testing import GIB, fake_gpu, fake_lease

GPUS, LEASES, USERS = 8, 64, 16
TURNS, ROUNDS = 5, 200


def figures() -> NodeFigures:
    gpus = [fake_gpu(index) for index in range(GPUS)]
    leases = [_lease(number, gpus[number % GPUS]) for number in range(LEASES)]
    state = NodeState(
        gpus={gpu.id: gpu for gpu in gpus},
        leases={lease.id: lease for lease in leases},
        resting={lease.id: 900.0 for lease in leases[::2]},
    )
    readings = {gpu.id: GpuReading(gpu.id, 9 * GIB, 0.5, 50, 300.0, 1e9) for gpu in gpus}
    uses = {(lease.id, grant.gpu): LeaseUse(GIB, 0.1) for lease in leases for grant in lease.grants}
    counters = NodeCounters(state, lambda: 1000.0)
    for lease_class in LeaseClass:
        for outcome in ("finished", "stopped", "expired"):
            counters.durations[lease_class, outcome] = Distribution(LONG_SECONDS)
    return NodeFigures(
        now=1000.0,
        state=state,
        sample=Sample(999.0, readings, uses=uses),
        reasons={},
        counters=counters,
        refusals=Totals(10),
        pass_seconds=Distribution(SHORT_SECONDS),
        commit_seconds=Distribution(SHORT_SECONDS),
        loop_lag=Distribution(SHORT_SECONDS),
        troubles={},
        engine_up=True,
        audit_lost=0,
    )


def _lease(number: int, gpu: Gpu) -> Lease:
    grant = Grant(gpu.id, 9 * GIB, 125)
    state = Active((grant,), ContainerId(f"c{number}"), 100.0)
    user = f"user{number % USERS}"
    lease = fake_lease(number, state, owner_uid=1000 + number % USERS)
    walls = Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE)
    return replace(lease, owner_name=user, image="nvcr.io/nvidia/pytorch:26.10-py3", walls=walls)


class Known:
    """Give the client library the families that our own page has."""

    def __init__(self, page: bytes) -> None:
        self._families = list(text_string_to_metric_families(page.decode()))

    def collect(self) -> Iterable[Metric]:
        return self._families


def milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a call, the best of the rounds: what else runs here makes it only longer."""
    took = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(TURNS):
            work()
        took.append((time.process_time() - begun) * 1000 / TURNS)
    return min(took)


def main() -> None:
    snapshot, viewer = figures(), Viewer()
    families: list[Family] = node_families(snapshot, viewer)
    page = write(families, Format.TEXT)
    registry = CollectorRegistry()
    registry.register(Known(page))  # type: ignore[arg-type]  # a collector is what has collect()
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    whole = milliseconds(lambda: write(node_families(snapshot, viewer), Format.TEXT))
    own = milliseconds(lambda: write(families, Format.TEXT))
    library = milliseconds(lambda: generate_latest(registry))
    print(f"{GPUS} GPUs, {LEASES} leases: {series} series, {len(page)} bytes")
    print(f"a scrape: {whole:.2f} ms of the loop, of which {own:.2f} ms are writing")
    print(f"prometheus_client writes the same in {library:.2f} ms, {library / own:.1f} times as long")


if __name__ == "__main__":
    main()
