"""Measure one pass over a node's queue: a pass runs at every event while somebody waits.

Eight GPUs are full of quarters, and 1, 10 and 1000 requests of twenty kinds wait.
"""

from __future__ import annotations

import statistics
import time

from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, lease_id
from gpushared.domain.leases.queue_pass import pass_over
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Lease, Queued, Reserved
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.free_capacity import need_on
from gpushared.domain.scheduling.placement.policies import PolicyName

GPU_BYTES = 80_000 * MIB
GPUS = {
    GpuId(f"GPU-{index}"): Gpu(GpuId(f"GPU-{index}"), index, "H100", GPU_BYTES, GPU_BYTES)
    for index in range(8)
}
KINDS = [
    Request(1, share, None, share, time_limit_seconds=limit)
    for share in (50, 100, 125, 200, 250, 300, 400, 500, 667, 1000)
    for limit in (None, 3600)
]
NOW = 1000.0


def node_with(waiting: int, policy: PolicyName) -> NodeState:
    leases = [_held(number) for number in range(32)]
    leases += [
        Lease(
            lease_id(100 + number),
            100 + number,
            KINDS[number % len(KINDS)],
            1000 + number % 5,
            f"user{number % 5}",
            NOW,
            Queued(NOW),
            "device",
        )
        for number in range(waiting)
    ]
    return NodeState(rules=Rules(placement=policy), gpus=GPUS, leases={lease.id: lease for lease in leases})


def _held(number: int) -> Lease:
    request = Request(1, 250, None, 250, time_limit_seconds=7200)
    grant = need_on(request, list(GPUS.values())[number // 4])
    state = Reserved((grant,), 0.0, 60.0)
    return Lease(lease_id(number), number, request, 1000, "user0", 0.0, state, "device", expires_at=7200.0)


def main() -> None:
    for policy in PolicyName:
        for waiting in (1, 10, 1000):
            state = node_with(waiting, policy)
            times = []
            for _ in range(200 if waiting < 1000 else 20):
                start = time.process_time()
                pass_over(state, NOW)
                times.append(1000 * (time.process_time() - start))
            print(f"{policy:14} {waiting:5} waiting: {statistics.median(times):8.3f} ms of CPU")


if __name__ == "__main__":
    main()
