"""Two confined users and a trusted one on one socket: what is another's does not exist, or is refused."""

from __future__ import annotations

import time

import pytest

from tests.node.daemon import DaemonProcess, Json, Refused, name, wait_until
from tests.node.grpc_client import ask

LOOKED_AFTER_SECONDS = 2.0
"""The daemon looks three times within a second."""
ALICE, BOB = 61001, 61002
"""Users that no system has: they have no groups and no home, so they are confined."""


@pytest.fixture
def alices(daemon: DaemonProcess) -> Json:
    """A running lease of Alice's."""
    return daemon.hold("0.25", "--name", name(), uid=ALICE)


@pytest.mark.parametrize("call", ["Leases/Release", "Leases/Stop"])
def test_nobody_ends_anothers_lease(daemon: DaemonProcess, alices: Json, call: str) -> None:
    waiting = daemon.request("2", uid=ALICE)
    for lease in (alices, waiting):
        with pytest.raises(Refused) as refused:
            daemon.call(call, {"lease_id": lease["id"]}, uid=BOB)
        assert refused.value.code == "permission_denied"
        assert refused.value.hint
        (answer,) = ask(daemon.socket, [(call, {"lease_id": lease["id"]})], uid=BOB)
        assert answer["code"] == "permission_denied"
    assert {lease: one["state"] for lease, one in daemon.leases().items()} == {
        alices["id"]: "active",
        waiting["id"]: "queued",
    }


def test_others_see_that_a_lease_is_there_but_not_what_runs_in_it(
    daemon: DaemonProcess, alices: Json
) -> None:
    """Who waits must see who holds; names, images and stories are nobody else's business."""
    for get in ("Leases/Get", "Leases/Wait"):
        view = daemon.call(get, {"lease_id": alices["id"]}, uid=BOB)
        assert (view["owner_uid"], view["state"]) == (str(ALICE), "active")
        assert not view["container_id"] + view["container_name"] + view["image"]
    (listed,) = daemon.call("Leases/List", uid=BOB)["leases"]
    assert not listed["container_id"] + listed["container_name"] + listed["image"]
    assert daemon.call("Leases/Explain", {"lease_id": alices["id"]}, uid=BOB)["story"] == []
    assert daemon.call("Leases/Explain", {"lease_id": alices["id"]}, uid=ALICE)["story"]
    assert daemon.call("Leases/List", uid=ALICE)["leases"][0]["container_name"] == alices["container_name"]


def test_anothers_container_does_not_name_its_lease(daemon: DaemonProcess, alices: Json) -> None:
    for reference in (alices["container_name"], alices["container_id"][:12]):
        with pytest.raises(Refused) as refused:
            daemon.call("Leases/Get", {"lease_id": reference}, uid=BOB)
        assert refused.value.code == "not_found"
        assert daemon.call("Leases/Get", {"lease_id": reference}, uid=ALICE)["id"] == alices["id"]
        assert daemon.call("Leases/Get", {"lease_id": reference})["id"] == alices["id"]


def test_what_was_anothers_lease_stays_anothers_when_it_is_over(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.25", uid=ALICE)
    daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)
    daemon.restart()
    with pytest.raises(Refused) as refused:
        daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=BOB)
    assert refused.value.code == "permission_denied"
    assert daemon.call("Leases/Explain", {"lease_id": lease["id"]}, uid=BOB)["story"] == []


def test_nobody_claims_anothers_reservation(daemon: DaemonProcess) -> None:
    """Not even root: the container would belong to one user and its part of the GPU to another."""
    lease = daemon.request("0.25", uid=ALICE)
    for thief in (BOB, 0):
        words = daemon.container_options("--label", f"gpushare.lease={lease['id']}")
        stolen = daemon.docker("create", *words, uid=thief)
        assert (stolen.returncode, lease["id"] in stolen.stderr) == (1, True)
    assert daemon.lease(lease["id"])["state"] == "reserved"


def test_request_ids_of_two_users_do_not_meet(daemon: DaemonProcess) -> None:
    mine = daemon.request("0.25", uid=ALICE, request_id="same")
    assert daemon.request("0.25", uid=BOB, request_id="same")["id"] != mine["id"]
    assert daemon.request("0.25", uid=ALICE, request_id="same")["id"] == mine["id"]


TOUCHES = {
    "inspect": (),
    "logs": (),
    "stop": (),
    "kill": (),
    "pause": (),
    "restart": (),
    "start": (),
    "rm --force": (),
    "exec": ("true",),
    "top": (),
    "wait": (),
    "attach": (),
    "rename": ("mine",),
    "update --memory 64m": (),
    "stats --no-stream": (),
    "export": (),
    "commit": (),
}


def test_the_docker_cli_of_another_finds_no_such_container(daemon: DaemonProcess, alices: Json) -> None:
    pid = daemon.pid_of(alices["container_id"])
    for touch, more in TOUCHES.items():
        done = daemon.docker(*touch.split(), alices["container_id"], *more, uid=BOB)
        output = done.stderr.lower()
        assert "no such" in output or "not served" in output or "trusted" in output, (
            f"docker {touch}: {output}"
        )
        # `docker rm --force` takes it for a success that there is no such container.
        assert done.returncode != 0 or touch == "rm --force", f"docker {touch}: {done.stdout}"
    assert daemon.check("ps", "--all", "--quiet", uid=BOB) == ""
    assert daemon.check("ps", "--quiet", "--no-trunc", uid=ALICE) == alices["container_id"]
    assert alices["container_id"] in daemon.check("ps", "--quiet", "--no-trunc")
    state = daemon.container(alices["container_id"])["State"]
    assert (state["Pid"], state["Status"]) == (pid, "running")


def test_each_user_manages_their_own_container(daemon: DaemonProcess, alices: Json) -> None:
    assert daemon.check("exec", alices["container_id"], "echo", "hello", uid=ALICE) == "hello"
    daemon.check("stop", alices["container_id"], uid=ALICE)
    assert daemon.wait_lease(alices["id"], "ended")["outcome"]["kind"] == "finished"


def test_the_trusted_manage_everything(daemon: DaemonProcess, alices: Json) -> None:
    assert daemon.call("Leases/Explain", {"lease_id": alices["id"]})["story"]
    daemon.call("Leases/Stop", {"lease_id": alices["id"], "grace_seconds": 0})
    outcome = daemon.wait_lease(alices["id"], "ended")["outcome"]
    assert (outcome["kind"], outcome["text"]) == ("stopped", "stopped by root")
    outcome = daemon.call("Leases/Explain", {"lease_id": alices["id"]}, uid=BOB)["lease"]["outcome"]
    assert (outcome["kind"], outcome["text"]) == ("stopped", "it was stopped")


def test_only_the_trusted_play_the_driver(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused) as refused:
        daemon.call("Simulation/Change", {"trouble": "broken"}, uid=ALICE)
    assert refused.value.code == "permission_denied"


def test_grpc_knows_its_caller_as_json_does(daemon: DaemonProcess) -> None:
    for uid, trusted in ((0, True), (ALICE, False)):
        (told,) = ask(daemon.socket, [("Node/Status", {})], uid=uid)
        status = daemon.call("Node/Status", uid=uid)
        assert (told["caller_uid"], told["caller_trusted"]) == (str(uid), trusted)
        assert (status["caller_uid"], status["caller_trusted"]) == (str(uid), trusted)


def test_nobody_but_the_daemon_reaches_the_inner_socket(daemon: DaemonProcess) -> None:
    """Behind it callers are believed by their socket's name."""
    inner = daemon.runtime_dir / "inner"
    assert inner.stat().st_mode & 0o777 == 0o700
    (answer,) = ask(inner / "grpc.sock", [("Leases/List", {})])
    assert answer["code"] == "permission_denied"


def test_a_container_knows_its_user_and_is_left_alone_by_the_look_after_its_start(
    daemon: DaemonProcess, alices: Json
) -> None:
    """The file with the name lies in the state directory, of which containers see nothing else."""
    plain = daemon.run_container(uid=ALICE)
    for container in (plain, alices["container_id"]):
        output = daemon.check("exec", container, "sh", "-c", "whoami; touch ~/x && echo $HOME", uid=ALICE)
        assert output.split() == [str(ALICE), f"/home/{ALICE}"]
    daemon.restart()
    time.sleep(LOOKED_AFTER_SECONDS)
    assert daemon.check("ps", "-q", "--no-trunc", uid=ALICE).split() == [plain, alices["container_id"]]
    assert "mismatch" not in daemon.text()
    daemon.check("rm", "-f", plain, alices["container_id"], uid=ALICE)
    wait_until(lambda: not list((daemon.state_dir / "passwd").iterdir()), "the file goes with its containers")
