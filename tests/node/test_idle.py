"""Leases that do nothing on their GPUs, on a real engine and simulated GPUs."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until

GIB = 1024**3
NOBODY = 65534
SOON = {
    "GPUSHARED_IDLE__WARN_SECONDS": "1",
    "GPUSHARED_IDLE__LOWER_SECONDS": "2",
    "GPUSHARED_IDLE__ACTION_SECONDS": "3",
    "GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "1",
}
SUSPEND = {**SOON, "GPUSHARED_IDLE__ACTION": "suspend"}
COUNT = "echo run >> /tmp/runs; trap 'echo signal >> /tmp/runs' USR1; while :; do sleep 0.1; done"


def started(
    new_daemon: NewDaemon, engine: str, environment: Mapping[str, str], config: str = ""
) -> DaemonProcess:
    daemon = new_daemon(engine=engine, simulate="h100", environment=environment, config=config)
    daemon.start()
    return daemon


def hold(daemon: DaemonProcess, gpu: str = "0.5", **fields: Any) -> Json:
    lease = daemon.request(gpu, **fields)
    label = f"gpushare.lease={lease['id']}"
    daemon.run_container("--label", label, command=("sh", "-c", COUNT))
    return daemon.wait_lease(lease["id"], "active")


def work(daemon: DaemonProcess, percent: int) -> None:
    """So busy is the GPU as a whole."""
    daemon.call("Simulation/Change", {"gpu_index": 0, "utilization_ratio": percent / 100})


def use(daemon: DaemonProcess, lease: Json, percent: int) -> None:
    """So busy its main process keeps the GPU, as the driver tells."""
    process = {
        "pid": daemon.pid_of(lease["container_id"]),
        "memory_bytes": str(GIB),
        "utilization_ratio": percent / 100,
    }
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})


def notice(daemon: DaemonProcess, lease: Json) -> Json | None:
    found: Json | None = daemon.lease(lease["id"]).get("notice")
    return found


def wait_notice(daemon: DaemonProcess, lease: Json) -> Json:
    wait_until(lambda: notice(daemon, lease) is not None, "it is told")
    found = notice(daemon, lease)
    assert found is not None
    return found


def runs(daemon: DaemonProcess, lease: Json) -> list[str]:
    """What its program wrote down: its starts, and the signals that it got."""
    return daemon.check("exec", lease["container_id"], "cat", "/tmp/runs").split()


def test_an_idle_lease_is_told_then_lowered_then_suspended_and_comes_back_on_demand(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, SUSPEND)
    lease = hold(daemon, notice_signal="USR1")
    daemon.wait_lease(lease["id"], "suspended")
    story = daemon.story(lease["id"])
    steps = ["told: no work on its GPUs", "gives way to others from now on", "gpushare resume"]
    places = [next(at for at, line in enumerate(story) if step in line) for step in steps]
    assert places == sorted(places)
    assert daemon.free_permille() == [1000]
    work(daemon, 50)
    daemon.call("Leases/Resume", {"lease_id": lease["id"]})
    back = daemon.wait_lease(lease["id"], "active")
    assert (back.get("notice"), back["lowered"]) == (None, False)
    assert runs(daemon, lease) == ["run"]


def test_where_nothing_can_be_suspended_it_is_ended_with_what_it_was_idle_for(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, {**SUSPEND, "GPUSHARED_GPUS__CHECKPOINTS": "off"})
    lease = hold(daemon)
    notice = wait_notice(daemon, lease)
    assert notice["ends_at"] > 0
    ended = daemon.wait_lease(lease["id"], "ended")
    assert ended["outcome"]["kind"] == "idle"
    assert ended["outcome"]["text"].startswith("it did nothing on its GPUs for ")
    assert lease["id"] in daemon.gpushare_says("ps", "--all", "-o", "columns=lease,state")


def test_without_an_action_it_reads_of_it_and_gets_no_signal(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    lease = hold(daemon, notice_signal="USR1")
    notice = wait_notice(daemon, lease)
    assert (notice["kind"], notice["ends_at"]) == ("idle", 0.0)
    wait_until(lambda: daemon.lease(lease["id"])["lowered"], "it is lowered")
    read = json.loads(daemon.check("exec", lease["container_id"], "cat", "/run/gpushare/notice.json"))
    assert (read["kind"], read["ends_at"]) == ("idle", None)
    assert runs(daemon, lease) == ["run"]


def test_work_takes_everything_back(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    lease = hold(daemon)
    wait_until(lambda: daemon.lease(lease["id"])["lowered"], "it is lowered")
    work(daemon, 30)
    wait_until(lambda: not daemon.lease(lease["id"])["lowered"], "it is not any more")
    assert (notice(daemon, lease), daemon.lease(lease["id"])["idle_since"]) == (None, 0.0)
    test = ("exec", lease["container_id"], "test", "-f", "/run/gpushare/notice.json")
    wait_until(lambda: daemon.docker(*test).returncode == 1, "the notice is gone")
    assert any("uses its GPUs again after" in line for line in daemon.story(lease["id"]))


def test_one_of_two_on_a_gpu_is_idle_where_the_driver_tells_processes_apart(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    work(daemon, 80)
    first, second = hold(daemon, "0.25"), hold(daemon, "0.25")
    use(daemon, first, 80)
    use(daemon, second, 0)
    wait_notice(daemon, second)
    assert (notice(daemon, first), daemon.lease(first["id"])["idle_since"]) == (None, 0.0)
    use(daemon, second, 20)
    wait_until(lambda: notice(daemon, second) is None, "it works")


def test_a_lease_that_cannot_be_told_from_a_busy_neighbour_is_not_idle(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    work(daemon, 80)
    first, second = hold(daemon, "0.25"), hold(daemon, "0.25")
    for lease in (first, second):
        process = {"pid": daemon.pid_of(lease["container_id"]), "memory_bytes": str(GIB)}
        daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    work(daemon, 0)
    wait_notice(daemon, first)
    work(daemon, 80)
    wait_until(lambda: notice(daemon, first) is None and notice(daemon, second) is None, "none is idle")


QUIET_NOW = """
[idle.quiet]
hours = "00:00-24:00"
classes = ["build"]
warn_seconds = "1s"
lower_seconds = 0
action_seconds = "1h"
"""


def test_in_quiet_times_build_leases_have_rules_of_their_own_until_the_day_comes(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, {}, QUIET_NOW)
    build, train = hold(daemon, **{"class": "build"}), hold(daemon, **{"class": "train"})
    told = wait_notice(daemon, build)
    assert "taken off them until somebody resumes it" in told["text"]
    assert notice(daemon, train) is None
    (daemon.directory / "config.toml").write_text(QUIET_NOW.replace("00:00-24:00", ""))
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: notice(daemon, build) is None, "the quiet time is over")


OF_PROJECTS = """
[projects.vision]
users = ["root"]
[projects.vision.idle]
action = "stop"
warn_seconds = "1s"
lower_seconds = 0
action_seconds = "2s"
"""


def test_a_project_s_idle_leases_end_by_its_own_rules_and_others_stay(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, {"GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "1"}, OF_PROJECTS)
    other = daemon.hold("0.5", uid=NOBODY)
    mine = hold(daemon)
    assert (mine["project"], other["project"]) == ("vision", "nobody")
    shown = daemon.gpushare_says("project", "show", "vision").splitlines()
    assert "  idle     build, infer, train: told after 1s, stopped after 2s" in shown
    assert not any(line.startswith("  quiet") for line in shown)
    assert daemon.wait_lease(mine["id"], "ended")["outcome"]["kind"] == "idle"
    assert (daemon.lease(other["id"])["state"], notice(daemon, other)) == ("active", None)
    assert "told after 30m, lowered after 1h" in daemon.gpushare_says("project", "show", "nobody")


def test_what_it_was_told_outlives_the_daemon(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    lease = hold(daemon)
    wait_until(lambda: daemon.lease(lease["id"])["lowered"], "it is lowered")
    since = daemon.lease(lease["id"])["idle_since"]
    daemon.kill()
    daemon.start()
    again = daemon.lease(lease["id"])
    assert (again["lowered"], again["idle_since"], again["notice"]["kind"]) == (True, since, "idle")


def test_the_shell_shows_for_how_long_a_lease_is_idle(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    lease = hold(daemon)
    wait_until(lambda: daemon.lease(lease["id"])["lowered"], "it is lowered")
    assert "IDLE" in daemon.gpushare_says("ps", "-o", "wide")
    assert daemon.gpushare_says("ps", "-o", "columns=idle", "--no-headers").endswith("s")
    (line,) = [
        line for line in daemon.gpushare_says("why", lease["id"]).splitlines() if line.startswith("  idle")
    ]
    assert "gives way to others first; no work on its GPUs for " in line


def test_playing_a_driver_that_tells_processes_apart_needs_their_memory(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = started(new_daemon, docker_engine, SOON)
    lease = hold(daemon)
    words = ("--container", lease["container_id"], "--memory", "1g", "--process-utilization", "40%")
    daemon.gpushare_says("simulate", "--utilization", "80%", *words)
    wait_until(lambda: daemon.lease(lease["id"])["idle_since"] == 0.0, "it works")
    daemon.gpushare_says("simulate", *words[:-1], "0%")
    wait_until(lambda: daemon.lease(lease["id"])["idle_since"] > 0, "it rests")
