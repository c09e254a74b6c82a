"""The page says what the commands say, in their words, about the same state."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest

from tests.node.daemon import GPUSHARE
from tests.web.browser.busy_machine import ALICE, BusyMachine
from tests.web.browser.visitor import Visitor

ASKED: Final = """
(name) => fetch(`gpushare.v1.${name}`, {method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"})
  .then(async (answer) => ({revision: answer.headers.get("Gpushare-Revision"), answer: await answer.json()}))
"""


class SameTable(NamedTuple):
    """A table of a page, the command that shows the same, and which column is which, where names differ."""

    path: str
    table: str
    command: tuple[str, ...]
    columns: Mapping[str, str]


def named(*columns: str, **others: str) -> dict[str, str]:
    return {
        **{name: name for name in columns},
        **{key.replace("_", " "): other for key, other in others.items()},
    }


# Without what grows as time passes: the forms of those figures are compared in `tests/web/test_page_words.py`.
SAME: Final = {
    "leases": SameTable(
        "",
        "Who has what",
        ("ps",),
        named("lease", "user", "state", "gpu", "share", "memory", "wall", "name", "image"),
    ),
    "history": SameTable(
        "history",
        "The leases that are over",
        ("history",),
        named(
            *("lease", "user", "outcome", "exit", "gpu", "waited", "ran", "end", "project", "class", "name"),
            **{"GPU hours": "gpu-hours", "mean use": "mean-use"},
        ),
    ),
    "idle": SameTable(
        "idle",
        "Leases that hold GPUs now and run no kernel",
        ("idle",),
        named("lease", "user", "gpu", "share", "memory", "since", "project", "name", "next"),
    ),
    "audit": SameTable(
        "audit",
        "Changes and refusals",
        ("audit", "--limit", "20"),
        named("user", "status", "said", "code", "pid"),
    ),
}


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
async def test_a_table_has_the_cells_of_its_command(
    same: SameTable, busy_machine: BusyMachine, admin: Visitor
) -> None:
    await admin.go(same.path)
    told = busy_machine.table(*same.command, columns=list(same.columns.values()))
    assert told
    key = next(iter(same.columns))
    shown = [row for row in await admin.table(same.table) if not row[key].startswith("UNMANAGED")]
    ours = [{other: row[title] for title, other in same.columns.items()} for row in shown]
    theirs = [row for row in told if row[same.columns[key]] != "UNMANAGED" and row.get("state") != "queued"]
    if same.path == "audit":  # the newest first, as people read it there, and refusals are marked
        theirs.reverse()
        ours = [{**row, "status": row["status"].removeprefix("✗ ")} for row in ours]
    assert ours[: len(theirs)] == theirs
    assert theirs


async def test_a_gpu_has_the_figures_of_the_command_and_of_top(
    busy_machine: BusyMachine, admin: Visitor
) -> None:
    await admin.go()
    top = lines_of_top(busy_machine)
    columns = ("gpu", "name", "util", "memory", "temp", "power", "free")
    for gpu in busy_machine.table("gpus", columns=columns):
        card = await admin.main.get_by_role("region", name=f"GPU {gpu['gpu']}", exact=True).inner_text()
        (line,) = [one for one in top if one.split()[:2] == [gpu["gpu"], "NVIDIA"]]
        for column in columns:
            assert gpu[column] in card, (gpu, column, card)
            assert gpu[column] in line, (gpu, column, line)


async def test_a_lease_has_the_figures_of_the_command_in_top_too(
    busy_machine: BusyMachine, admin: Visitor
) -> None:
    top = lines_of_top(busy_machine)
    columns = ("lease", "user", "state", "gpu", "share", "memory", "wall", "name")
    shown = {row["lease"]: row for row in await admin.table("Who has what")}
    for lease in busy_machine.table("ps", "--state", "active", columns=columns):
        if lease["lease"] == "UNMANAGED":
            continue
        (line,) = [one for one in top if one.split()[:1] == [lease["lease"]]]
        for column in columns:
            assert lease[column] == shown[lease["lease"]][column]
            assert lease[column] in line, (lease, column, line)


def lines_of_top(busy_machine: BusyMachine) -> list[str]:
    """The lines of ``gpushare top`` on a screen that has room for all columns."""
    environment = {**busy_machine.daemon.client_environment(), "COLUMNS": "200"}
    done = subprocess.run(
        [GPUSHARE, "top", "--once"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


async def test_who_waits_is_shown_as_the_command_shows_it(busy_machine: BusyMachine, admin: Visitor) -> None:
    await admin.go("queue")
    (waiting,) = busy_machine.table(
        "queue", columns=("pos", "lease", "name", "user", "class", "asks", "eta", "reason", "code")
    )
    card = await admin.main.get_by_role("listitem").filter(has_text=waiting["lease"]).inner_text()
    for cell in waiting.values():
        assert cell in card, (cell, card)


async def test_a_job_is_shown_as_the_command_shows_it(busy_machine: BusyMachine, alice: Visitor) -> None:
    columns = ("job", "name", "state", "node", "asks", "reason")
    (job,) = busy_machine.table("jobs", columns=columns, uid=ALICE)
    assert job["job"] == busy_machine.writer
    await alice.go("queue")
    (shown,) = await alice.table("Your jobs")
    assert {column: shown[column] for column in columns} == job


def different(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """The places where two answers differ, with what stands there."""
    match ours, theirs:
        case dict(), dict():
            names = sorted(ours.keys() | theirs.keys())
            return [
                one
                for name in names
                for one in different(ours.get(name), theirs.get(name), f"{place}.{name}")
            ]
        case list(), list() if len(ours) == len(theirs):
            pairs = enumerate(zip(ours, theirs, strict=True))
            return [one for at, pair in pairs for one in different(*pair, f"{place}[{at}]")]
        case _:
            return [] if ours == theirs else [f"{place}: {ours!r} is not {theirs!r}"]


async def test_a_report_s_words_are_the_command_s(busy_machine: BusyMachine, alice: Visitor) -> None:
    await alice.go(f"lease/{busy_machine.done['id']}")
    said = busy_machine.told("report", busy_machine.done["id"])
    text = await alice.says()
    report = busy_machine.daemon.gpushare_says("report", busy_machine.done["id"])
    advice = [line.split("  ", 2)[2].strip() for line in report.splitlines() if line.startswith("  note")]
    assert said
    for sentence in advice:
        assert sentence in text


@pytest.mark.parametrize("call", ["Gpus/List", "Leases/List", "Jobs/List"])
async def test_an_answer_in_the_browser_is_the_answer_on_the_socket(
    call: str, busy_machine: BusyMachine, admin: Visitor
) -> None:
    """Asked until both are of one revision: samples of the GPUs come between."""
    for _ in range(50):
        before = await admin.page.evaluate(ASKED, call)
        told = busy_machine.daemon.call(call)
        after = await admin.page.evaluate(ASKED, call)
        if before["revision"] == after["revision"]:
            assert before["revision"]
            assert different(before["answer"], told) == []
            return
    pytest.fail("the state never stood still for three calls")
