"""Leases that give way to others and come back, on a real engine and simulated GPUs."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until
from tests.node.test_jobs import submit, wait_job

GIB = 1024**3
ALICE = 61001
SOON = {"GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "1"}
COUNT = "echo run >> /tmp/runs; trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def hasty(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    """A daemon with one simulated GPU on the plain engine, that gives a notice of a second."""
    started = new_daemon(engine=docker_engine, simulate="h100", environment=SOON)
    started.start()
    return started


def hold(daemon: DaemonProcess, gpu: str = "1", *options: str, uid: int = 0) -> Json:
    return daemon.hold(gpu, *options, command=("sh", "-c", COUNT), uid=uid)


def runs(daemon: DaemonProcess, lease: Json) -> int:
    """How often its program was started."""
    return daemon.check("exec", lease["container_id"], "cat", "/tmp/runs").count("run")


def on_gpu(daemon: DaemonProcess) -> int:
    """GiB used on GPU 0."""
    (gpu, *_) = daemon.call("Gpus/List")["gpus"]
    return round(int(gpu.get("memory_used_bytes", 0)) / GIB)


def use(daemon: DaemonProcess, lease: Json, gib: int) -> None:
    process = {"pid": daemon.pid_of(lease["container_id"]), "memory_bytes": str(gib * GIB)}
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    wait_until(lambda: on_gpu(daemon) == gib, "its memory is seen")


# --- stopped and started again -------------------------------------------------------------------------


def stop_and_requeue(daemon: DaemonProcess) -> None:
    lease = hold(daemon)
    daemon.call("Simulation/Change", {"gpu_index": 0})
    use(daemon, lease, 10)
    winner = daemon.request("1", uid=ALICE)
    assert winner["state"] == "queued"
    daemon.call("Leases/Preempt", {"lease_id": lease["id"]})
    daemon.wait_lease(winner["id"], "reserved")
    again = daemon.wait_lease(lease["id"], "requeued")
    assert (again["waiting"]["position"], again["preemptions"]) == (1, 1)
    daemon.call("Leases/Release", {"lease_id": winner["id"]}, uid=ALICE)
    daemon.wait_lease(lease["id"], "active")
    assert runs(daemon, lease) == 2
    story = daemon.story(lease["id"])
    assert any("told that it ends" in line and "starts again when there is room" in line for line in story)


NO_CHECKPOINTS = {**SOON, "GPUSHARED_GPUS__CHECKPOINTS": "off"}


def test_a_job_that_gave_way_is_held_and_moved_while_it_waits_again(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", environment=NO_CHECKPOINTS)
    daemon.start()
    (name,) = submit(daemon, "sh", "-c", COUNT, gpu="1")
    lease = wait_job(daemon, name, "running")["parts"][0]["lease_id"]
    winner = daemon.request("1", uid=ALICE)
    daemon.call("Leases/Preempt", {"lease_id": lease})
    daemon.wait_lease(winner["id"], "reserved")
    daemon.wait_lease(lease, "requeued")
    wait_job(daemon, name, "paused")
    assert daemon.gpushare_says("priority", name, "5") == f"{name}: priority 5"
    assert daemon.gpushare_says("hold", name) == name
    shown = daemon.lease(lease)
    assert (shown["priority"], shown["held_by"], shown["waiting"]["reason"]) == (5, "root", "held")
    daemon.call("Leases/Release", {"lease_id": winner["id"]}, uid=ALICE)
    assert daemon.gpushare_says("unhold", name) == name
    daemon.wait_lease(lease, "active")


def test_a_lease_that_gives_way_is_started_again_when_there_is_room(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", environment=NO_CHECKPOINTS)
    daemon.start()
    stop_and_requeue(daemon)


def test_so_it_is_where_the_engine_gives_settings_anew(new_daemon: NewDaemon, cdi_engine: CdiEngine) -> None:
    daemon = new_daemon(engine=str(cdi_engine.socket), simulate="h100", environment=NO_CHECKPOINTS)
    daemon.start()
    stop_and_requeue(daemon)


def test_it_is_still_queued_after_the_daemon_was_killed(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", environment=NO_CHECKPOINTS)
    daemon.start()
    lease, winner = hold(daemon), daemon.request("1", uid=ALICE)
    daemon.call("Leases/Preempt", {"lease_id": lease["id"]})
    daemon.wait_lease(lease["id"], "requeued")
    daemon.kill()
    daemon.start()
    daemon.call("Leases/Release", {"lease_id": winner["id"]}, uid=ALICE)
    daemon.wait_lease(lease["id"], "active")
    assert runs(daemon, lease) == 2


def test_a_container_that_removes_itself_ends_as_preempted(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", environment=NO_CHECKPOINTS)
    daemon.start()
    lease = hold(daemon, "1", "--rm")
    assert lease["preempt_step"] == "stop"
    daemon.request("1", uid=ALICE)
    daemon.call("Leases/Preempt", {"lease_id": lease["id"]})
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "preempted"


# --- off the GPU and back ------------------------------------------------------------------------------


def test_a_paused_lease_leaves_its_gpu_and_goes_on_where_it_was(hasty: DaemonProcess) -> None:
    lease = hold(hasty)
    use(hasty, lease, 10)
    hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    hasty.wait_lease(lease["id"], "suspended")
    wait_until(lambda: on_gpu(hasty) == 0, "its memory is off the GPU")
    assert hasty.container(lease["container_id"])["State"]["Paused"]
    other = hold(hasty, uid=ALICE)
    hasty.call("Leases/Resume", {"lease_id": lease["id"]})
    waits = hasty.lease(lease["id"])
    assert (waits["state"], waits["waiting"]["position"]) == ("suspended", 1)
    hasty.call("Leases/Stop", {"lease_id": other["id"], "grace_seconds": 0})
    hasty.wait_lease(lease["id"], "active")
    wait_until(lambda: on_gpu(hasty) == 10, "its memory is back")
    assert runs(hasty, lease) == 1
    assert not hasty.container(lease["container_id"])["State"]["Paused"]


def test_a_lease_that_gives_way_so_comes_back_by_itself(hasty: DaemonProcess) -> None:
    lease = hold(hasty)
    assert lease["preempt_step"] == "suspend"
    winner = hasty.request("1", uid=ALICE)
    hasty.call("Leases/Preempt", {"lease_id": lease["id"]})
    hasty.wait_lease(winner["id"], "reserved")
    hasty.call("Leases/Release", {"lease_id": winner["id"]}, uid=ALICE)
    hasty.wait_lease(lease["id"], "active")
    assert runs(hasty, lease) == 1


def test_more_time_for_a_paused_lease_is_shown_and_there_when_it_is_back(hasty: DaemonProcess) -> None:
    lease = hasty.request("1", time="10m")
    hasty.run_container("--label", f"gpushare.lease={lease['id']}", command=("sleep", "1000"))
    hasty.wait_lease(lease["id"], "active")
    hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    paused = hasty.wait_lease(lease["id"], "suspended")
    assert 500 < paused["left_seconds"] <= 600
    said = hasty.gpushare_says("extend", lease["id"], "2h")
    assert said.startswith(f"{lease['id']}: 2h")
    assert said.endswith(" left")
    assert hasty.gpushare_says("ps", "--no-headers", "-o", "columns=left").startswith("2h")
    with pytest.raises(Refused, match="comes back with the size it has"):
        hasty.call("Leases/Resize", {"lease_id": lease["id"], "gpu": "0.5"})
    hasty.call("Leases/Resume", {"lease_id": lease["id"]})
    back = hasty.wait_lease(lease["id"], "active")
    assert back["expires_at"] > time.time() + 7200


MEGABYTE = 10**6


def test_a_container_whose_memory_limit_is_too_small_is_stopped_and_started_again(
    hasty: DaemonProcess,
) -> None:
    lease = hold(hasty, "1", "--memory", "64m")
    assert lease["preempt_step"] == "suspend"
    hasty.check("exec", lease["container_id"], "sh", "-c", f"head -c {30 * MEGABYTE} /dev/zero > /dev/shm/x")
    process = {"pid": hasty.pid_of(lease["container_id"]), "memory_bytes": str(40 * MEGABYTE)}
    hasty.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    winner = hasty.request("1", uid=ALICE)
    # It may have been tried for the winner's sake already, and then is refused at once.
    with contextlib.suppress(Refused):
        hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    wait_until(lambda: hasty.lease(lease["id"])["preempt_step"] == "requeue", "it could not be suspended")
    with pytest.raises(Refused, match="its container has of the host's memory, and it may have 64 MiB"):
        hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    preempted = hasty.lease(lease["id"])
    assert "the 38.1 MiB on its GPUs would come to" in preempted["preempt_why"]
    assert "because the 38.1 MiB on its GPUs" in hasty.gpushare_says("why", lease["id"])
    hasty.call("Leases/Preempt", {"lease_id": lease["id"]})
    hasty.wait_lease(winner["id"], "reserved")
    assert hasty.lease(lease["id"])["state"] == "requeued"


def test_a_larger_limit_lets_it_be_suspended_again(hasty: DaemonProcess) -> None:
    lease = hold(hasty, "1", "--memory", "16m")
    process = {"pid": hasty.pid_of(lease["container_id"]), "memory_bytes": str(40 * MEGABYTE)}
    hasty.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    wait_until(lambda: hasty.lease(lease["id"])["preempt_step"] == "requeue", "it could not be suspended")
    hasty.check("update", "--memory", "512m", "--memory-swap", "512m", lease["container_id"])
    wait_until(lambda: hasty.lease(lease["id"])["preempt_step"] == "suspend", "it can be again")
    assert not hasty.lease(lease["id"]).get("preempt_why")


def test_a_paused_container_that_is_killed_ends_its_lease(hasty: DaemonProcess) -> None:
    lease = hold(hasty)
    hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    hasty.wait_lease(lease["id"], "suspended")
    hasty.check("rm", "--force", lease["container_id"])
    hasty.wait_lease(lease["id"], "ended")


def test_a_container_that_ended_off_its_gpu_is_started_on_the_one_it_was_created_with(
    daemon: DaemonProcess,
) -> None:
    """Its environment names that GPU, whichever one is free."""
    lease = hold(daemon, "0.25", uid=ALICE)
    daemon.call("Leases/Pause", {"lease_id": lease["id"]})
    daemon.wait_lease(lease["id"], "suspended")
    daemon.check("kill", lease["container_id"])
    daemon.wait_lease(lease["id"], "ended")
    other = hold(daemon, "1")
    assert other["grants"][0]["gpu_uuid"] == lease["grants"][0]["gpu_uuid"]
    starting = threading.Thread(target=daemon.check, args=("start", lease["container_id"]))
    starting.start()
    wait_until(lambda: len(daemon.leases()) == 2, "it has asked for a lease")
    (again,) = daemon.leases().keys() - {other["id"]}
    assert daemon.lease(again)["state"] == "queued"
    daemon.call("Leases/Stop", {"lease_id": other["id"], "grace_seconds": 0})
    starting.join()
    assert daemon.wait_lease(again, "active")["grants"] == lease["grants"]


def test_a_paused_lease_is_not_started_by_docker(hasty: DaemonProcess) -> None:
    lease = hold(hasty)
    hasty.call("Leases/Pause", {"lease_id": lease["id"]})
    hasty.wait_lease(lease["id"], "suspended")
    refused = hasty.docker("restart", "-t", "0", lease["container_id"])
    assert "gpushare resume" in refused.stderr


def test_users_pause_their_own_and_administrators_preempt(hasty: DaemonProcess) -> None:
    lease = hold(hasty, uid=ALICE)
    for call in ("Pause", "Preempt"):
        with pytest.raises(Refused):
            hasty.call(f"Leases/{call}", {"lease_id": lease["id"]}, uid=ALICE + 1)
