"""Leases on their way off their GPUs and back: what arrives meanwhile, and what the commands say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushared.domain.leases.parked import THAWED
from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARE, DaemonProcess, wait_until
from tests.node.test_watchdog import GIB, use_in

ALICE = 61061
SLOW_WORDS = (sys.executable, "-m", "tests.node.slow_checkpoints")


@pytest.fixture(params=["plain", "CDI"])
def engine(request: pytest.FixtureRequest) -> str:
    """Both engines of the bed."""
    if request.param == "plain":
        return str(request.getfixturevalue("docker_engine"))
    cdi: CdiEngine = request.getfixturevalue("cdi_engine")
    return cdi.socket


@pytest.fixture
def node(new_daemon: NewDaemon, engine: str) -> DaemonProcess:
    """With one GPU; its checkpoints take as long as the file ``slow`` is there."""
    made = new_daemon(engine=engine, simulate="h100", command=SLOW_WORDS)
    made.start()
    return made


def slow(node: DaemonProcess) -> Path:
    return node.directory / "slow"


def command(node: DaemonProcess, *words: str) -> subprocess.Popen[str]:
    """The command, running."""
    return subprocess.Popen(
        [str(GPUSHARE), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "GPUSHARE_HOST": f"unix://{node.socket}"},
    )


# --- the queue of a container --------------------------------------------------------------------------


def test_a_lease_that_gives_way_where_there_is_room_comes_back_at_once(node: DaemonProcess) -> None:
    """The order to come back arrives while the one to go is still under way."""
    lease = node.hold("0.5", uid=ALICE)
    for _ in range(3):
        node.call("Leases/Preempt", {"lease_id": lease["id"]})
        node.wait_lease(lease["id"], "active")
    story = node.story(lease["id"])
    assert story.count("it goes on where it was") == 3
    assert not any("it takes long" in line for line in story)


def test_a_stop_waits_for_no_checkpoint(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    slow(node).touch()
    node.call("Leases/Pause", {"lease_id": lease["id"]})
    node.wait_lease(lease["id"], "suspending")
    node.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    assert node.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "stopped"
    assert slow(node).exists()


def test_a_lease_that_is_resumed_on_its_way_off_comes_back(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    slow(node).touch()
    node.call("Leases/Pause", {"lease_id": lease["id"]})
    resuming = command(node, "resume", lease["id"])
    wait_until(
        lambda: any("to be resumed for root" in line for line in node.story(lease["id"])), "it is asked"
    )
    slow(node).unlink()
    out, complaint = resuming.communicate(timeout=60)
    assert (resuming.returncode, out.strip()) == (0, lease["id"]), complaint
    assert node.lease(lease["id"])["state"] == "active"


def test_a_lease_whose_memory_others_use_is_not_restored_until_they_give_it_back(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """A real driver cannot repeat a restore that failed for want of memory."""
    node = new_daemon(engine=docker_engine, simulate="h100", config='[watchdog]\ntrain = "warn"\n')
    node.start()
    lease = node.hold("0.5")
    node.gpushare_says("pause", lease["id"])
    greedy = node.hold("0.5")
    use_in(node, greedy, 60 * GIB)
    wait_until(
        lambda: any("uses 60 GiB" in line for line in node.story(greedy["id"])), "a sample shows the memory"
    )
    assert "GPU 0 has 19." in node.gpushare("resume", lease["id"]).stderr
    assert node.lease(lease["id"])["state"] == "suspended"
    use_in(node, greedy, 30 * GIB)
    wait_until(lambda: node.gpushare("resume", lease["id"]).returncode == 0, "its memory is free")
    node.wait_lease(lease["id"], "active")


# --- the commands --------------------------------------------------------------------------------------


def test_pause_and_resume_end_when_it_has_happened(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    for word, way, there in (("pause", "suspending", "suspended"), ("resume", "resuming", "active")):
        slow(node).touch()
        moving = command(node, word, lease["id"])
        assert moving.stderr is not None
        # It is said once it takes its time, and the command goes on.
        assert f"{lease['id']} is {way}: its GPU memory is being moved" in moving.stderr.readline()
        assert moving.poll() is None
        slow(node).unlink()
        out, complaint = moving.communicate(timeout=60)
        assert (moving.returncode, out.strip()) == (0, lease["id"]), complaint
        assert node.lease(lease["id"])["state"] == there


def test_ctrl_c_ends_the_command_alone(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    slow(node).touch()
    pausing = command(node, "pause", lease["id"])
    assert pausing.stderr is not None
    assert "is suspending" in pausing.stderr.readline()
    pausing.send_signal(signal.SIGINT)
    _, complaint = pausing.communicate(timeout=60)
    assert (pausing.returncode, "goes on without this command" in complaint) == (130, True)
    slow(node).unlink()
    node.wait_lease(lease["id"], "suspended")


def test_resume_says_what_a_lease_without_room_waits_for(node: DaemonProcess) -> None:
    lease = node.hold("0.5", uid=ALICE)
    assert node.gpushare_says("pause", lease["id"]) == lease["id"]
    other = node.hold("1")
    done = node.gpushare("resume", lease["id"])
    assert (done.returncode, done.stdout.strip()) == (0, lease["id"])
    assert f"{lease['id']} waits for room, position 1 of 1: " in done.stderr
    assert "GPU 0" in done.stderr
    assert "it comes back by itself" in done.stderr
    node.call("Leases/Stop", {"lease_id": other["id"], "grace_seconds": 0})
    node.wait_lease(lease["id"], "active")


def test_a_command_whose_lease_ended_meanwhile_fails_and_says_so(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    slow(node).touch()
    pausing = command(node, "pause", lease["id"])
    node.wait_lease(lease["id"], "suspending")
    node.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    _, complaint = pausing.communicate(timeout=60)
    assert pausing.returncode != 0
    assert "not suspended: " in complaint
    assert f"gpushare why {lease['id']}" in complaint


def test_docker_does_not_unpause_what_is_off_its_gpus(node: DaemonProcess) -> None:
    """The GPUs may be somebody else's. What the engine itself thaws is frozen again."""
    lease = node.hold("0.5", uid=ALICE)
    node.gpushare_says("pause", lease["id"])
    refused = node.docker("unpause", lease["container_id"], uid=ALICE)
    assert refused.returncode != 0
    assert f"lease {lease['id']} is suspended" in refused.stderr
    assert f"gpushare resume {lease['id']}" in refused.stderr
    assert node.container(lease["container_id"])["State"]["Paused"]
    assert parts.docker(node.engine, "unpause", lease["container_id"]).returncode == 0
    wait_until(lambda: THAWED in node.story(lease["id"]), "the daemon has seen it run")
    wait_until(lambda: node.container(lease["container_id"])["State"]["Paused"], "it is frozen again")
    assert node.lease(lease["id"])["state"] == "suspended"
    node.gpushare_says("resume", lease["id"])
    node.wait_lease(lease["id"], "active")


def test_docker_unpauses_what_it_paused(node: DaemonProcess) -> None:
    lease = node.hold("0.5", uid=ALICE)
    for word, state in (("pause", "paused"), ("unpause", "active")):
        node.check(word, lease["container_id"], uid=ALICE)
        node.wait_lease(lease["id"], state)


def test_what_docker_paused_is_not_for_resume(node: DaemonProcess) -> None:
    lease = node.hold("0.5")
    node.check("pause", lease["container_id"])
    node.wait_lease(lease["id"], "paused")
    refused = node.gpushare("resume", lease["id"])
    assert refused.returncode != 0
    assert "was paused by docker" in refused.stderr
    assert "docker unpause" in refused.stderr
