"""Leases with begin times, holds, dependencies and ends that are told, on a real engine."""

from __future__ import annotations

import json
import time

import pytest

from tests.node.daemon import DaemonProcess, Json, Refused, wait_until

ALICE = 61001


def reason(daemon: DaemonProcess, lease: Json) -> str:
    waiting: Json = daemon.lease(lease["id"])["waiting"]
    return str(waiting["reason"])


def test_a_held_request_starts_when_its_owner_lets_it_go(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", held=True, uid=ALICE)
    assert (lease["state"], lease["waiting"]["reason"]) == ("queued", "held")
    daemon.call("Leases/Hold", {"lease_id": lease["id"], "held": False}, uid=ALICE)
    assert daemon.lease(lease["id"])["state"] == "reserved"


def test_a_request_begins_at_its_time(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", begin_at=time.time() + 2)
    assert reason(daemon, lease) == "begin_time"
    assert daemon.wait_lease(lease["id"], "reserved")["since"] >= lease["begin_at"]


def test_a_request_waits_for_the_leases_that_it_names(daemon: DaemonProcess) -> None:
    first = daemon.hold("0.25")
    second = daemon.request("0.25", after=[first["id"]])
    assert reason(daemon, second) == "after_lease"
    daemon.call("Leases/Stop", {"lease_id": first["id"], "grace_seconds": 0})
    daemon.wait_lease(second["id"], "reserved")


def test_a_hold_outlives_the_daemon(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", held=True)
    daemon.kill()
    daemon.start()
    assert reason(daemon, lease) == "held"


NOTE = "trap 'cat /run/gpushare/notice.json; echo; exit 0' USR1; while :; do sleep 0.1; done"


def test_a_program_reads_of_its_end_when_the_signal_comes_and_ends_by_itself(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", time="6s", notice_signal="USR1")
    container = daemon.run_container("--label", f"gpushare.lease={lease['id']}", command=("sh", "-c", NOTE))
    ended = daemon.wait_lease(lease["id"], "ended")
    assert (ended["outcome"]["kind"], ended["outcome"]["exit_code"]) == ("finished", 0)
    document = json.loads(daemon.check("logs", container))
    assert (document["schema"], document["kind"]) == ("gpushare.notice/1", "expires")
    assert document["ends_at"] == pytest.approx(ended["expires_at"])


def test_an_extension_takes_the_notice_back(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.5", command=("sleep", "1000"))
    with pytest.raises(Refused, match="no time limit"):
        daemon.call("Leases/Extend", {"lease_id": lease["id"], "time": "1h"})
    limited = daemon.request("0.25", time="8s")
    container = daemon.run_container("--label", f"gpushare.lease={limited['id']}")
    wait_until(lambda: daemon.lease(limited["id"]).get("notice") is not None, "it is told")
    daemon.check("exec", container, "test", "-f", "/run/gpushare/notice.json")
    longer = daemon.call("Leases/Extend", {"lease_id": limited["id"], "time": "1h"})
    assert longer.get("notice") is None
    look = ("exec", container, "test", "-f", "/run/gpushare/notice.json")
    wait_until(lambda: daemon.docker(*look).returncode == 1, "the notice is gone")


def test_the_shell_holds_moves_lets_go_and_extends(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", held=True, time="1h")
    assert daemon.gpushare_says("unhold", lease["id"]) == lease["id"]
    assert daemon.lease(lease["id"])["state"] == "reserved"
    assert daemon.gpushare_says("extend", lease["id"], "1h") in {
        f"{lease['id']}: 2h left",
        f"{lease['id']}: 1h59m left",
    }
    waits = daemon.request("0.75", after=[lease["id"]])
    assert daemon.gpushare_says("priority", waits["id"], "--", "-7") == f"{waits['id']}: priority -7"
    assert daemon.gpushare_says("hold", waits["id"]) == waits["id"]
    assert reason(daemon, waits) == "held"
