"""GPUs that err, fall off the bus or are drained, with a real daemon, a real engine and simulated GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until
from tests.node.grpc_client import ask
from tests.node.test_jobs import job, submit, wait_job

ALICE = 1001
MIB = 1024**2
FALLIBLE = ("sh", "-c", 'trap "exit 1" USR1; echo began; while :; do sleep 0.1; done')
"""Ends with 1 on SIGUSR1, as a program does whose GPU context broke."""


def gpus(daemon: DaemonProcess) -> list[Json]:
    return list(daemon.call("Gpus/List")["gpus"])


def err(daemon: DaemonProcess, index: int, *xids: int) -> None:
    daemon.call("Simulation/Change", {"gpu_index": index, "xids": list(xids)})


def lose(daemon: DaemonProcess, index: int, trouble: str = "it does not answer") -> None:
    daemon.call("Simulation/Change", {"gpu_index": index, "trouble": trouble})


def gpu_of(daemon: DaemonProcess, running: Json) -> int:
    """The index of the GPU that a running job has."""
    return int(daemon.lease(running["parts"][0]["lease_id"])["grants"][0]["gpu_index"])


def wait_mode(daemon: DaemonProcess, index: int, mode: str) -> Json:
    wait_until(lambda: gpus(daemon)[index]["mode"] == mode, f"GPU {index} is {mode}")
    return gpus(daemon)[index]


def test_a_gpu_that_falls_off_the_bus_ends_what_is_on_it_and_the_neighbour_runs_on(
    daemon: DaemonProcess,
) -> None:
    lease = daemon.hold("1")
    neighbour = daemon.hold("0.5")
    index = lease["grants"][0]["gpu_index"]
    err(daemon, index, 79)
    ended = daemon.wait_lease(lease["id"], "ended")
    assert ended["outcome"]["kind"] == "failed"
    assert ended["outcome"]["text"] == (
        f"GPU {index} fell off the bus (XID 79); reset it (`nvidia-smi -r -i {index}`) or reboot, "
        f"then `gpushare undrain {index}`"
    )
    assert daemon.container(lease["container_id"])["State"]["Status"] == "exited"
    assert daemon.container(neighbour["container_id"])["State"]["Status"] == "running"
    assert daemon.lease(neighbour["id"])["state"] == "active"
    sick = gpus(daemon)[index]
    assert sick["mode"] == "unhealthy"
    assert (sick["drained"]["reason"], sick["drained"]["by"], sick["drained"]["sick"]) == (
        *("fell off the bus (XID 79)", "gpushared"),
        True,
    )
    other = daemon.request("0.25")
    assert [grant["gpu_index"] for grant in other["grants"]] == [1 - index]
    waits = daemon.request("1")
    assert waits["state"] == "queued"
    undrained = daemon.gpushare("undrain", str(index))
    assert (undrained.returncode, undrained.stdout) == (0, f"GPU {index} gets leases again\n")
    assert daemon.wait_lease(waits["id"], "reserved")["grants"][0]["gpu_index"] == index


def test_a_job_whose_gpu_falls_off_the_bus_runs_again_on_another_one(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "sleep", "1000")
    (stays,) = submit(daemon, "sleep", "1000", requeue=False)
    first = gpu_of(daemon, wait_job(daemon, name, "running"))
    assert gpu_of(daemon, wait_job(daemon, stays, "running")) == first
    err(daemon, first, 79)
    failed = wait_job(daemon, stays)
    assert (failed["state"], failed["reason"]) == ("failed", f"GPU {first} fell off the bus (XID 79)")
    wait_until(lambda: job(daemon, name)["tries"] != [], "its first attempt is over")
    assert gpu_of(daemon, wait_job(daemon, name, "running")) == 1 - first


def test_a_lost_gpu_gives_back_what_its_leases_held_elsewhere_and_stays_drained_over_a_restart(
    daemon: DaemonProcess,
) -> None:
    lease = daemon.hold("2x0.5")
    lose(daemon, 1)
    text = daemon.wait_lease(lease["id"], "ended")["outcome"]["text"]
    assert text.startswith("GPU 1 is lost: it does not answer; reset it")
    assert daemon.free_permille()[0] == 1000
    with pytest.raises(Refused, match="GPU 1 is still lost: it does not answer"):
        daemon.call("Gpus/Undrain", {"gpu": "1"})
    daemon.kill()
    daemon.start()  # its simulated GPUs are whole again, as after a reboot
    assert wait_mode(daemon, 1, "unhealthy")["drained"]["reason"] == "is lost: it does not answer"
    assert daemon.request("1")["grants"][0]["gpu_index"] == 0
    assert daemon.request("1")["state"] == "queued"
    daemon.call("Gpus/Undrain", {"gpu": gpus(daemon)[1]["uuid"]})
    wait_mode(daemon, 1, "exclusive")


def test_an_admin_drains_and_undrains_and_nobody_else(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", uid=ALICE)
    for call, message in (("Gpus/Drain", {"gpu": "0", "reason": "mine"}), ("Gpus/Undrain", {"gpu": "0"})):
        with pytest.raises(Refused, match="only trusted callers may") as refused:
            daemon.call(call, message, uid=ALICE)
        assert refused.value.code == "permission_denied"
    drained = daemon.gpushare("drain", "0", "--reason", "new fan")
    assert drained.stdout == "GPU 0 is drained; 1 lease there runs on\n"
    shown = daemon.gpushare("gpus")
    assert "drained: GPU 0: new fan (root, " in shown.stdout
    listed = json.loads(daemon.gpushare("gpus", "-o", "json").stdout)
    assert listed["items"][0]["drained"]["reason"] == "new fan"
    assert daemon.lease(lease["id"])["state"] == "active"
    assert daemon.request("0.25")["grants"][0]["gpu_index"] == 1
    daemon.gpushare("drain", "all", "--reason", "driver update")
    waits = daemon.request("0.25")
    assert waits["waiting"]["reason"] == "gpu_unhealthy"
    assert "is drained by root: driver update" in waits["waiting"]["text"]
    assert daemon.gpushare("undrain", "all").returncode == 0
    daemon.wait_lease(waits["id"], "reserved")
    assert "drained GPU 0 (new fan); it runs on" in " ".join(daemon.story(lease["id"]))


@pytest.mark.parametrize(
    ("call", "message", "says"),
    [
        ("Gpus/Drain", {"gpu": "7", "reason": "x"}, "there is no GPU '7'"),
        ("Gpus/Drain", {"gpu": "0"}, "a drain needs a reason"),
        ("Gpus/Drain", {"reason": "x"}, "no GPU is named"),
        ("Gpus/Undrain", {"gpu": "GPU-nobodys"}, "there is no GPU"),
    ],
)
def test_a_drain_says_what_is_wrong_with_it(
    lone_daemon: DaemonProcess, call: str, message: dict[str, Any], says: str
) -> None:
    with pytest.raises(Refused, match=says):
        lone_daemon.call(call, message)


def test_grpc_drains_and_undrains_too(lone_daemon: DaemonProcess) -> None:
    calls = [("Gpus/Drain", {"gpu": "1", "reason": "new fan"}), ("Gpus/Undrain", {"gpu": "all"})]
    drained, undrained = ask(lone_daemon.socket, calls)
    assert [(gpu["mode"], gpu["drained"]["by"]) for gpu in drained["gpus"]] == [("drained", "root")]
    assert [gpu["mode"] for gpu in undrained["gpus"]] == ["free", "free"]
    (refused,) = ask(lone_daemon.socket, calls[:1], uid=ALICE)
    assert refused["code"] == "permission_denied"


def test_simulated_errors_are_provoked_from_the_command_line(lone_daemon: DaemonProcess) -> None:
    assert lone_daemon.gpushare("simulate", "--gpu", "1", "--xid", "31", "--xid", "79").returncode == 0
    wait_mode(lone_daemon, 1, "unhealthy")
    assert "GPU 1 fell off the bus (XID 79)" in lone_daemon.gpushare("gpus").stdout
    checks = lone_daemon.call("Node/Doctor")["checks"]
    (check,) = [one for one in checks if one["name"] == "drained-gpus"]
    assert check["status"] == "failed"
    assert lone_daemon.gpushare("simulate", "--xid", "0").returncode == 125


# --- containers that are started again -----------------------------------------------------------------


@pytest.fixture
def sharing(new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path) -> DaemonProcess:
    """A daemon with a real MPS control daemon, which is what makes an error of one an error of all."""
    config = f'[sharing]\nmps_binary = "{mps_control_binary}"\nfault_patience_seconds = 5\n'
    started = new_daemon(engine=docker_engine, config=config)
    started.start()
    return started


def hold_fallible(daemon: DaemonProcess, **asked: object) -> Json:
    """A lease whose container's first process is on the GPU."""
    lease = daemon.call("Leases/Request", {"gpu": "0.25", **asked})
    daemon.run_container("--label", f"gpushare.lease={lease['id']}", command=FALLIBLE)
    lease = daemon.wait_lease(lease["id"], "active")
    wait_until(lambda: "began" in daemon.check("logs", lease["container_id"]), "its trap is set")
    use(daemon, lease)
    return lease


def die_of_fault(daemon: DaemonProcess, lease: Json) -> None:
    wait_until(lambda: daemon.lease(lease["id"]).get("fault"), "the fault is told")
    daemon.check("kill", "-s", "USR1", lease["container_id"])


def use(daemon: DaemonProcess, lease: Json) -> None:
    process = {"pid": daemon.pid_of(lease["container_id"]), "memory_bytes": str(MIB), "mps_client": True}
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    wait_until(lambda: daemon.lease(lease["id"]).get("memory_used_bytes"), "it is on the GPU")


@pytest.mark.mps
def test_a_victim_is_started_again_as_often_as_it_asked_for_and_then_fails(sharing: DaemonProcess) -> None:
    victim, plain = hold_fallible(sharing, restart_on_fault=1), hold_fallible(sharing)
    err(sharing, 0, 31)
    for one in (victim, plain):
        die_of_fault(sharing, one)
    text = sharing.wait_lease(plain["id"], "ended")["outcome"]["text"]
    assert text.startswith("its container ended with 1 because on GPU 0 a program used GPU memory")
    wait_until(lambda: sharing.lease(victim["id"]).get("restarts") == 1, "it is to be started again")
    again = sharing.wait_lease(victim["id"], "active")
    assert (again["id"], again["container_id"]) == (victim["id"], victim["container_id"])
    wait_until(lambda: sharing.check("logs", victim["container_id"]).count("began") == 2, "it runs")
    assert "is to be started again (1 of 1)" in " ".join(sharing.story(victim["id"]))

    other = hold_fallible(sharing)
    use(sharing, victim)
    err(sharing, 0, 31)
    die_of_fault(sharing, victim)
    outcome = sharing.wait_lease(victim["id"], "ended")["outcome"]
    assert outcome["kind"] == "failed"
    assert "after 1 restarts for such faults" in outcome["text"]
    assert sharing.lease(other["id"])["state"] == "active"


def test_restarts_on_a_fault_exclude_what_removes_or_restarts_containers(daemon: DaemonProcess) -> None:
    lease = daemon.call("Leases/Request", {"gpu": "0.25", "restart_on_fault": 2})
    claim = f"gpushare.lease={lease['id']}"
    done = daemon.docker("run", "--rm", *daemon.container_options("--label", claim), "true")
    assert done.returncode == 125
    assert "that is removed at its end cannot be started again after a fault" in done.stderr
    gpu_request = (
        "--label",
        "gpushare.gpu=0.25",
        "--label",
        "gpushare.restart-on-fault=2",
        "--restart",
        "always",
    )
    done = daemon.docker("run", "-d", *daemon.container_options(*gpu_request), "true")
    assert "Docker's restart policy and restarts on a fault exclude each other" in done.stderr
    with pytest.raises(Refused, match="is not how often to start again"):
        daemon.call("Leases/Request", {"gpu": "0.25", "restart_on_fault": 101})
