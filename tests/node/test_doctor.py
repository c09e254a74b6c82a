"""The doctor of a real daemon: over both faces, for both kinds of callers, on simulated and on fake GPUs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpushared.doctor.checks import CHECKS
from tests.gpus.fake_nvml import FakeGpu, FakeMachine, fake_nvml_library
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, make_directory, wait_until
from tests.node.grpc_client import ask
from tests.pool.processes import CoordinatorProcess

NOBODY = 65534


def checks(daemon: DaemonProcess) -> dict[str, Json]:
    return {check["name"]: check for check in daemon.call("Node/Doctor")["checks"]}


def unwell(daemon: DaemonProcess) -> set[str]:
    return {name for name, check in checks(daemon).items() if check["status"] in {"warning", "failed"}}


def test_json_and_grpc_name_the_same_checks_in_order(lone_daemon: DaemonProcess) -> None:
    by_json = lone_daemon.call("Node/Doctor")
    (by_grpc,) = ask(lone_daemon.socket, [("Node/Doctor", {})])
    names = [check.name for check in CHECKS]
    assert [check["name"] for check in by_json["checks"]] == names
    assert [check["name"] for check in by_grpc["checks"]] == names


def test_the_settings_are_for_the_trusted_and_the_checks_for_everybody(lone_daemon: DaemonProcess) -> None:
    trusted, confined = lone_daemon.call("Node/Doctor"), lone_daemon.call("Node/Doctor", uid=NOBODY)
    settings = {(one["section"], one["name"]): one["value"] for one in trusted["settings"]}
    assert settings["node", "state_dir"] == f'"{lone_daemon.state_dir}"'
    assert confined["settings"] == []
    assert len(confined["checks"]) == len(CHECKS)


def test_an_engine_that_is_away_is_one_failure_and_one_line(lone_daemon: DaemonProcess) -> None:
    found = checks(lone_daemon)
    assert found["docker"]["status"] == "failed"
    assert "/nonexistent/docker.sock" in found["docker"]["detail"]
    assert found["docker-cdi"]["blocked_by"] == "docker"
    assert found["daemon-parts"]["status"] == "ok"
    assert [name for name, check in found.items() if check["status"] == "failed"] == ["docker"]


@pytest.mark.docker
def test_simulated_gpus_are_well_but_for_what_is_told(daemon: DaemonProcess) -> None:
    """What this machine lacks are warnings: no CDI, directories of tests on disk."""
    assert unwell(daemon) <= {"docker-cdi", "runtime-directory", "docker-group-members", "journal-disk"}
    assert checks(daemon)["driver"]["status"] == "skipped"
    done = daemon.gpushare("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("SIMULATED")


def test_a_process_without_a_lease_is_named(lone_daemon: DaemonProcess) -> None:
    mine = os.getpid()
    lone_daemon.call(
        "Simulation/Change", {"gpu_index": 1, "processes": [{"pid": mine, "memory_bytes": 2**30}]}
    )
    found = checks(lone_daemon)["unmanaged-processes"]
    assert found["status"] == "warning"
    assert f"on GPU 1 (PID {mine}, 1 GiB)" in found["detail"]


def test_a_configuration_that_was_changed_is_told_until_it_is_read(lone_daemon: DaemonProcess) -> None:
    path = lone_daemon.directory / "config.toml"
    path.write_text("[queue]\nmax_queued = 7\n")
    wait_until(lambda: "systemctl reload" in _config(lone_daemon)["fix"], "the change is told")
    assert _config(lone_daemon)["detail"].endswith(": queue.max_queued")
    path.write_text('[idle]\nwarn_seconds = "7m"\n[jobs]\nmax_kept_containers = 7\n')
    lone_daemon.signal(signal.SIGHUP)
    wait_until(lambda: _config(lone_daemon)["status"] == "ok", "the new configuration is in use")
    path.write_text("[queue]\nmax_queued = 'many'\n")
    wait_until(lambda: _config(lone_daemon)["status"] == "failed", "the mistake is told")
    assert "queue.max_queued" in _config(lone_daemon)["detail"]
    done = lone_daemon.gpushare("doctor", "-o", "columns=check,status")
    assert done.returncode == 1
    assert ["config", "failed"] in [line.split() for line in done.stdout.splitlines()]


def _config(daemon: DaemonProcess) -> Json:
    """As a look finds it that is at most a second old."""
    return checks(daemon)["config"]


@pytest.fixture
def fake_machine(new_daemon: NewDaemon, tmp_path: Path) -> FakeMachine:
    return FakeMachine(
        tmp_path / "state", gpus=[FakeGpu("GPU-fake-a", persistence=0, compute_mode=3, capability=(7, 5))]
    )


def test_a_driver_s_settings_are_judged(
    new_daemon: NewDaemon, fake_machine: FakeMachine, tmp_path: Path
) -> None:
    library = fake_nvml_library(tmp_path / "nvml", named=True)
    daemon = new_daemon(simulate="", environment=fake_machine.environment(library))
    daemon.start()
    found = checks(daemon)
    assert found["driver"]["detail"] == "driver 580.95.05, 1 GPU"
    assert found["persistence-mode"]["status"] == "warning"
    assert "EXCLUSIVE_PROCESS on GPU 0" in found["compute-mode"]["detail"]
    assert found["persistence-daemon"]["blocked_by"] == "persistence-mode"
    assert found["pid-namespace"]["status"] in {"ok", "failed"}


def test_a_driver_that_is_not_loaded_is_the_one_line_about_gpus(
    new_daemon: NewDaemon, fake_machine: FakeMachine, tmp_path: Path
) -> None:
    library = fake_nvml_library(tmp_path / "nvml", named=True)
    fake_machine.unload_driver()
    daemon = new_daemon(simulate="", environment=fake_machine.environment(library))
    daemon.start()
    found = checks(daemon)
    assert "not loaded" in found["driver"]["detail"]
    assert "modprobe nvidia" in found["driver"]["fix"]
    follows = [check.name for check in CHECKS if "driver" in check.after]
    assert {found[name]["blocked_by"] for name in follows} == {"driver"}
    assert found["daemon-parts"]["status"] == "ok"


def test_a_node_in_a_pool_tells_how_it_stands_with_it(lone_daemon: DaemonProcess) -> None:
    """With its coordinator there, and gone."""
    coordinator = CoordinatorProcess(make_directory())
    coordinator.start()
    try:
        assert checks(lone_daemon)["pool-link"]["detail"] == "this node is in no pool"
        token = coordinator.admin.create_join_token(node="n1").token
        lone_daemon.call("Node/Join", {"address": coordinator.address, "token": token, "name": "n1"})
        wait_until(lambda: "linked" in checks(lone_daemon)["pool-link"]["detail"], "it is linked")
        found = checks(lone_daemon)
        assert "is good for" in found["pool-certificate"]["detail"]
        assert "s ahead of this node's" in found["pool-clock"]["detail"].replace("behind", "ahead of")
        assert "--realm" in found["pool-realm"]["fix"]
    finally:
        coordinator.dispose()
    wait_until(lambda: "pool-link" in unwell(lone_daemon), "the lost link is told")


def test_nvidias_library_without_a_driver_is_one_failure_that_says_what_to_try(
    new_daemon: NewDaemon, nvidia_library: Path
) -> None:
    """NVIDIA's own: the daemon serves, grants nothing, and says why, and so does the doctor."""
    daemon = new_daemon(simulate="", environment={"LD_LIBRARY_PATH": str(nvidia_library.parent)})
    daemon.start()
    found = checks(daemon)["driver"]
    assert found["status"] == "failed"
    assert found["detail"] == "The NVIDIA driver is not loaded"
    assert "modprobe nvidia" in found["fix"]
