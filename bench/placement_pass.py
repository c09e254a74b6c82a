"""One pass over a long queue: 10 000 requests of some hundred kinds against 1000 hosts of 8 GPUs.

The fleet is filled until it refuses most, as a fleet with a queue is. Then everybody who waits is asked
about: by a fleet that was not asked before, again when nothing has changed, and when some leases have ended.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.hosts import Host

GPU_BYTES = 80_000 * MIB
SHARES = (50, 100, 125, 200, 250, 300, 333, 400, 470, 500, 600, 667, 750, 810, 1000)
AIM_MS = 100.0


def fleet_of(count: int) -> Fleet:
    return Fleet(
        Host(
            f"host-{number}",
            tuple(
                Gpu(GpuId(f"host-{number}/{index}"), index, "H100", GPU_BYTES, GPU_BYTES)
                for index in range(8)
            ),
            cpu_milli=96_000,
            memory_bytes=768 << 30,
        )
        for number in range(count)
    )


def kinds_of(count: int, chance: random.Random) -> list[Request]:
    kinds: dict[Request, None] = {}
    while len(kinds) < count:
        gpus = chance.choices((1, 2, 4, 8), (90, 5, 3, 2))[0]
        share = chance.choice(SHARES) if gpus == 1 else 1000
        cpu = chance.choice((1, 2, 4, 6, 8, 12)) * 1000 * gpus
        memory = chance.choice((4, 8, 16, 32)) * gpus << 30
        kinds[Request(gpus, share, None, share, host_cpu_milli=cpu, host_memory_bytes=memory)] = None
    return list(kinds)


def fill(fleet: Fleet, kinds: Sequence[Request], chance: random.Random) -> list[LeaseId]:
    """Until a hundred in a row were refused."""
    held: list[LeaseId] = []
    refused = 0
    while refused < 100:
        request = chance.choice(kinds)
        fleet.see(request)
        answer = fleet.place(request)
        if isinstance(answer, Placement):
            refused = 0
            held.append(LeaseId(f"held-{len(held)}"))
            fleet.take(held[-1], request, answer)
        else:
            refused += 1
    fleet.commit()
    return held


def one_pass(fleet: Fleet, queue: Sequence[Request], name: str) -> tuple[float, int]:
    """Milliseconds, and how many got a place."""
    granted = 0
    start = time.perf_counter()
    for number, request in enumerate(queue):
        answer = fleet.place(request)
        if isinstance(answer, Placement):
            fleet.take(LeaseId(f"{name}-{number}"), request, answer)
            granted += 1
    milliseconds = 1000 * (time.perf_counter() - start)
    fleet.commit()
    return milliseconds, granted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--queue", type=int, default=10_000)
    parser.add_argument("--kinds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kinds = kinds_of(options.kinds, chance)
    fleet = fleet_of(options.hosts)
    held = fill(fleet, kinds, chance)
    queue = chance.choices(kinds, k=options.queue)
    print(f"{options.hosts} hosts, {len(held)} leases, {options.queue} waiting of {options.kinds} kinds")
    print(f"aim: {AIM_MS:.0f} ms")
    tracemalloc.start()
    fresh = fleet.copy()
    one_pass(fresh, queue, "traced")
    print(f"memory of a first pass: {tracemalloc.get_traced_memory()[1] / MIB:.1f} MiB")
    tracemalloc.stop()
    shown("never asked before", [one_pass(fleet.copy(), queue, "cold") for _ in range(options.rounds)])
    one_pass(fleet, queue, "warm")
    shown("nothing changed", [one_pass(fleet, queue, f"same-{at}") for at in range(options.rounds)])
    results = []
    for at in range(options.rounds):
        for lease in [held.pop(chance.randrange(len(held))) for _ in range(options.hosts // 50)]:
            fleet.give(lease)
        results.append(one_pass(fleet, queue, f"ended-{at}"))
    shown(f"{options.hosts // 50} leases ended", results)


def shown(what: str, results: Sequence[tuple[float, int]]) -> None:
    times = [milliseconds for milliseconds, _ in results]
    middle, most = statistics.median(times), max(times)
    print(f"{what:20} median {middle:8.1f} ms  max {most:8.1f} ms  granted {results[-1][1]}")


if __name__ == "__main__":
    main()
