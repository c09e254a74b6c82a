"""Hold what the measurements share: a daemon of their own on simulated GPUs, percentiles, a table."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
READY_SECONDS = 30


@dataclass(frozen=True)
class Bench:
    """A running daemon: its socket, its process id, and the environment of its clients."""

    socket: str
    pid: int
    environ: dict[str, str]


@contextmanager
def daemon(simulate: str = "h100:8", **config: str) -> Iterator[Bench]:
    """A daemon on simulated GPUs in a folder of its own; ends with the block. ``config``: SECTION__KEY."""
    home = Path(tempfile.mkdtemp(prefix="gsb-"))
    words = [
        BIN / "gpushared",
        "--simulate",
        simulate,
        "--runtime-dir",
        home / "r",
        "--state-dir",
        home / "s",
    ]
    settings = {f"GPUSHARED_{key.upper()}": value for key, value in config.items()}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(words, stderr=log, env=os.environ | settings)
    path = str(home / "r" / "gpushared.sock")
    try:
        _wait_for(path, process, home / "log")
        yield Bench(path, process.pid, os.environ | {"GPUSHARE_HOST": f"unix://{path}"})
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(home, ignore_errors=True)


def _wait_for(path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while not _answers(path):
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the daemon did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def timed(words: Sequence[str | Path], environ: dict[str, str] | None = None) -> float:
    """Seconds of one whole process; its failure ends the bench."""
    start = time.perf_counter()
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stderr}")
    return seconds


def pairs(
    first: Sequence[str | Path], second: Sequence[str | Path], environ: dict[str, str], count: int
) -> tuple[list[float], list[float]]:
    """Both commands in turns, each pair in the other order, so that drift of the machine hits both."""
    timed(first, environ)
    timed(second, environ)
    left, right = [], []
    for number in range(count):
        if number % 2:
            right.append(timed(second, environ))
            left.append(timed(first, environ))
        else:
            left.append(timed(first, environ))
            right.append(timed(second, environ))
    return left, right


def cpu_seconds(words: Sequence[str | Path], environ: dict[str, str]) -> float:
    """User and system time of one process and the children it waited for; its failure ends the bench."""
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


@contextmanager
def installed() -> Iterator[Path]:
    """The command as ``gpushared install`` puts it in place, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="gsb-") as folder:
        words = [BIN / "gpushared", "install", "--prefix", folder]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        yield Path(folder) / "usr/local/bin/gpushare"


def print_conditions() -> None:
    """Describe the machine's other work: timings of a busy machine say little."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}")


def compare(name: str, left: list[float], right: list[float], names: tuple[str, str]) -> float:
    """Print medians and the median of the ratios of pairs; the ratio."""
    ratio = statistics.median(a / b for a, b in zip(left, right, strict=True))
    print(f"{name}: {len(left)} pairs")
    for label, values in zip(names, (left, right), strict=True):
        figures = f"min {ms(min(values))}  median {ms(statistics.median(values))}"
        print(f"  {label:24} {figures}  p90 {ms(percentile(values, 90))}")
    print(f"  ratio (median of pairs)  {ratio:.3f}")
    return ratio


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:7.2f} ms"


def need(program: str) -> str:
    """The path of a program; without it there is nothing to measure."""
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"{program} is not installed, so there is nothing to compare with")
    return found
