"""The history of a real daemon tells what was played on simulated GPUs, in the words of its commands."""

from __future__ import annotations

import csv
import json
import sys
import time

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until
from tests.node.grpc_client import ask
from tests.node.test_jobs import submit

ALICE, BOB = 61001, 61002
GIB = 1024**3
QUICK = (sys.executable, "-m", "tests.node.quick_history")
ENVIRONMENT = {"GPUSHARED_GPUS__SAMPLE_SECONDS": "0.2"}
PLAYED_SECONDS = 4.0


def play(daemon: DaemonProcess, lease: Json, percent: int, gib: int, seconds: float) -> float:
    """Let the lease's main process use its GPU so much for a time; return how long it was."""
    daemon.gpushare_says(
        *("simulate", "--container", lease["container_name"], "--memory", f"{gib}g"),
        *("--process-utilization", f"{percent}%"),
    )
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began


def told(daemon: DaemonProcess, *words: str) -> Json:
    found: Json = json.loads(daemon.gpushare_says(*words, "-o", "json"))
    return found


def seconds(gpu_ms: int, share: float) -> float:
    return gpu_ms / 1000 / share


@pytest.fixture
def played(new_daemon: NewDaemon, docker_engine: str) -> tuple[DaemonProcess, Json, Json]:
    """Alice holds three quarters: she works, then rests, while bob waits for half; then he works."""
    daemon = new_daemon(engine=docker_engine, simulate="h100", command=QUICK, environment=ENVIRONMENT)
    daemon.start()
    alice = daemon.hold("0.75", "--name", f"{daemon.directory.name}-a", uid=ALICE)
    play(daemon, alice, 80, 30, PLAYED_SECONDS)
    bob = daemon.request("0.5", uid=BOB)
    assert bob["state"] == "queued"
    play(daemon, alice, 0, 30, PLAYED_SECONDS)
    daemon.call("Leases/Stop", {"lease_id": alice["id"], "grace_seconds": 0}, uid=ALICE)
    daemon.wait_lease(alice["id"], "ended")
    daemon.wait_lease(bob["id"], "reserved")
    label = f"gpushare.lease={bob['id']}"
    daemon.run_container("--label", label, "--name", f"{daemon.directory.name}-b", uid=BOB)
    bob = daemon.wait_lease(bob["id"], "active")
    play(daemon, bob, 50, 4, PLAYED_SECONDS)
    return daemon, alice, bob


def test_the_commands_tell_what_was_played(played: tuple[DaemonProcess, Json, Json]) -> None:
    daemon, alice, bob = played
    (ended,) = told(daemon, "history")["items"]
    assert (ended["id"], ended["outcome"], ended["peak_bytes"]) == (alice["id"], "stopped", 30 * GIB)
    held = seconds(ended["account"]["held_gpu_ms"], 0.75)
    assert held >= 2 * PLAYED_SECONDS
    assert seconds(ended["account"]["active_gpu_ms"], 0.75) == pytest.approx(PLAYED_SECONDS, abs=2.5)
    assert seconds(ended["account"]["idle_gpu_ms"], 0.75) >= PLAYED_SECONDS - 2

    rows = {row["key"]: row for row in told(daemon, "usage")["items"]}
    assert set(rows) == {alice["owner"], bob["owner"]}
    assert rows[alice["owner"]]["account"] == ended["account"]
    assert rows[bob["owner"]]["account"]["use_of_held_ratio"] == pytest.approx(0.5, abs=0.2)
    total = told(daemon, "usage", "--by", "day")["total"]["account"]
    assert total["held_gpu_ms"] >= sum(row["account"]["held_gpu_ms"] for row in rows.values())

    waste = daemon.gpushare_says("waste").splitlines()
    assert waste[2].split()[0] == alice["owner"]
    assert "while 1 request waited" in waste[-1]

    waits = told(daemon, "waits", "--by", "user")
    by_user = {row["key"]: row for row in waits["items"]}
    assert by_user[alice["owner"]]["total_ms"] < 1000
    assert by_user[bob["owner"]]["total_ms"] >= PLAYED_SECONDS * 1000
    (reason,) = told(daemon, "waits", "--by", "reason")["items"]
    assert reason["key"] == "resources"


def test_a_report_says_what_would_have_started_earlier_and_rows_are_exported(
    played: tuple[DaemonProcess, Json, Json],
) -> None:
    daemon, alice, bob = played
    report = daemon.gpushare_says("report", bob["id"], "--ascii")
    assert "waited    " in report
    assert ": resources " in report
    assert "`--gpu-memory 5g` would have started " in report, report
    wait_until(
        lambda: "50%" in daemon.gpushare_says("report", bob["container_name"], "--ascii"),
        "the report of a container by its name shows its use",
    )
    play(daemon, bob, 0, 4, 0)
    wait_until(lambda: bob["id"] in daemon.gpushare_says("idle", "-q"), "it is idle")
    spans = list(csv.DictReader(daemon.gpushare_says("history", "export", "--kind", "spans").splitlines()))
    assert [(span["lease"], span["kind"]) for span in spans if span["is_open"] == "0"] == [
        (alice["id"], "held"),
        (bob["id"], "waited"),
    ]
    minutes = daemon.gpushare_says("history", "export", "--kind", "minutes", "--jsonl").splitlines()
    assert {json.loads(line)["lease"] for line in minutes} == {"", alice["id"], bob["id"]}


def over(daemon: DaemonProcess) -> Json:
    """A lease of alice's that is over."""
    lease = daemon.request("0.25", uid=ALICE, image="secret:1", container_name="secret")
    return daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)


def test_over_grpc_and_for_others_the_answers_are_the_same_but_for_names(lone_daemon: DaemonProcess) -> None:
    lease = over(lone_daemon)
    by_grpc, refused = ask(
        lone_daemon.socket, [("History/Ended", {}), ("History/Usage", {"by": "colour"})], uid=BOB
    )
    (seen,) = by_grpc["leases"]
    assert (seen["id"], seen["image"], seen["container_name"]) == (lease["id"], "", "")
    assert refused["code"] == "invalid_argument"
    (own,) = lone_daemon.call("History/Ended", uid=ALICE)["leases"]
    assert (own["image"], own["container_name"]) == ("secret:1", "secret")


def test_the_site_says_what_is_seen_of_others(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config='[privacy]\nothers = "totals"\n')
    daemon.start()
    lease = over(daemon)
    assert daemon.call("History/Ended", uid=BOB)["leases"] == []
    assert len(daemon.call("History/Ended", uid=ALICE)["leases"]) == 1
    with pytest.raises(Refused) as unknown:
        daemon.call("History/Report", {"name": lease["id"]}, uid=BOB)
    assert unknown.value.code == "not_found"


def test_a_job_is_found_by_its_id_with_all_its_attempts(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = new_daemon(engine=docker_engine, command=QUICK, environment=ENVIRONMENT)
    daemon.start()
    (job,) = submit(daemon, "sh", "-c", "sleep 1; exit 3", gpu="0.5", retries=1)
    wait_until(lambda: daemon.call("Jobs/Get", {"job_id": job})["state"] == "failed", "it has failed")
    attempts = told(daemon, "history", "--job", job)["items"]
    assert {(one["job"], one["attempt"], one["exit_code"]) for one in attempts} == {(job, 1, 3), (job, 2, 3)}
    report = told(daemon, "report", job)
    assert [one["lease"]["attempt"] for one in report["items"]] == [1, 2]
    held = sum(one["account"]["held_gpu_ms"] for one in attempts)
    assert report["account"]["held_gpu_ms"] == pytest.approx(held, abs=2)
    assert held >= 1000
    assert "all 2 attempts" in daemon.gpushare_says("report", job)
