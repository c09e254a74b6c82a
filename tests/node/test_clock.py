"""The machine's clock is set while leases run: durations stay as they are, times of the day follow it.

The daemon alone has another clock, a file of two figures: how far its time of day is ahead, and its time
since the boot. What is to take ten minutes is over when those have passed since the boot, so no test waits.
"""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until
from tests.node.test_jobs import job, submit, wait_job
from tests.pool.failures.machine import clock_library

MINUTE, HOUR = 60.0, 3600.0
LIMIT: Json = {"time": "10m"}
BUILD: Json = {"class": "build"}


class Clocks:
    """Those of one daemon, over all its lives."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clocks"
        self.day_ahead, self.up_ahead = 0.0, 0.0
        self._write()
        self.environment = {
            "LD_PRELOAD": str(clock_library(folder)),
            "SHIFTED_CLOCK": str(self._file),
        }

    def _write(self) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("dd", self.day_ahead, self.up_ahead))

    def set_day(self, seconds: float) -> None:
        """By so much somebody sets it."""
        self.day_ahead += seconds
        self._write()

    def run(self, seconds: float) -> None:
        """Time passes, on both."""
        self.day_ahead += seconds
        self.up_ahead += seconds
        self._write()


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@pytest.fixture
def clocked(new_daemon: NewDaemon, docker_engine: str, clocks: Clocks) -> DaemonProcess:
    """A daemon with these clocks, ready."""
    daemon = new_daemon(engine=docker_engine, environment=clocks.environment)
    daemon.start()
    return daemon


def jump(daemon: DaemonProcess, clocks: Clocks, seconds: float) -> None:
    """Set its time of day, and come back when it has looked at all its deadlines since."""
    witness = daemon.request("0.05", held=True)
    for step in (seconds - 1, 1.0):  # what the second one finds comes after all that the first led to
        clocks.set_day(step)
        witness["created_at"] += step
        wait_until(lambda: seen(daemon, witness), "it follows its clock")


def seen(daemon: DaemonProcess, lease: Json) -> bool:
    """Whether a lease is shown by the time of day that it has here."""
    return abs(float(daemon.lease(lease["id"])["created_at"]) - float(lease["created_at"])) < 0.5


def lease_file(daemon: DaemonProcess, lease: Json) -> Json:
    lease_file: Json = json.loads(
        daemon.check("exec", lease["container_id"], "cat", "/run/gpushare/lease.json")
    )
    return lease_file


def hold(daemon: DaemonProcess) -> Json:
    """A lease of ten minutes whose container runs."""
    lease = daemon.request("0.5", **LIMIT)
    daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    return daemon.wait_lease(lease["id"], "active")


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_lease_lasts_as_long_as_it_was_to_whichever_way_the_clock_is_set(
    clocked: DaemonProcess, clocks: Clocks, by: float
) -> None:
    lease = hold(clocked)
    jump(clocked, clocks, by)
    now = clocked.lease(lease["id"])
    assert now["state"] == "active"
    for name in ("created_at", "since", "expires_at"):
        assert now[name] == pytest.approx(lease[name] + by, abs=1.0), "people are told the new time of day"
    wait_until(
        lambda: lease_file(clocked, lease)["expires_at"] == pytest.approx(now["expires_at"]),
        "its container is told too",
    )
    clocks.run(10 * MINUTE)
    assert clocked.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "expired"


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
def test_it_does_so_though_no_daemon_ran_when_the_clock_was_set(
    clocked: DaemonProcess, clocks: Clocks, by: float
) -> None:
    lease = hold(clocked)
    clocked.kill()
    clocks.set_day(by)
    clocked.start()
    jump(clocked, clocks, 2.0)
    now = clocked.lease(lease["id"])
    assert now["state"] == "active"
    assert now["expires_at"] == pytest.approx(lease["expires_at"] + by + 2, abs=1.0)
    clocked.restart()
    clocks.run(10 * MINUTE)
    assert clocked.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "expired"


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_job_of_this_node_lasts_so_long_too(clocked: DaemonProcess, clocks: Clocks, by: float) -> None:
    (name,) = submit(clocked, "sleep", "1000", lease=LIMIT, requeue=False)
    before = wait_job(clocked, name, "running")
    jump(clocked, clocks, by)
    wait_until(
        lambda: job(clocked, name)["started_at"] == pytest.approx(before["started_at"] + by, abs=1.0),
        "the job store follows too",
    )
    assert job(clocked, name)["state"] == "running"
    clocks.run(10 * MINUTE)
    assert "time limit" in wait_job(clocked, name, "failed")["reason"]


def test_what_is_to_begin_at_a_time_of_day_begins_when_the_clock_is_set_there(
    clocked: DaemonProcess, clocks: Clocks
) -> None:
    lease = clocked.request("0.5", begin_at=time.time() + HOUR)
    (name,) = submit(clocked, "true", lease={"begin_at": time.time() + 2 * HOUR})
    assert clocked.lease(lease["id"])["waiting"]["reason"] == "begin_time"
    jump(clocked, clocks, -HOUR)
    jump(clocked, clocks, 90 * MINUTE)
    waits = clocked.lease(lease["id"])
    assert (waits["state"], waits["begin_at"]) == ("queued", lease["begin_at"])
    assert waits["waiting"]["start_from"] == pytest.approx(lease["begin_at"], abs=0.01)
    clocks.set_day(31 * MINUTE)
    clocked.wait_lease(lease["id"], "reserved")
    assert clocked.call("Jobs/Explain", {"job_id": name})["reason_code"] == "begin_time"
    clocks.set_day(HOUR)
    wait_job(clocked, name, "succeeded")


def test_quiet_hours_are_those_of_the_clock_as_it_is_set(
    new_daemon: NewDaemon, docker_engine: str, clocks: Clocks
) -> None:
    first, last = (time.strftime("%H:00", time.localtime(time.time() + ahead * HOUR)) for ahead in (3, 6))
    config = f"""
[idle.quiet]
hours = "{first}-{last}"
classes = ["build"]
warn_seconds = "1s"
lower_seconds = 0
action_seconds = "1h"
"""
    daemon = new_daemon(engine=docker_engine, environment=clocks.environment, config=config)
    daemon.start()
    lease = daemon.request("0.5", **BUILD)
    daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    daemon.wait_lease(lease["id"], "active")
    jump(daemon, clocks, 2.0)
    assert daemon.lease(lease["id"]).get("notice") is None
    jump(daemon, clocks, 4 * HOUR)
    wait_until(lambda: daemon.lease(lease["id"]).get("notice") is not None, "it is told that it is idle")
    jump(daemon, clocks, -4 * HOUR)
    wait_until(lambda: daemon.lease(lease["id"]).get("notice") is None, "the quiet time is over")
