"""Projects and quotas on a real daemon: held back, set at run time, kept over crashes, shown by the shell."""

from __future__ import annotations

import json
import signal

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until

ALICE = 61001
NOBODY = 61002

PROJECTS = """
[projects.vision]
users = ["root"]
guaranteed = 0.5
limit = 1
[presets.small]
gpu = "0.25"
project = "vision"
priority = "10"
"""


@pytest.fixture
def node(new_daemon: NewDaemon) -> DaemonProcess:
    """Two simulated GPUs, no engine, one project."""
    made = new_daemon(config=PROJECTS)
    made.start()
    return made


def project(daemon: DaemonProcess, name: str) -> Json:
    found: list[Json] = daemon.call("Projects/List")["projects"]
    return next(one for one in found if one["name"] == name)


def test_a_project_at_its_limit_waits_and_is_told_so(node: DaemonProcess) -> None:
    node.request("0.75")
    second = node.request("0.5")
    assert second["project"] == "vision"
    assert second["waiting"]["reason"] == "project_limit"
    assert second["waiting"]["text"].startswith("project vision holds 0.75 GPUs; its limit is 1 GPU")
    shown = project(node, "vision")
    assert (shown["held_permille"], shown["waiting"]) == (750, [second["id"]])
    assert shown["quotas"][0]["limit_permille"] == 1000


def test_a_limit_that_is_raised_at_run_time_lets_requests_start_at_once(node: DaemonProcess) -> None:
    node.request("0.75")
    second = node.request("0.5")
    node.call("Projects/Set", {"name": "vision", "limit": "1.5"})
    assert node.lease(second["id"])["state"] == "reserved"


def test_a_project_that_was_set_survives_a_crash_and_wins_over_the_configuration(node: DaemonProcess) -> None:
    node.call("Projects/Set", {"name": "vision", "limit": "none", "weight": 3, "users": {"names": ["alice"]}})
    node.call("Projects/Set", {"name": "audio", "guaranteed": "0.25", "fixed": "0.5"})
    before = [project(node, name) for name in ("vision", "audio")]
    assert [one["origin"] for one in before] == ["set", "set"]
    node.kill()
    node.start()
    assert [project(node, name) for name in ("vision", "audio")] == before
    assert "limit_permille" not in before[0]["quotas"][0]
    node.call("Projects/Set", {"name": "vision", "unset": True})
    again = project(node, "vision")
    assert (again["origin"], again["users"], again["weight"]) == ("config", ["root"], 1.0)


def test_what_a_project_used_survives_a_crash(node: DaemonProcess) -> None:
    lease = node.request("0.75")
    wait_until(lambda: project(node, "vision")["decayed_gpu_seconds"] > 0.5, "it counts")
    node.call("Leases/Release", {"lease_id": lease["id"]})
    used = project(node, "vision")["decayed_gpu_seconds"]
    node.kill()
    node.start()
    again = project(node, "vision")
    assert again["decayed_gpu_seconds"] == pytest.approx(used, rel=0.01)
    assert (again["held_permille"], again["use_ratio"]) == (0, 1.0)


def test_only_administrators_set_projects_and_everybody_may_look(node: DaemonProcess) -> None:
    with pytest.raises(Refused, match="only administrators may set projects") as refusal:
        node.call("Projects/Set", {"name": "mine", "guaranteed": "1"}, uid=NOBODY)
    assert refusal.value.code == "permission_denied"
    names = [one["name"] for one in node.call("Projects/List", uid=NOBODY)["projects"]]
    assert names == ["vision"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"name": "audio", "guaranteed": "2"}, "the projects are guaranteed 2.5 GPUs, but there are 2 GPUs"),
        ({"name": "audio", "guaranteed": "two"}, "guaranteed: 'two' is not an amount of GPUs"),
        ({"name": "audio", "model": "H1O0", "limit": "1"}, "this node has no GPU of model 'H1O0'"),
    ],
)
def test_what_cannot_be_kept_is_refused(node: DaemonProcess, said: Json, sentence: str) -> None:
    with pytest.raises(Refused) as refusal:
        node.call("Projects/Set", said)
    assert refusal.value.message == sentence


def test_a_reload_takes_over_projects_and_leaves_those_that_were_set(node: DaemonProcess) -> None:
    node.call("Projects/Set", {"name": "audio", "weight": 2})
    path = node.directory / "config.toml"
    path.write_text(PROJECTS.replace("limit = 1", "limit = 1.5").replace("vision", "video"))
    node.signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in node.text(), "it is taken over")
    found = {one["name"]: one for one in node.call("Projects/List")["projects"]}
    assert sorted(found) == ["audio", "video"]
    assert found["video"]["quotas"][0]["limit_permille"] == 1500
    assert found["audio"]["origin"] == "set"


def test_promises_of_the_configuration_that_cannot_be_kept_are_told(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config="[projects.vision]\nguaranteed = 3\n")
    daemon.start()
    sentence = "the projects are guaranteed 3 GPUs, but there are 2 GPUs"
    wait_until(lambda: sentence in daemon.call("Node/Status")["troubles"], "it is told")
    daemon.call("Projects/Set", {"name": "vision", "guaranteed": "1.5"})
    wait_until(lambda: sentence not in daemon.call("Node/Status")["troubles"], "it is over")


def test_users_in_no_project_are_one_of_their_own_while_there_is_something_to_show(
    node: DaemonProcess,
) -> None:
    lease = node.request("0.25", uid=ALICE)
    own = project(node, lease["project"])
    assert (own["name"], own["origin"], own["holding"]) == (lease["owner"], "user", [lease["id"]])
    with pytest.raises(Refused, match="is not in project vision"):
        node.request("0.25", uid=ALICE, project="vision")


def test_a_preset_brings_its_project_and_priority(node: DaemonProcess) -> None:
    lease = node.call("Leases/Request", {"preset": "small"})
    assert (lease["project"], lease["priority"]) == ("vision", 10)
    with pytest.raises(Refused, match="is not in project vision"):
        node.call("Leases/Request", {"preset": "small"}, uid=ALICE)


def test_the_shell_sets_shows_and_unsets_projects(node: DaemonProcess) -> None:
    output = node.gpushare_says(
        "project", "set", "audio", "--guaranteed", "0.5", "--limit", "1.5", "--user", "alice"
    )
    assert "  quota    guaranteed 0.5, limit 1.5; holds 0\n" in output
    model = node.call("Gpus/List")["gpus"][0]["name"]
    node.gpushare_says("project", "set", "audio", "--model", model, "--fixed", "0.25")
    table = node.gpushare_says("project", "ls", "--no-headers").splitlines()
    assert [line.split()[0] for line in table] == ["audio", "on", "vision"]
    assert table[0].split()[1:6] == ["alice", "1", "0.5", "1.5", "0"]
    first, second = node.request("0.75"), node.request("0.5")
    shown = node.gpushare_says("project", "show", "vision")
    assert f"  holds    {first['id']} of root: 0.75 on GPU" in shown
    assert f"  waits    {second['id']} of root: 0.5, train: project vision holds" in shown
    items = json.loads(node.gpushare_says("project", "show", "vision", "-o", "json"))["items"]
    assert [lease["id"] for lease in items[0]["leases"]] == [first["id"], second["id"]]
    wide = node.gpushare_says("ps", "-o", "columns=lease,project", "--no-headers").split()
    assert wide == [first["id"], "vision", second["id"], "vision"]
    assert "vision" in node.gpushare_says("queue", "-o", "wide")
    node.gpushare_says("project", "set", "audio", "--unset")
    assert node.gpushare_says("project", "ls", "-q").split() == ["vision"]
    assert "there is no project" in node.gpushare("project", "show", "audio").stderr
