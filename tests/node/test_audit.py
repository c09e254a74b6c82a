"""The audit of a real daemon: what its lines say, who sees them, and what it does where it cannot write."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpushared.api.v1 import gpus_pb2, jobs_pb2, leases_pb2, node_pb2, pool_pb2, projects_pb2, web_pb2
from gpushared.net.call_audit import ALWAYS, ON_LEASES
from gpushared.net.limits import UserLimits
from tests.disks import full
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARE, DaemonProcess, Json, Refused, connected, wait_until
from tests.node.grpc_client import ask

ALICE, BOB = 61001, 61002


def lines(daemon: DaemonProcess, uid: int = 0, **wanted: object) -> list[Json]:
    found: list[Json] = daemon.call("Audit/List", wanted, uid=uid)["lines"]
    return found


def told(daemon: DaemonProcess) -> list[tuple[object, ...]]:
    return [(line["endpoint"], line["name"], line["status"], line["code"]) for line in lines(daemon)]


def test_a_line_names_the_process_and_its_program(lone_daemon: DaemonProcess) -> None:
    lone_daemon.docker("rm", "nothing")
    (line,) = lines(lone_daemon)
    assert (line["uid"], line["user"], line["method"]) == ("0", "root", "DELETE")
    assert line["executable"].endswith("/docker")
    assert int(line["pid"]) > 1
    lone_daemon.call("Gpus/Drain", {"gpu": "0", "reason": "new fan"})
    line = lines(lone_daemon)[-1]
    assert (line["pid"], line["executable"]) == (str(os.getpid()), str(Path("/proc/self/exe").readlink()))
    assert line["digest"] == hashlib.sha256(b"\x0a\x010\x12\x07new fan").hexdigest()


@pytest.mark.parametrize("by_grpc", [False, True])
def test_what_administrators_do_leaves_a_line_and_so_does_who_may_not(
    lone_daemon: DaemonProcess, *, by_grpc: bool
) -> None:
    for uid in (0, BOB):
        message = {"gpu": "1", "reason": "x"}
        if by_grpc:
            ask(lone_daemon.socket, [("Gpus/Drain", message)], uid=uid)
        elif uid == 0:
            lone_daemon.call("Gpus/Drain", message)
        else:
            with pytest.raises(Refused):
                lone_daemon.call("Gpus/Drain", message, uid=uid)
    assert told(lone_daemon) == [
        ("Gpus/Drain", "1", 200, ""),
        ("Gpus/Drain", "1", 403, "permission_denied"),
    ]
    assert all(line["executable"] for line in lines(lone_daemon))


def test_programs_are_told_the_same_lines_over_grpc(lone_daemon: DaemonProcess) -> None:
    for uid in (0, ALICE):
        lone_daemon.post("/swarm", b"", uid=uid)
    for uid in (0, ALICE):
        by_grpc, refused = ask(
            lone_daemon.socket, [("Audit/List", {"limit": 5}), ("Audit/List", {"limit": -1})], uid=uid
        )
        assert by_grpc == lone_daemon.call("Audit/List", {"limit": 5}, uid=uid)
        assert len(by_grpc["lines"]) == (2 if uid == 0 else 1)
        assert refused["code"] == "invalid_argument"


def test_a_lease_leaves_a_line_where_another_s_is_stopped(lone_daemon: DaemonProcess) -> None:
    own, other = lone_daemon.request("0.25", uid=ALICE), lone_daemon.request("0.25", uid=ALICE)
    lone_daemon.call("Leases/Stop", {"lease_id": own["id"]}, uid=ALICE)
    lone_daemon.call("Leases/Stop", {"lease_id": other["id"]})
    assert told(lone_daemon) == [("Leases/Stop", other["id"], 200, "")]


def test_looking_leaves_none_and_a_reload_one(lone_daemon: DaemonProcess) -> None:
    for call in ("Gpus/List", "Leases/List", "Node/Status", "Projects/List", "Audit/List"):
        lone_daemon.call(call)
    assert lines(lone_daemon) == []
    lone_daemon.signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in lone_daemon.text(), "it is reloaded")
    assert told(lone_daemon) == [("configuration", "", 200, "")]


def test_a_reload_that_fails_leaves_a_line_that_says_why(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config="[audit]\nkeep_days = 7\n")
    daemon.start()
    for told_before, wrong in enumerate(("[audit]\nkeep_days = 0\n", "[audit\n")):
        (daemon.directory / "config.toml").write_text(wrong)
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: len(lines(daemon)) > told_before, "it is told")  # noqa: B023 - called at once
    assert told(daemon) == [("configuration", "", 400, "invalid_argument")] * 2
    first, second = (line["text"] for line in lines(daemon))
    assert "keep_days" in first
    assert first != second
    assert all(text.startswith("not reloaded, the old one stays: ") for text in (first, second))


def test_each_call_that_is_to_leave_a_line_is_a_call() -> None:
    there = {
        f"{service.name}/{method.name}"
        for module in (gpus_pb2, jobs_pb2, leases_pb2, node_pb2, pool_pb2, projects_pb2, web_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert there >= ALWAYS | ON_LEASES


def test_who_is_not_trusted_sees_his_own_lines_only(lone_daemon: DaemonProcess) -> None:
    for uid in (0, ALICE, BOB):
        lone_daemon.post("/swarm", b"", uid=uid)
    assert [line["uid"] for line in lines(lone_daemon)] == ["0", str(ALICE), str(BOB)]
    assert [line["uid"] for line in lines(lone_daemon, uid=ALICE)] == [str(ALICE)]
    assert [line["uid"] for line in lines(lone_daemon, uid=ALICE, user=str(ALICE))] == [str(ALICE)]
    with pytest.raises(Refused) as refused:
        lines(lone_daemon, uid=ALICE, user=str(BOB))
    assert refused.value.code == "permission_denied"


@pytest.mark.parametrize("limit", [-1, 1001])
def test_pages_are_bounded(lone_daemon: DaemonProcess, limit: int) -> None:
    with pytest.raises(Refused) as refused:
        lines(lone_daemon, limit=limit)
    assert refused.value.code == "invalid_argument"


def test_lines_and_their_numbers_outlive_the_daemon(lone_daemon: DaemonProcess) -> None:
    lone_daemon.post("/swarm", b"")
    before = lines(lone_daemon)
    lone_daemon.kill()
    lone_daemon.start()
    lone_daemon.post("/swarm", b"")
    after = lines(lone_daemon)
    assert after[:1] == before
    assert [line["number"] for line in after] == ["1", "2"]


def test_a_flood_is_folded_and_told_when_the_daemon_ends(lone_daemon: DaemonProcess) -> None:
    for _ in range(200):
        lone_daemon.post("/swarm", b"", uid=ALICE)
    alone = len(lines(lone_daemon, limit=1000))
    assert 60 <= alone < 150
    lone_daemon.terminate()
    lone_daemon.start()
    last = lines(lone_daemon, limit=1000)[-1]
    assert int(last["more"]) == 200 - alone - 1


# --- the disk -------------------------------------------------------------------------------------------


def test_a_full_disk_makes_lines_wait_and_hinders_nothing_else(
    new_daemon: NewDaemon, small_disk: Path
) -> None:
    """The audit has a disk of its own here, so that nothing else is in need of room."""
    daemon = new_daemon()
    daemon.state_dir.mkdir()
    (daemon.state_dir / "audit.db").symlink_to(small_disk / "audit.db")
    daemon.start()
    daemon.post("/swarm", b"", uid=ALICE)
    assert len(lines(daemon)) == 1
    with full(small_disk):
        asked = 0
        while "the audit is behind" not in daemon.troubles():
            daemon.post("/networks/create", b"{", uid=0)
            asked += 1
        assert "disk is full" in daemon.troubles()
        assert daemon.request("0.25")["state"] == "reserved"
        assert [line["endpoint"] for line in lines(daemon, limit=1)]
    wait_until(lambda: "audit" not in daemon.troubles(), "the audit is written again")
    daemon.terminate()
    daemon.start()
    written = lines(daemon, limit=1000)
    assert sum(1 + int(line["more"]) for line in written) == 1 + asked
    assert [line["number"] for line in written] == [str(n) for n in range(1, len(written) + 1)]


def test_a_damaged_audit_stops_no_daemon(new_daemon: NewDaemon) -> None:
    daemon = new_daemon()
    daemon.state_dir.mkdir()
    (daemon.state_dir / "audit.db").write_bytes(b"no database" * 1000)
    daemon.start()
    daemon.post("/swarm", b"")
    wait_until(lambda: "the audit is behind" in daemon.troubles(), "it says so")
    assert daemon.request("0.25")["state"] == "reserved"


# --- the command ----------------------------------------------------------------------------------------


def test_the_command_shows_the_newest_last_within_eighty_columns(lone_daemon: DaemonProcess) -> None:
    lone_daemon.call("Gpus/Drain", {"gpu": "1", "reason": "x"})
    lone_daemon.docker("rm", "f" * 64)
    _, title, first, second = lone_daemon.gpushare_says("audit").splitlines()
    assert title.split() == ["TIME", "USER", "CALL", "STATUS", "SAID"]
    assert first.split()[1:] == ["root", "CALL", "Gpus/Drain", "1", "200", "-"]
    assert second.split()[1:4] == ["root", "DELETE", f"/containers/{'f' * 12}"]
    assert second.index("the Docker engine does not answer") == title.index("SAID") <= 60
    (item,) = json.loads(lone_daemon.gpushare_says("audit", "--json", "--refused"))["items"]
    assert (item["endpoint"], item["code"]) == (f"/containers/{'f' * 64}", "unavailable")
    assert lone_daemon.gpushare_says("audit", "--container", "1", "-q") == "1"
    assert lone_daemon.gpushare_says("audit", "--since", "1h", "--user", "root", "--limit", "1", "-q") == "2"


def test_following_goes_on_with_what_comes(lone_daemon: DaemonProcess) -> None:
    lone_daemon.post("/swarm", b"")
    environment = {"PATH": os.environ["PATH"], "GPUSHARE_HOST": f"unix://{lone_daemon.socket}"}
    words = [str(GPUSHARE), "audit", "--follow", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as following:
        assert following.stdout is not None
        try:
            assert json.loads(following.stdout.readline())["endpoint"] == "/swarm"
            lone_daemon.call("Gpus/Drain", {"gpu": "1", "reason": "x"})
            assert json.loads(following.stdout.readline())["endpoint"] == "Gpus/Drain"
        finally:
            following.kill()


def test_who_has_too_many_connections_leaves_a_line_too(lone_daemon: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(UserLimits().connections):
            stack.enter_context(connected(lone_daemon.socket, ALICE))
        assert lone_daemon.post("/swarm", b"", uid=ALICE)[0] == 429
    line = lines(lone_daemon)[0]
    assert (line["uid"], line["status"], line["code"]) == (str(ALICE), 429, "resource_exhausted")
    assert "connections" in line["text"]
