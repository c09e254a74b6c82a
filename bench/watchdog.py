"""(e) The watchdog over 8 GPUs and 64 leased processes: its CPU share, and how fast it acts."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import time

import psutil
from common import BIN, daemon, ms, need, percentile
from idle_daemon import rss
from lease_cycle import Connection

GIB = 1024**3
CONTAINERS = 8
CHILDREN = "for i in 1 2 3 4 5 6 7; do sleep 3600 & done; sleep 3600"


def start(environ: dict[str, str], image: str) -> list[str]:
    """Eight containers of eight processes, each on half of a GPU of its own."""
    names = [f"gsb-{os.getpid()}-{number}" for number in range(CONTAINERS)]
    for name in names:
        words = [f"{BIN}/gpushare", "run", "-d", "--gpu", "0.6", "--name", name, "--network", "none"]
        subprocess.run([*words, image, "sh", "-c", CHILDREN], env=environ, check=True, capture_output=True)
    return names


def pids_of(docker: str, name: str) -> list[int]:
    done = subprocess.run([docker, "top", name, "-o", "pid"], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()[1:]]


def gpus_of(connection: Connection) -> dict[str, tuple[str, int]]:
    """Lease and GPU index of each container."""
    leases = connection.call("Leases/List")["leases"]
    assert isinstance(leases, list)
    return {one["container_name"]: (one["id"], one["grants"][0]["gpu_index"]) for one in leases}


def use(connection: Connection, gpu_index: int, pids: list[int], memory_bytes: int) -> None:
    processes = [{"pid": pid, "memory_bytes": str(memory_bytes)} for pid in pids]
    connection.call("Simulation/Change", gpu_index=gpu_index, processes=processes, unannounced=True)


def reaction_seconds(connection: Connection, lease: str, gpu_index: int, pid: int) -> float:
    """From too much memory to the decision to end the container."""
    time.sleep(1 + random.random())  # not in step with the looks of the daemon
    token = connection.call("Leases/Get", lease_id=lease)["token"]
    begin = time.perf_counter()
    use(connection, gpu_index, [pid], 60 * GIB)
    connection.call("Leases/Wait", lease_id=lease, token=token, timeout_seconds=30)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--seconds", type=float, default=30.0)
    words = parser.parse_args()
    docker = need("docker")
    names: list[str] = []
    with daemon() as bench:
        try:
            names = start(bench.environ, words.image)
            connection = Connection(bench.socket)
            places = gpus_of(connection)
            pids = {name: pids_of(docker, name) for name in names}
            for name in names:
                use(connection, places[name][1], pids[name], GIB)
            count = sum(map(len, pids.values()))
            print(f"watchdog over {count} processes: {cpu_share(bench.pid, words.seconds)}")
            seconds = [reaction_seconds(connection, *places[name], pids[name][0]) for name in names]
            print(
                f"  from too much memory to action: p50 {ms(percentile(seconds, 50))}  max {ms(max(seconds))}"
            )
        finally:
            subprocess.run([docker, "rm", "-f", *names], capture_output=True, check=False)


def cpu_share(pid: int, seconds: float) -> str:
    process = psutil.Process(pid)
    time.sleep(3)
    before, begin = process.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after, wall = process.cpu_times(), time.perf_counter() - begin
    used = after.user + after.system - before.user - before.system
    return f"{used / wall * 100:.2f} % of a core, {rss(process)}"


if __name__ == "__main__":
    main()
