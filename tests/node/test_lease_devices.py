"""Engines that apply a lease's device at every start: a container is created before its lease is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until


@pytest.fixture
def daemon(new_daemon: NewDaemon, cdi_engine: CdiEngine, mps_control_binary: Path) -> DaemonProcess:
    started = new_daemon(engine=cdi_engine.socket, config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    started.start()
    return started


def env_inside(daemon: DaemonProcess, container: str) -> dict[str, str]:
    """What the container's first process really has."""
    text = Path(f"/proc/{daemon.pid_of(container)}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def stop_lease(daemon: DaemonProcess, lease: Json) -> None:
    daemon.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    daemon.wait_lease(lease["id"], "ended")


def only_lease(daemon: DaemonProcess) -> Json:
    (lease,) = daemon.leases().values()
    return lease


def test_the_lease_is_taken_at_the_start_and_not_at_the_create(daemon: DaemonProcess) -> None:
    container = daemon.create_container("--label", "gpushare.gpu=0.25", "-e", "CUDA_VISIBLE_DEVICES=all")
    assert daemon.leases() == {}
    daemon.check("start", container)
    lease = daemon.wait_lease(only_lease(daemon)["id"], "active")
    env = env_inside(daemon, container)
    assert env["CUDA_VISIBLE_DEVICES"] == lease["grants"][0]["gpu_uuid"]
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert lease["memory_wall"] == "mps-client"


@pytest.mark.parametrize("claimed", [True, False])
def test_a_container_that_is_started_again_takes_whatever_gpu_is_free(
    daemon: DaemonProcess, claimed: bool
) -> None:
    """Also one that `gpushare run` created."""
    first = daemon.hold("0.5") if claimed else None
    container = first["container_id"] if first else daemon.run_container("--label", "gpushare.gpu=0.5")
    first = first or only_lease(daemon)
    daemon.check("stop", container)
    daemon.wait_lease(first["id"], "ended")
    assert daemon.free_permille() == [1000, 1000]
    blocker = daemon.hold("1")
    if blocker["grants"][0]["gpu_uuid"] != first["grants"][0]["gpu_uuid"]:
        second = daemon.hold("1")
        stop_lease(daemon, blocker)
        blocker = second
    daemon.check("start", container)
    (again,) = (one for one in daemon.leases().values() if one["id"] != blocker["id"])
    daemon.wait_lease(again["id"], "active")
    assert again["grants"][0]["gpu_uuid"] != first["grants"][0]["gpu_uuid"]
    assert env_inside(daemon, container)["CUDA_VISIBLE_DEVICES"] == again["grants"][0]["gpu_uuid"]


def test_stopped_and_started_at_once_it_has_its_settings_each_time(daemon: DaemonProcess) -> None:
    """What is taken away of the old lease must not be taken from the new one, which has the same device."""
    container = daemon.run_container("--label", "gpushare.gpu=0.25")
    for _ in range(5):
        daemon.check("stop", container)
        daemon.check("start", container)
        (lease,) = (one for one in daemon.leases().values() if one["state"] != "draining")
        assert daemon.wait_lease(lease["id"], "active")["container_id"] == container
        assert env_inside(daemon, container)["GPUSHARE_LEASE"] == lease["id"]
        directory = Path(f"/proc/{daemon.pid_of(container)}/root/run/gpushare/mps")
        assert (directory / "control").is_socket()


def test_its_spec_goes_with_its_lease(daemon: DaemonProcess, cdi_engine: CdiEngine) -> None:
    lease = daemon.hold("0.25")
    spec = cdi_engine.spec_dir / f"gpushare.io-lease-{lease['id']}.json"
    assert spec.exists()
    stop_lease(daemon, lease)
    wait_until(lambda: not spec.exists(), "the spec is removed")


def test_the_spec_of_a_lease_that_ended_unseen_is_removed_at_the_next_start(
    daemon: DaemonProcess, cdi_engine: CdiEngine
) -> None:
    """As when the daemon dies between writing the end and removing the spec."""
    lease = daemon.request("0.25")
    wait_until(lambda: daemon.lease(lease["id"])["memory_wall"], "its settings are made")
    spec = cdi_engine.spec_dir / f"gpushare.io-lease-{lease['id']}.json"
    text = spec.read_text()
    daemon.call("Leases/Release", {"lease_id": lease["id"]})
    wait_until(lambda: not spec.exists(), "the spec is removed")
    daemon.kill()
    spec.write_text(text)
    daemon.start()
    wait_until(lambda: not spec.exists(), "the spec is removed")


def test_a_restart_policy_keeps_lease_and_settings(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--restart", "always")
    container, pid = lease["container_id"], daemon.pid_of(lease["container_id"])
    daemon.check("restart", "--time", "0", container)
    wait_until(lambda: daemon.pid_of(container) not in (0, pid), "it is restarted")
    assert daemon.wait_lease(lease["id"], "active")["grants"] == lease["grants"]
    assert env_inside(daemon, container)["GPUSHARE_LEASE"] == lease["id"]
