"""Who goes next, on a real node: a project that is guaranteed a GPU takes it back, and gives it back."""

from __future__ import annotations

import json
import time

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until

ALICE, BOB = 61001, 61002
NOTICE_SECONDS, GRACE_SECONDS = 1, 60
CONFIG = f"""
[engine]
stop_grace_seconds = {GRACE_SECONDS}
[queue]
preempt_notice_seconds = {NOTICE_SECONDS}
[classes.train]
min_run_seconds = 0
[projects.research]
users = ["{ALICE}"]
[projects.product]
users = ["{BOB}"]
guaranteed = 1
"""
NO_CHECKPOINTS = CONFIG + '[gpus]\ncheckpoints = "off"\n'
BUILD = {"class": "build", "time": "1h"}
TOLD = "until [ -e /tmp/may-end ]; do sleep 0.1; done; exit 0"
"""What the program does when it is told to end: a test looks at the victim before it lets the victim go."""
COUNT = f"echo run >> /tmp/runs; trap '{TOLD}' TERM; while :; do sleep 0.1; done"


def offered(daemon: DaemonProcess, gpu: str, *, uid: int, **fields: object) -> Json:
    return daemon.call("Leases/Offer", {"gpu": gpu, **fields}, uid=uid)


def runs(daemon: DaemonProcess, lease: Json) -> int:
    """How often its program was started."""
    return daemon.check("exec", lease["container_id"], "cat", "/tmp/runs").count("run")


def train(daemon: DaemonProcess) -> Json:
    """Alice's training fills the GPU, which an offer promised her."""
    before = offered(daemon, "1", uid=ALICE)
    assert before["starts_now"]
    lease = daemon.hold("1", command=("sh", "-c", COUNT), uid=ALICE)
    assert lease["grants"][0]["gpu_uuid"] == before["grants"][0]["gpu_uuid"]
    return lease


def see_it_given_way(
    daemon: DaemonProcess, lease: Json, step: str, parked: str, *, runs_then: int, dies: bool = False
) -> None:
    """Bob's build takes what is guaranteed to his project; then Alice's training is back by itself.

    ``dies``: the daemon is killed while the training gives way.
    """
    assert lease["preempt_step"] == step
    assert "is more than project research is guaranteed" in daemon.gpushare_says("why", lease["id"])
    promise = offered(daemon, "1", uid=BOB, **BUILD)
    asked_at = time.time()
    build = daemon.request("1", uid=BOB, **BUILD)
    assert build["state"] == "queued"
    if step == "suspend":  # it is over at once
        assert [(one["lease_id"], one["step"]) for one in promise["gives_way"]] == [(lease["id"], step)]
        assert promise["why"] == "its project is guaranteed the room"
        assert build["waiting"]["reason"] == "preempting"
    else:
        assert promise["gives_way"] == []
        late_seconds = promise["start_to"] - asked_at - NOTICE_SECONDS - GRACE_SECONDS
        assert 0 < late_seconds < asked_at - lease["created_at"]
        wait_until(
            lambda: daemon.lease(build["id"])["waiting"]["reason"] == "preempting", "the training gives way"
        )
        assert "gives way to it" in daemon.gpushare_says("queue", "--explain")
        assert f"gives way to {build['id']}" in daemon.gpushare_says("why", lease["id"])
        if dies:
            daemon.kill()
            daemon.start()
            assert daemon.lease(build["id"])["waiting"]["reason"] == "preempting"
        daemon.check("exec", lease["container_id"], "touch", "/tmp/may-end")
    build = daemon.wait_lease(build["id"], "reserved")
    print(f"\nstarted after {time.time() - asked_at:.2f} s")  # noqa: T201 - for who asks: -s
    container = daemon.run_container("--label", f"gpushare.lease={build['id']}", uid=BOB)
    build = daemon.wait_lease(build["id"], "active")

    daemon.wait_lease(lease["id"], parked)
    queued = json.loads(daemon.gpushare_says("queue", "--explain", "-o", "json"))["items"]
    assert [one["id"] for one in queued] == [lease["id"]]
    assert queued[0]["waiting"]["start_to"] == pytest.approx(build["expires_at"])
    assert queued[0]["standing"]["name"] == "research"
    assert "research holds 0 GPUs" in daemon.gpushare_says("queue", "--explain")
    assert f"gives way to {build['id']}" in daemon.gpushare_says("why", lease["id"])
    later = offered(daemon, "1", uid=ALICE)
    assert not later["starts_now"]
    assert (later["waiting"]["position"], later["gives_way"]) == (2, [])

    daemon.check("rm", "--force", container, uid=BOB)
    daemon.wait_lease(lease["id"], "active")
    assert runs(daemon, lease) == runs_then
    story = daemon.story(lease["id"])
    assert any(f"gives way to {build['id']}" in line and "guaranteed" in line for line in story)
    assert any("there is room for it again" in line for line in story)


def test_training_is_taken_off_its_gpu_for_a_guaranteed_build_and_goes_on_where_it_was(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=CONFIG)
    daemon.start()
    see_it_given_way(daemon, train(daemon), "suspend", "suspended", runs_then=1)


def test_without_checkpoints_it_is_told_stopped_and_started_again_also_by_the_next_daemon(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=NO_CHECKPOINTS)
    daemon.start()
    lease = train(daemon)
    see_it_given_way(daemon, lease, "requeue", "requeued", runs_then=2, dies=True)
    assert any("told that it ends" in line for line in daemon.story(lease["id"]))


def test_so_it_is_where_the_engine_gives_settings_anew(new_daemon: NewDaemon, cdi_engine: CdiEngine) -> None:
    daemon = new_daemon(engine=str(cdi_engine.socket), simulate="h100", config=NO_CHECKPOINTS)
    daemon.start()
    see_it_given_way(daemon, train(daemon), "requeue", "requeued", runs_then=2)


def test_what_is_guaranteed_gives_way_to_nobody(new_daemon: NewDaemon, docker_engine: str) -> None:
    """And whoever waits for it is told so, and until when."""
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=CONFIG)
    daemon.start()
    lease = daemon.request("1", uid=BOB, time="1h")
    daemon.run_container("--label", f"gpushare.lease={lease['id']}", uid=BOB)
    lease = daemon.wait_lease(lease["id"], "active")
    offer = offered(daemon, "0.5", uid=ALICE, **{"class": "build"})
    assert (offer["starts_now"], offer["gives_way"], offer["fits_now"]) == (False, [], "")
    assert offer["start_to"] == pytest.approx(lease["expires_at"])
    waits = daemon.request("0.5", uid=ALICE, **{"class": "build"})
    assert waits["state"] == "queued"
    assert "is guaranteed to project product" in daemon.gpushare_says("why", lease["id"])
    wait_until(lambda: daemon.lease(waits["id"])["waiting"]["start_to"], "its start is told")
