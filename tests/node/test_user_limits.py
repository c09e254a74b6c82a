"""What users have together, by a daemon with a configuration: over its reload, its death and a reboot."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpushared.ports import CgroupDriver
from gpushared.sharing.limit_files import Trees
from tests.bed import parts
from tests.bed.cgroups import remove_users
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make cgroups, and be somebody else"),
]
ALICE = 61_031
PATIENCE_SECONDS = 30.0


def bound_of(daemon: DaemonProcess) -> str:
    """What the kernel has for alice's processes; empty without a cgroup of hers."""
    tops = Trees.find(1).tops
    place = daemon.users.within(str(ALICE)).path(CgroupDriver.CGROUPFS).lstrip("/")
    file = tops.get("pids", Path("/sys/fs/cgroup")) / place / "pids.max"
    return file.read_text().strip() if file.exists() else ""


def wait_for(daemon: DaemonProcess, bound: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while bound_of(daemon) != bound and time.monotonic() < deadline:
        time.sleep(0.02)  # the kernel tells nobody
    assert bound_of(daemon) == bound


def test_the_limits_of_the_configuration_are_the_kernels(new_daemon: NewDaemon, docker_engine: str) -> None:
    """Also after a reload for what runs; and after a reboot, when the cgroups are gone, before all else."""
    daemon = new_daemon(engine=docker_engine, config="[gate]\npids_per_user = 50\n")
    daemon.start()
    container = daemon.run_container(uid=ALICE)
    assert bound_of(daemon) == "50"
    parent = daemon.check("inspect", "-f", "{{.HostConfig.CgroupParent}}", container).strip()
    assert parent == daemon.users.within(str(ALICE)).docker_name(CgroupDriver.CGROUPFS)
    checks = daemon.call("Node/Doctor")["checks"]
    assert [one["status"] for one in checks if one["name"] == "user-limits"] == ["ok"]
    config = daemon.directory / "config.toml"
    config.write_text(config.read_text().replace("50", "30"))
    daemon.signal(signal.SIGHUP)
    wait_for(daemon, "30")
    daemon.kill()
    assert bound_of(daemon) == "30"
    parts.docker(docker_engine, "rm", "-f", container)
    remove_users(daemon.users)
    assert bound_of(daemon) == ""
    daemon.start()
    wait_for(daemon, "50")
