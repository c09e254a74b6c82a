"""``run`` on a node of the pool against ``run`` on the node itself, and bytes through both ways to its gate.

The same container, the same engine, the same user; whole processes, in turns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from pool import Pool
from psutil import Process
from quiet import machine
from real import BIN, NOBODY, RealNode, real_pool

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import compare, ms, need, percentile, timed

MIB = 1 << 20
LEASE = ("--gpu", "0.25")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--network", default="none", help="of the containers")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--mib", type=int, default=1024, help="how much is read through a container's output")
    parser.add_argument("--engine", default="/var/run/docker.sock")
    words = parser.parse_args()
    print(machine())
    with real_pool(words.engine) as (pool, a, b):
        if words.pairs:
            runs(a, b, [f"--network={words.network}", words.image], words.pairs)
        throughput(pool, a, b, words.image, words.mib)
    print(machine())


def runs(a: RealNode, b: RealNode, container: list[str], pairs: int) -> None:
    """Typed on ``a`` for a container on ``b``, and typed on ``b``."""
    pool = run(["--node", "b"], container)
    here = run([], container)
    far, near = [], []
    for number in range(pairs + 2):
        for node, command, taken in ((a, pool, far), (b, here, near))[:: 1 if number % 2 else -1]:
            seconds = timed(command, node.environ)
            if number >= 2:
                taken.append(seconds)
    compare("run", far, near, ("run --node b, on a", "run, on b"))
    more = sorted(one - other for one, other in zip(far, near, strict=True))
    print(f"  more: median {ms(percentile(more, 50))}, p90 {ms(percentile(more, 90))}")


def run(where: list[str], container: list[str]) -> list[str | Path]:
    return [*NOBODY, BIN / "gpushare", "run", *where, *LEASE, "--rm", *container, "true"]


def throughput(pool: Pool, a: RealNode, b: RealNode, image: str, mib: int) -> None:
    """Measure how fast docker reads a container's output from the engine, through the gate, and through a tunnel.

    The processor time of each process on the way is measured too: other programs hardly change it.
    """
    docker, name = need("docker"), f"gpushared-bench-{b.process.pid}"
    started = [*NOBODY, BIN / "gpushare", "run", "--node", "b", *LEASE, "-d", "--rm", "--network=none"]
    timed([*started, "--name", name, image, "sleep", "600"], a.environ)
    sockets = list((a.home / "r/doors").glob("*.sock"))
    job = sockets[0] if len(sockets) == 1 else max(sockets, key=lambda door: door.stat().st_mtime)
    ways = {
        "the engine": "/var/run/docker.sock",
        "the gate": str(b.socket),
        "tunnel and gate": str(job),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    on_the_way = {"a": Process(a.process.pid), "coordinator": pool.usage, "b": Process(b.process.pid)}
    costs: dict[str, dict[str, list[float]]] = {way: {one: [] for one in on_the_way} for way in ways}
    copy = ["exec", name, "dd", "if=/dev/zero", "bs=1M", f"count={mib}"]
    for _ in range(3):
        for way, socket in ways.items():
            before = {one: cpu_seconds(process) for one, process in on_the_way.items()}
            began = time.perf_counter()
            subprocess.run(
                [docker, "-H", f"unix://{socket}", *copy],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
                env={"HOME": "/tmp"},
            )
            rates[way].append(mib * MIB / 1e6 / (time.perf_counter() - began))
            for one, process in on_the_way.items():
                spent = cpu_seconds(process) - before[one]
                costs[way][one].append(spent / (mib * MIB / 1e9))
    for way, values in rates.items():
        cost = ", ".join(f"{one} {min(spent):.2f}" for one, spent in costs[way].items())
        print(
            f"docker exec, {mib} MiB of output through {way:16} best {max(values):5.0f} MB/s of {len(values)}; "
            f"processor seconds for a GB, least: {cost}"
        )
    subprocess.run([docker, "rm", "-f", name], stdout=subprocess.DEVNULL, check=False)


def cpu_seconds(process: Process) -> float:
    spent = process.cpu_times()
    return spent.user + spent.system


if __name__ == "__main__":
    main()
