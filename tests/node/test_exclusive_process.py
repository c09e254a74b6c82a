"""GPUs that are closed to programs without MPS while they are shared: a daemon on a driver that is played.

The daemon's MPS program is the real one, behind one that knows the flag for several users.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARED, DaemonProcess, Json, Refused, wait_until
from tests.node.fake_driver import FakeDriver, make_driver
from tests.sharing.samples import program

QUARTER = ("--label", "gpushare.gpu=0.25")
DEFAULT, EXCLUSIVE_PROCESS = 0, 3


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with contextlib.closing(make_driver()) as made:
        yield made


@pytest.fixture
def daemon(
    new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path, driver: FakeDriver
) -> DaemonProcess:
    newer = program(driver.directory / "newer", f'exec "{mps_control_binary}" ${{1:+-f}}')
    config = f'[gpus]\nexclusive_process = "all"\n[sharing]\nmps_binary = "{newer}"\n'
    started = new_daemon(simulate="", engine=docker_engine, config=config, environment=driver.environment)
    started.start()
    return started


def modes(driver: FakeDriver) -> list[int]:
    """Every mode that was set, in order."""
    return [mode for _, mode in driver.machine.modes_set()]


def run(daemon: DaemonProcess, driver: FakeDriver) -> Json:
    """A container with a quarter of the GPU; its lease."""
    container = daemon.run_container(*QUARTER, *driver.options)
    return next(one for one in daemon.leases().values() if one.get("container_id") == container)


def restore(daemon: DaemonProcess) -> str:
    """What the unit does after the daemon's end."""
    command = [str(GPUSHARED), "--restore-compute-mode", *daemon.flags()]
    done = subprocess.run(
        command, env=os.environ | daemon.environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_the_mode_holds_from_the_first_shared_lease_to_the_end_of_the_last(
    daemon: DaemonProcess, driver: FakeDriver
) -> None:
    first, second = run(daemon, driver), run(daemon, driver)
    assert (first["memory_wall"], modes(driver)) == ("mps-client", [EXCLUSIVE_PROCESS])
    daemon.check("rm", "--force", first["container_id"])
    daemon.wait_lease(first["id"], "ended")
    assert modes(driver) == [EXCLUSIVE_PROCESS]
    daemon.check("rm", "--force", second["container_id"])
    wait_until(lambda: modes(driver) == [EXCLUSIVE_PROCESS, DEFAULT], "the mode is put back")


def test_a_separate_lease_is_refused_with_why(daemon: DaemonProcess, driver: FakeDriver) -> None:
    with pytest.raises(Refused, match="needs an MPS server of its own") as refused:
        daemon.request("0.25", isolation="separate")
    assert "whole GPUs" in refused.value.hint
    assert modes(driver) == []


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_neither_a_stop_nor_a_crash_opens_the_gpu_while_containers_run(
    daemon: DaemonProcess, driver: FakeDriver, end: str
) -> None:
    lease = run(daemon, driver)
    getattr(daemon, end)()
    assert "put back on 0 of the 1 GPUs" in restore(daemon)
    daemon.start()
    assert daemon.lease(lease["id"])["state"] == "active"
    assert modes(driver) == [EXCLUSIVE_PROCESS]


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_what_ended_while_no_daemon_ran_is_put_back_by_the_unit_or_at_the_next_start(
    daemon: DaemonProcess, driver: FakeDriver, end: str
) -> None:
    lease = run(daemon, driver)
    getattr(daemon, end)()
    parts.docker(daemon.engine, "kill", lease["container_id"])
    if end == "kill":
        assert "put back on 1 of the 1 GPUs" in restore(daemon)
        assert restore(daemon) == ""
    else:
        daemon.start()
    wait_until(lambda: modes(driver) == [EXCLUSIVE_PROCESS, DEFAULT], "the mode is put back")


def test_while_a_daemon_runs_the_modes_are_left_to_it(daemon: DaemonProcess, driver: FakeDriver) -> None:
    run(daemon, driver)
    assert "another process sees to the compute modes" in restore(daemon)
    assert modes(driver) == [EXCLUSIVE_PROCESS]


def test_where_the_engine_does_not_answer_the_modes_are_left_for_the_next_start(
    daemon: DaemonProcess, driver: FakeDriver
) -> None:
    run(daemon, driver)
    daemon.kill()
    engine, daemon.engine = daemon.engine, "/nonexistent/docker.sock"
    try:
        assert "left for the daemon's next start" in restore(daemon)
    finally:
        daemon.engine = engine
    assert modes(driver) == [EXCLUSIVE_PROCESS]
