"""Containers whose processes use a GPU beside MPS: a real engine, a real control daemon, simulated GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until

GIB = 1024**3


@pytest.fixture
def sharing(new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path) -> DaemonProcess:
    """Its class ``infer`` is only warned."""
    config = f'[sharing]\nmps_binary = "{mps_control_binary}"\n[watchdog]\ninfer = "warn"\n'
    daemon = new_daemon(engine=docker_engine, config=config)
    daemon.start()
    return daemon


def use(daemon: DaemonProcess, lease: Json, *, mps_client: bool | None) -> int:
    """The main process of the lease's container holds memory from now on, inside or outside MPS."""
    pid = daemon.pid_of(lease["container_id"])
    process: Json = {"pid": pid, "memory_bytes": str(GIB)}
    if mps_client is not None:
        process["mps_client"] = mps_client
    gpu = lease["grants"][0]["gpu_index"]
    daemon.call("Simulation/Change", {"gpu_index": gpu, "processes": [process]})
    return pid


@pytest.mark.parametrize("isolation", ["shared", "separate"])
def test_a_container_that_leaves_mps_is_ended_and_its_neighbours_run_on(
    sharing: DaemonProcess, isolation: str
) -> None:
    asked = sharing.request("0.25", isolation=isolation)
    sharing.run_container("--label", f"gpushare.lease={asked['id']}")
    leaver = sharing.wait_lease(asked["id"], "active")
    clients, untold = sharing.hold("0.25"), sharing.hold("0.25")
    use(sharing, clients, mps_client=True)
    use(sharing, untold, mps_client=None)
    pid = use(sharing, leaver, mps_client=False)
    ended = sharing.wait_lease(leaver["id"], "ended")
    assert ended["outcome"] == {
        "kind": "outside_mps",
        "text": f"its process {pid} used GPU 0 without MPS, which holds it to its part",
    }
    named = f"its process {pid} uses GPU 0 without MPS, where nothing holds it to its part"
    assert {named, f"killed because its process {pid} left MPS"} <= set(sharing.story(leaver["id"]))
    assert sharing.container(leaver["container_id"])["State"]["Status"] == "exited"
    for other in (clients, untold):
        assert sharing.lease(other["id"])["state"] == "active"
        assert sharing.container(other["container_id"])["State"]["Status"] == "running"


def test_where_the_watchdog_only_warns_the_story_tells_who_left_mps_and_who_came_back(
    sharing: DaemonProcess,
) -> None:
    asked = sharing.call("Leases/Request", {"gpu": "0.25", "class": "infer"})
    sharing.run_container("--label", f"gpushare.lease={asked['id']}")
    lease = sharing.wait_lease(asked["id"], "active")
    pid = use(sharing, lease, mps_client=False)
    named = f"its process {pid} uses GPU 0 without MPS, where nothing holds it to its part"
    wait_until(lambda: sharing.story(lease["id"])[-1] == named, "it is named")
    use(sharing, lease, mps_client=True)
    wait_until(lambda: "any more" in sharing.story(lease["id"])[-1], "it is told that all is well")
    assert sharing.lease(lease["id"])["state"] == "active"


def test_a_lease_that_mps_does_not_hold_cannot_leave_it(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = new_daemon(engine=docker_engine, config='[sharing]\nmps = "off"\n')
    daemon.start()
    lease = daemon.hold("0.25")
    before = daemon.story(lease["id"])
    use(daemon, lease, mps_client=False)
    wait_until(lambda: daemon.lease(lease["id"]).get("memory_used_bytes") == str(GIB), "it is seen")
    assert daemon.story(lease["id"]) == before


def test_the_simulate_command_lets_a_program_leave_mps(sharing: DaemonProcess) -> None:
    lease = sharing.hold("0.25", "--name", f"leaver-{os.getpid()}")
    words = ["--container", f"leaver-{os.getpid()}", "--memory", "1g", "--outside-mps"]
    sharing.gpushare_says("simulate", *words)
    assert sharing.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "outside_mps"
