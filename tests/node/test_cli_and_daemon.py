"""The command line against a daemon that dies under it: the real programs, the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bed import parts
from tests.node.daemon import GPUSHARE, DaemonProcess, wait_until


@contextmanager
def running(daemon: DaemonProcess, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`gpushare` with these words, in the background."""
    environment = {
        **os.environ,
        "GPUSHARE_HOST": f"unix://{daemon.socket}",
        "PATH": f"{parts.DOCKER.parent}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        [str(GPUSHARE), *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_words(daemon: DaemonProcess, gpu: str, *command: str) -> list[str]:
    return ["run", "--gpu", gpu, "--rm", *daemon.container_options(), *command]


def test_run_gives_the_container_its_part_and_its_exit_code(daemon: DaemonProcess) -> None:
    with running(daemon, *run_words(daemon, "0.25", "sh", "-c", "env; exit 3")) as run:
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 3
    env = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert env["GPUSHARE_COMPUTE_PERCENT"] == "25"
    assert env["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    wait_until(lambda: daemon.free_permille() == [1000, 1000], "the capacity is back")


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_whoever_waits_keeps_the_place_while_the_daemon_restarts(daemon: DaemonProcess, end: str) -> None:
    holder = daemon.request("2")
    with running(daemon, *run_words(daemon, "2", "sh", "-c", "exit 4")) as first:
        wait_until(lambda: len(daemon.leases()) == 2, "the first waits")
        with running(daemon, *run_words(daemon, "1", "true")) as second:
            wait_until(lambda: len(daemon.leases()) == 3, "the second waits")
            order = list(daemon.leases())
            getattr(daemon, end)()
            daemon.start()
            assert list(daemon.leases()) == order
            daemon.call("Leases/Release", {"lease_id": holder["id"]})
            assert first.wait(60) == 4
            assert second.wait(60) == 0
    ended = daemon.call("Leases/List", {"ended": True, "limit": 10})["leases"]
    assert {one["id"] for one in ended} == set(order)


def test_ctrl_c_leaves_the_queue(daemon: DaemonProcess) -> None:
    daemon.request("2")
    with running(daemon, *run_words(daemon, "1", "true")) as waiting:
        wait_until(lambda: len(daemon.leases()) == 2, "it waits")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(30) == 130
    wait_until(lambda: len(daemon.leases()) == 1, "the queue is left")


def test_a_container_that_runs_is_not_touched_by_a_crash_of_the_daemon(daemon: DaemonProcess) -> None:
    """Its `docker run` loses its line to it; the container works on and keeps its lease."""
    with running(daemon, *run_words(daemon, "0.25", "sleep", "1000")):
        wait_until(lambda: [one["state"] for one in daemon.leases().values()] == ["active"], "it runs")
        (lease,) = daemon.leases().values()
        pid = daemon.pid_of(lease["container_id"])
        daemon.kill()
        daemon.start()
        assert daemon.lease(lease["id"])["state"] == "active"
        assert daemon.pid_of(lease["container_id"]) == pid
