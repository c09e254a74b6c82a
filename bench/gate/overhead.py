"""The gate against the bare engine: `docker run`, and bytes of attach, cp and logs, in turns."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import compare, daemon, need, pairs

MEGABYTE = 1_000_000
SCRATCH = "gate-overhead"
"""The name of the container whose files and logs are read."""


@dataclass(frozen=True)
class Bench:
    """The client, the two places it is pointed at, and the image."""

    docker: str
    direct: str
    gate: str
    image: str
    megabytes: int
    gate_process: psutil.Process

    def words(self, url: str, *words: str) -> list[str]:
        return [self.docker, "-H", url, *words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--docker", default=need("docker"), help="the client to measure with")
    parser.add_argument("--engine", default="unix:///var/run/docker.sock")
    parser.add_argument("--network", default="bridge", help="docker's network mode")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=5, help="pairs of each stream")
    words = parser.parse_args()
    with daemon(engine__socket=words.engine.removeprefix("unix://")) as served:
        gate = f"unix://{served.socket}"
        bench = Bench(
            words.docker, words.engine, gate, words.image, words.megabytes, psutil.Process(served.pid)
        )
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        run(bench, words.network, words.pairs)
        streams(bench, words.streams)
        print(f"load after: {os.getloadavg()[0]:.1f}")


def run(bench: Bench, network: str, count: int) -> None:
    container = ["run", "--rm", "--network", network, bench.image, "true"]
    through, bare = bench.words(bench.gate, *container), bench.words(bench.direct, *container)
    left, right = pairs(through, bare, dict(os.environ), count)
    compare(f"docker run, network {network}", left, right, ("through the gate", "directly"))


def streams(bench: Bench, count: int) -> None:
    size = bench.megabytes * MEGABYTE
    fill = f"head -c {size} /dev/zero > /big; yes {'x' * 199} | head -n {size // 200 // 5}"
    subprocess.run(bench.words(bench.direct, "rm", "-f", SCRATCH), capture_output=True, check=False)
    command = ["run", "--name", SCRATCH, "--network", "none", bench.image, "sh", "-c", fill]
    subprocess.run(bench.words(bench.direct, *command), stdout=subprocess.DEVNULL, check=True)
    once = ["run", "--rm", "--network", "none", "--log-driver", "none"]
    with tempfile.NamedTemporaryFile() as big:
        big.truncate(size)
        kinds: dict[str, Callable[[str], float]] = {
            "attach, output": lambda url: rate(
                bench, url, size, *once, bench.image, "head", "-c", str(size), "/dev/zero"
            ),
            "attach, input": lambda url: rate(
                bench, url, size, *once, "-i", bench.image, "sh", "-c", "cat > /dev/null", given=big.name
            ),
            "cp out": lambda url: rate(bench, url, size, "cp", f"{SCRATCH}:/big", "-"),
            "cp in": lambda url: rate(bench, url, size, "cp", big.name, f"{SCRATCH}:/in"),
            "logs": lambda url: rate(bench, url, size // 5, "logs", SCRATCH),
        }
        for name, measured in kinds.items():
            in_turns(bench, name, measured, count)
    subprocess.run(bench.words(bench.direct, "rm", "-f", SCRATCH), capture_output=True, check=False)


def in_turns(bench: Bench, name: str, measured: Callable[[str], float], count: int) -> None:
    """The gate's own CPU time tells what it could do on a quiet machine, whatever runs beside it now."""
    measured(bench.direct)
    rates, spent, moved = [], 0.0, 0.0
    for _ in range(count):
        direct, before, start = measured(bench.direct), cpu_seconds(bench), time.perf_counter()
        gate = measured(bench.gate)
        moved += gate * (time.perf_counter() - start)
        spent += cpu_seconds(bench) - before
        rates.append((gate, direct))
    gate, direct = (statistics.median(side) for side in zip(*rates, strict=True))
    ratio = statistics.median(left / right for left, right in rates)
    print(
        f"{name:16} {gate:6.0f} MB/s through the gate, {direct:6.0f} MB/s directly, ratio {ratio:.2f}; "
        f"the gate's CPU alone would pass {moved / max(spent, 0.01):.0f} MB/s"
    )


def cpu_seconds(bench: Bench) -> float:
    times = bench.gate_process.cpu_times()
    return float(times.user + times.system)


def rate(bench: Bench, url: str, size: int, *words: str, given: str = os.devnull) -> float:
    """Megabytes in a second of the whole command, its start included."""
    start = time.perf_counter()
    with Path(given).open("rb") as stdin:
        done = subprocess.run(
            bench.words(url, *words),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr.decode()}")
    return size / MEGABYTE / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
