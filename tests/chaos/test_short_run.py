"""A short chaos run keeps every promise, and a run that is stopped or killed leaves no machine behind.

The long ones are made by hand: ``scripts/chaos --minutes 60``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.bed import parts
from tests.chaos.chaos import carry_out
from tests.chaos.machines import Machines, sweep
from tests.chaos.main import summarize
from tests.chaos.plan import make_plan

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes networks"),
    pytest.mark.usefixtures("docker_engine", "docker_cli"),
]
SEED, MINUTES, FAULTS = 52, 3.0, 40
"""A plan with every kind of work, a store restored early and a daemon that is frozen for long."""
BEGIN_SECONDS = 240.0


async def test_a_pool_that_is_broken_forty_times_in_three_minutes_keeps_every_promise() -> None:
    plan = make_plan(SEED, MINUTES, FAULTS)
    folder = parts.CACHE / "chaos" / f"test-{os.getpid()}"
    record, runs, found = await carry_out(plan, folder, parts.CACHE, print)  # shown where it fails
    summary = summarize(plan, record, runs, found, folder)
    assert found == [], summary
    assert len(record.spans) == FAULTS
    assert len(runs) > FAULTS // 2, summary


@pytest.fixture
def begun() -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own whose faults have begun."""
    words = [sys.executable, "-m", "tests.chaos.main", "--minutes", "3"]
    process = subprocess.Popen(words, cwd=parts.ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if "daemon" in line or "engine" in line or "coordinator" in line:
                break
        else:
            pytest.fail(f"it ended before it began: {''.join(said)}")
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
        sweep(parts.CACHE)


def pool_of(process: subprocess.Popen[str]) -> Machines:
    """The machines that it made, by the lock that it holds."""
    (lock,) = (
        Path(file.path) for file in psutil.Process(process.pid).open_files() if "gpushared-chaos" in file.path
    )
    return Machines(int(lock.name), parts.CACHE)


def left_of(machines: Machines) -> list[str]:
    """Processes, files, networks, mounts and users that bear the pool's name."""
    name = f"{machines.name}-pool"
    left = []
    for process in psutil.process_iter(["cmdline"]):
        left += [word for word in process.info["cmdline"] or () if name in word]
    left += [str(path) for path in (machines.state, machines.run_dir) if path.exists()]
    left += [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    left += [line for line in Path("/etc/passwd").read_text().splitlines() if line.startswith(machines.name)]
    return left


def test_control_c_leaves_nothing_behind(begun: subprocess.Popen[str]) -> None:
    machines = pool_of(begun)
    assert left_of(machines)
    begun.send_signal(signal.SIGINT)
    assert begun.wait(BEGIN_SECONDS) == 130
    assert left_of(machines) == []


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_of_one_that_goes_on(
    begun: subprocess.Popen[str],
) -> None:
    machines = pool_of(begun)
    assert machines.name not in sweep(parts.CACHE)
    assert left_of(machines)
    begun.kill()
    begun.wait()
    assert machines.name in sweep(parts.CACHE)
    assert left_of(machines) == []
