"""The gate against the bare engine: `docker run`, and bytes of attach, cp and logs, in turns.

Ratios of rates are of pairs in one run. A machine that does something else besides gives the gate, which is
a process more, a smaller share: then compare what a second of CPU time passes, of the gate and of the engine.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import compare, daemon, need, pairs

MEGABYTE = 1_000_000
SCRATCH = f"gate-overhead-{os.getpid()}"
"""The name of the container whose files and logs are read."""
LINE_BYTES = 200
FILE_MEGABYTES = 400
ONCE = ["run", "--rm", "--network", "none", "--log-driver", "none"]


@dataclass(frozen=True)
class Bench:
    """The client, the two places it is pointed at, and the processes behind them."""

    docker: str
    direct: str
    gate: str
    image: str
    gate_process: psutil.Process
    engine_process: psutil.Process

    def words(self, url: str, *words: str) -> list[str]:
        return [self.docker, "-H", url, *words]

    def directly(self, *words: str) -> None:
        subprocess.run(self.words(self.direct, *words), stdout=subprocess.DEVNULL, check=True)


@dataclass(frozen=True)
class Part:
    """One stream: how much of it, and the command for so many bytes and the path of a file that has them."""

    megabytes: int
    command: Callable[[Bench, int, str], list[str]]
    takes_input: bool = False


PARTS = {
    "attach-out": Part(
        150, lambda bench, size, _: [*ONCE, bench.image, "head", "-c", str(size), "/dev/zero"]
    ),
    "attach-in": Part(
        FILE_MEGABYTES,
        lambda bench, _size, _: [*ONCE, "-i", bench.image, "sh", "-c", "cat > /dev/null"],
        takes_input=True,
    ),
    "cp-out": Part(FILE_MEGABYTES, lambda _, _size, _big: ["cp", f"{SCRATCH}:/big", "-"]),
    "cp-in": Part(FILE_MEGABYTES, lambda _, _size, big: ["cp", big, f"{SCRATCH}:/in"]),
    "logs": Part(15, lambda _, _size, _big: ["logs", SCRATCH]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["run", *PARTS, []], help="all of them by default")
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--docker", default=need("docker"), help="the client to measure with")
    parser.add_argument("--engine", default="unix:///var/run/docker.sock")
    parser.add_argument("--network", default="bridge", help="docker's network mode")
    parser.add_argument("--pairs", type=int, default=10, help="of docker run")
    parser.add_argument("--times", type=int, default=1, help="as many bytes in each stream")
    parser.add_argument("--streams", type=int, default=3, help="pairs of each stream")
    words = parser.parse_args()
    path = words.engine.removeprefix("unix://")
    with daemon(engine__socket=path) as served:
        processes = psutil.Process(served.pid), psutil.Process(listener_of(path))
        bench = Bench(words.docker, words.engine, f"unix://{served.socket}", words.image, *processes)
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        if not words.parts or "run" in words.parts:
            run(bench, words.network, words.pairs)
        parts = [name for name in PARTS if not words.parts or name in words.parts]
        if parts:
            streams(bench, parts, words.times, words.streams)
        print(f"load after: {os.getloadavg()[0]:.1f}")


def listener_of(path: str) -> int:
    """The engine's process; where systemd listens for it, the only process of its name."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    named = [process.pid for process in psutil.process_iter() if process.name() == "dockerd"]
    return int(pid) if pid in named or not named else named[0]


def run(bench: Bench, network: str, count: int) -> None:
    container = ["run", "--rm", "--network", network, bench.image, "true"]
    through, bare = bench.words(bench.gate, *container), bench.words(bench.direct, *container)
    left, right = pairs(through, bare, dict(os.environ), count)
    compare(f"docker run, network {network}", left, right, ("through the gate", "directly"))


def streams(bench: Bench, parts: list[str], times: int, count: int) -> None:
    print(f"{'MB/s':12}{'gate':>8}{'directly':>10}{'ratio':>8}   MB in a CPU second of gate, engine directly")
    with prepared(bench, parts, times) as big:
        for name in parts:
            in_turns(bench, name, times, count, big)


@contextmanager
def prepared(bench: Bench, parts: list[str], times: int) -> Iterator[str]:
    """A container with a large file and a log, as far as the parts need them; gives a file for the input."""
    size = FILE_MEGABYTES * times * MEGABYTE
    lines = PARTS["logs"].megabytes * times * MEGABYTE // LINE_BYTES * ("logs" in parts)
    line, copied = "x" * (LINE_BYTES - 1), size * ("cp-out" in parts)
    fill = f"head -c {copied} /dev/zero > /big; yes {line} | head -n {lines}"
    try:
        bench.directly("run", "--name", SCRATCH, "--network", "none", bench.image, "sh", "-c", fill)
        with tempfile.NamedTemporaryFile() as big:
            big.truncate(size)
            yield big.name
    finally:
        bench.directly("rm", "-f", SCRATCH)


def in_turns(bench: Bench, name: str, times: int, count: int, big: str) -> None:
    """Each pair in the other order, so that drift of the machine hits both."""
    rates: dict[str, list[float]] = {bench.gate: [], bench.direct: []}
    spent = {bench.gate: 0.0, bench.direct: 0.0}
    size = PARTS[name].megabytes * times * MEGABYTE
    for number in range(count):
        for url in (bench.gate, bench.direct) if number % 2 else (bench.direct, bench.gate):
            process = bench.gate_process if url == bench.gate else bench.engine_process
            before = cpu_seconds(process)
            rates[url].append(rate(bench, url, PARTS[name], size, big))
            spent[url] += cpu_seconds(process) - before
    gate, direct = rates[bench.gate], rates[bench.direct]
    ratio = statistics.median(left / right for left, right in zip(gate, direct, strict=True))
    passed = [count * size / MEGABYTE / max(spent[url], 0.01) for url in (bench.gate, bench.direct)]
    print(
        f"{name:12}{statistics.median(gate):8.0f}{statistics.median(direct):10.0f}{ratio:8.2f}"
        f"{passed[0]:16.0f},{passed[1]:6.0f}",
        flush=True,
    )


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its ended children, in which the engine packs and unpacks."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def rate(bench: Bench, url: str, part: Part, size: int, big: str) -> float:
    """Megabytes in a second of the whole command, its start included."""
    words = bench.words(url, *part.command(bench, size, big))
    start = time.perf_counter()
    with Path(big if part.takes_input else os.devnull).open("rb") as stdin:
        done = subprocess.run(
            words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr.decode()}")
    return size / MEGABYTE / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
