"""``gpushare project``: what it asks, what it shows, and what it refuses by itself."""

from __future__ import annotations

import json

import pytest

from tests.cli.answers import GRANT, QUEUED, lease
from tests.cli.process import Gpushare
from tests.cli.standin import StandIn, ok

VISION = {
    "name": "vision",
    "users": ["alice", "bob"],
    "weight": 2,
    "quotas": [
        {"guaranteed_permille": 1500, "limit_permille": 4000, "held_permille": 500},
        {"model": "NVIDIA L4", "fixed_permille": 250, "held_permille": 250},
    ],
    "held_permille": 750,
    "decayed_gpu_seconds": 5400,
    "use_ratio": 0.254,
    "origin": "set",
    "holding": ["l-7f3k"],
    "waiting": ["l-9999"],
    "idle": [
        {"class": "build", "warn_seconds": 600, "lower_seconds": 0, "action": "stop", "action_seconds": 1800},
        {"class": "infer", "warn_seconds": 0, "lower_seconds": 0, "action": "none", "action_seconds": 7200},
        {"class": "train", "warn_seconds": 600, "lower_seconds": 0, "action": "stop", "action_seconds": 1800},
    ],
    "quiet_idle": [
        {"class": "build", "lower_seconds": 90, "action": "suspend", "action_seconds": 900},
    ],
}
CAROL = {"name": "carol\x1b[31m", "weight": 1, "quotas": [{}], "origin": "user"}


@pytest.fixture(autouse=True)
def answers(standin: StandIn) -> None:
    standin.answers["Projects/List"] = ok({"projects": [CAROL, VISION], "simulated": True})
    standin.answers["Projects/Set"] = ok(VISION)
    waits = {**QUEUED, "project": "vision", "waiting": {"reason": "project_limit", "text": "holds all"}}
    running = lease(project="vision", grants=[GRANT])
    standin.answers["Leases/List"] = ok({"leases": [running, lease(id="l-1"), waits]})


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_ls_shows_quotas_and_use_with_a_line_for_each_model(gpushare: Gpushare) -> None:
    lines = cells(gpushare("project", "ls").stdout)
    assert lines[0] == ["SIMULATED GPUs: no real hardware is leased here"]
    assert lines[1] == [
        *("PROJECT", "MEMBERS", "WEIGHT", "GUARANTEED", "LIMIT", "FIXED", "HOLDS", "USED", "SHARE")
    ]
    assert lines[2] == ["carol\\x1b[31m", "-", "1", "0", "-", "0", "0", "0.0", "0%"]
    assert lines[3] == ["vision", "alice,bob", "2", "1.5", "4", "0", "0.75", "1.5", "25%"]
    assert lines[4] == ["on NVIDIA L4", "-", "-", "0", "-", "0.25", "0.25", "-", "-"]


def test_ls_has_the_envelope_and_the_ids_of_all_listings(gpushare: Gpushare) -> None:
    envelope = json.loads(gpushare("project", "ls", "-o", "json").stdout)
    assert (envelope["schema"], envelope["simulated"]) == ("gpushare.projects/1", True)
    general = envelope["items"][1]["quotas"][0]
    assert (general["model"], general["limit_permille"]) == (None, 4000)
    assert envelope["items"][0]["quotas"][0]["limit_permille"] is None
    assert gpushare("project", "ls", "-q").stdout.splitlines()[1] == "vision"


def test_show_names_the_leases_of_the_project_alone(gpushare: Gpushare) -> None:
    assert gpushare("project", "show", "vision").stdout.splitlines() == [
        "SIMULATED GPUs: no real hardware is leased here",
        "vision: set at run time",
        "  members  alice, bob",
        "  weight   2",
        "  quota    guaranteed 1.5, limit 4; holds 0.5",
        "  quota    guaranteed 0, no limit, fixed 0.25 on NVIDIA L4; holds 0.25",
        "  used     1.5 GPU-hours lately, 25% of all",
        "  idle     build, train: told after 10m, stopped after 30m",
        "  idle     infer: nothing is done",
        "  quiet    build: lowered after 1m30s, suspended after 15m",
        "  holds    l-7f3k of alice: 0.25 on GPU 0, train",
        "  waits    l-7f3k of alice: 0.25, train: holds all",
    ]


def test_show_says_that_there_is_no_such_project(gpushare: Gpushare) -> None:
    done = gpushare("project", "show", "video")
    assert done.returncode == 125
    assert "there is no project 'video'" in done.stderr


def test_set_sends_what_was_said_and_nothing_else(gpushare: Gpushare, standin: StandIn) -> None:
    words = ("--guaranteed", "1.5", "--limit", "none", "--user", "alice", "--user", "bob", "--weight", "2")
    done = gpushare("project", "set", "vision", *words)
    assert done.stdout.splitlines()[0] == "vision: set at run time"
    sent = {key: value for key, value in standin.calls[-1].body.items() if value not in ("", False)}
    assert sent == {
        "name": "vision",
        "guaranteed": "1.5",
        "limit": "none",
        "users": {"names": ["alice", "bob"]},
        "weight": 2.0,
    }
    gpushare("project", "set", "vision", "--model", "NVIDIA L4", "--unset")
    body = standin.calls[-1].body
    assert (body["model"], body["unset"], "users" in body, "weight" in body) == (
        "NVIDIA L4",
        True,
        False,
        False,
    )


def test_set_may_leave_a_project_without_members(gpushare: Gpushare, standin: StandIn) -> None:
    gpushare("project", "set", "vision", "--no-users")
    assert standin.calls[-1].body["users"] == {"names": []}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "no option says what to set"),
        (("--model", "NVIDIA L4"), "no option says what to set"),
        (("--unset", "--limit", "2"), "--unset goes with no option"),
        (("--user", "alice", "--no-users"), "--user and --no-users exclude each other"),
        (("--weight", "much"), "'much' is not a valid float"),
    ],
)
def test_set_refuses_words_that_make_no_sense(
    gpushare: Gpushare, standin: StandIn, words: tuple[str, ...], sentence: str
) -> None:
    done = gpushare("project", "set", "vision", *words)
    assert (done.returncode, standin.calls) == (2, [])
    assert sentence in done.stderr
