"""Measure what a coordinator costs while its nodes only beat, and how they come back after it was away."""

from __future__ import annotations

import argparse
import platform
import time
from collections import Counter

import psutil
from pool import MIB, Members, Pool, members, pool_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="in which the nodes are simulated")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the quiet is measured")
    parser.add_argument("--away", type=float, default=10.0, help="how long the coordinator is killed then")
    words = parser.parse_args()
    print(machine())
    with pool_of(words.nodes) as pool:
        pool.start()
        began = time.time()
        with members(pool, words.processes) as groups:
            joined = wait_for_all(groups)
            print(f"{words.nodes} nodes connected after {max(joined) - began:.1f} s, {costs(pool)}")
            quiet(pool, words.nodes, words.seconds)
            if words.away:
                outage(pool, groups, words.away)


def quiet(pool: Pool, nodes: int, seconds: float) -> None:
    """CPU and memory while nothing happens."""
    time.sleep(min(30.0, seconds))  # what connecting and settling left to do
    before, began = pool.usage.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after, wall = pool.usage.cpu_times(), time.perf_counter() - began
    used = after.user + after.system - before.user - before.system
    print(f"quiet, {nodes} nodes, {wall:.0f} s: {used / wall * 100:.1f} % of a core, {costs(pool)}")


def outage(pool: Pool, groups: list[Members], seconds: float) -> None:
    """Killed, and started again: how the nodes' hellos spread."""
    pool.kill()
    time.sleep(seconds)
    began = time.time()
    pool.start()
    served = time.time()
    back = wait_for_all(groups)
    per_second = Counter(int(at - served) for at in back)
    print(
        f"coordinator killed for {seconds:.0f} s, serving {served - began:.1f} s after its start: "
        f"{len(back)} nodes back within {max(back) - served:.1f} s, at most "
        f"{max(per_second.values())} of them in one second; {costs(pool)}"
    )


def wait_for_all(groups: list[Members]) -> list[float]:
    """When each node's link came up."""
    told = [line for group in groups for line in group.lines(len(group.names))]
    return [line["at"] for line in told if line["up"]]


def costs(pool: Pool) -> str:
    memory = pool.usage.memory_full_info()
    return f"{memory.rss / MIB:.0f} MiB RSS ({memory.uss / MIB:.0f} MiB its own)"


def machine() -> str:
    cores, load = psutil.cpu_count(), psutil.getloadavg()[0]
    return f"{cores} cores, load {load:.1f}, Python {platform.python_version()}, Linux {platform.release()}"


if __name__ == "__main__":
    main()
