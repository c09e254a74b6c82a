"""(g) ``gpushare top``: the time to its first picture, and what it costs while it is left open.

The terminal is a pty of this process, which reads what is drawn and throws it away. Both costs are CPU time of whole
processes; the daemon's is what it takes more than without ``top``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from common import Bench, compare, daemon, installed, ms, percentile, print_conditions, timed
from idle_daemon import rss
from lease_cycle import Connection

LEASES, GPUS = 64, 8
LINES, COLUMNS = 50, 160
FIRST = b"LEASES"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--interval", default="2")
    words = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with daemon(f"h100:{GPUS}", queue__claim_seconds="3600") as bench, installed() as gpushare:
        print_conditions()
        hold(bench)
        first_pictures(bench, gpushare, words.times)
        cost(bench, gpushare, words.interval, words.seconds)
        print_conditions()


def hold(bench: Bench) -> None:
    """Ask for leases; they are kept for an hour without containers."""
    connection = Connection(bench.socket)
    for number in range(LEASES):
        connection.call("Leases/Request", gpu="0.125", request_id=f"bench-{number}")


def first_pictures(bench: Bench, gpushare: Path, times: int) -> None:
    pictures, listings = [], []
    for _ in range(times):
        listings.append(timed([gpushare, "ps"], bench.environ))
        began = time.perf_counter()
        with on_terminal([gpushare, "top"], bench.environ) as (_, end):
            shown = b""
            while FIRST not in shown:
                shown += os.read(end, 65536)
            pictures.append(time.perf_counter() - began)
    compare("first picture", pictures, listings, ("gpushare top", "gpushare ps"))
    print(f"  p90 of the first picture {ms(percentile(pictures, 90))}")


def cost(bench: Bench, gpushare: Path, interval: str, seconds: float) -> None:
    served = psutil.Process(bench.pid)
    without = spent(served, seconds / 2)
    with on_terminal([gpushare, "top", "--interval", interval], bench.environ) as (process, end):
        drain(end, 2.0)
        watched = psutil.Process(process.pid)
        before, before_daemon, began = cpu(watched), cpu(served), time.perf_counter()
        written = drain(end, seconds / 2)
        wall = time.perf_counter() - began
        used, used_daemon = cpu(watched) - before, cpu(served) - before_daemon
        own, more = used / wall * 100, (used_daemon / wall - without) * 100
        print(f"top, {GPUS} GPUs, {LEASES} leases, each {interval} s, over {wall:.0f} s:")
        print(f"  its own          {own:.2f} % of a core, {rss(watched)}, {written / wall:.0f} bytes/s drawn")
        print(f"  the daemon's     {more:.2f} % of a core more than {without * 100:.2f} %")


def spent(process: psutil.Process, seconds: float) -> float:
    """The part of a core that a process takes."""
    before, began = cpu(process), time.perf_counter()
    time.sleep(seconds)
    return (cpu(process) - before) / (time.perf_counter() - began)


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def drain(end: int, seconds: float) -> int:
    """Read what is drawn for a time, and return how many bytes it was."""
    until, count = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        if select.select([end], [], [], left)[0]:
            count += len(os.read(end, 65536))
    return count


@contextmanager
def on_terminal(
    words: list[str | Path], environ: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    end, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    terminal = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ | terminal)
    os.close(theirs)
    try:
        yield process, end
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        os.close(end)


if __name__ == "__main__":
    main()
