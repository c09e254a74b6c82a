"""(d) What the daemon costs while nothing happens: 8 simulated GPUs with 64 processes on them."""

from __future__ import annotations

import argparse
import subprocess
import time

import psutil
from common import daemon
from lease_cycle import Connection

MIB = 1024 * 1024


def fill(path: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Put the sleeping processes on the GPUs, spread evenly."""
    connection = Connection(path)
    for number, process in enumerate(processes):
        on_it = [{"pid": process.pid, "memory_bytes": str(512 * MIB)}]
        connection.call("Simulation/Change", gpu_index=number % 8, processes=on_it)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    words = parser.parse_args()
    sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range(64)]
    try:
        with daemon() as bench:
            fill(bench.socket, sleepers)
            process = psutil.Process(bench.pid)
            time.sleep(5)
            before, begin = process.cpu_times(), time.perf_counter()
            time.sleep(words.seconds)
            after, wall = process.cpu_times(), time.perf_counter() - begin
            used = after.user + after.system - before.user - before.system
            print(f"idle daemon over {wall:.0f} s: {used / wall * 100:.2f} % of a core, {rss(process)}")
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def rss(process: psutil.Process) -> str:
    memory = process.memory_full_info()
    return f"{memory.rss / MIB:.0f} MiB RSS ({memory.uss / MIB:.0f} MiB its own)"


if __name__ == "__main__":
    main()
