"""The pages of the past write what the command line writes, from the same answers.

The page's own modules run in Node, without a browser: what they describe is read as text.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpushared.api.v1.history_messages import Account, PastJob, PastLease, UsageRow, WaitsRow
from gpushared.api.v1.messages import Lease, PoolNode
from gpushared.cli import history, history_jobs, idle, nodes, report, usage, waits
from gpushared.cli.table import Row
from gpushared.client.period import PERIODS, read_bounds
from gpushared.domain.model.errors import RequestError
from gpushared.web.assets import FOLDER
from tests.bed import parts
from tests.cli.answers import GRANT, lease

Json = dict[str, Any]
Read = Callable[..., Any]
READER = Path(__file__).with_name("page_reader.mjs")
HOUR_MS = 3_600_000
GIB = 1 << 30
RANDOM = random.Random(19)
NOW = time.time()
SOME = 60
WHOLE_GRANT = {"gpu_index": 0, "gpu_label": "", "compute_limit_permille": 0, **GRANT}
MOMENTS = (
    "2026-03-29T12:00",  # clocks went forward in the night
    "2026-10-26T00:30",  # and back in the night before
    "2026-12-31T23:59",
    "2028-02-29T06:00",
)
TIMES = (
    *PERIODS,
    *("7d", "12h", "90s", "1h30m", "2d4h", "22:00", "6:05", "00:00", "02:30"),
    *("2026-11-01", "2026-03-29 08:00", "2026-02-01T08:00:07"),
    *("", "0s", "5", "7 d", "tomorrow", "24:00", "12:60", "2026-02-30", "2026-13-01", "this-year"),
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Ask the page's modules something; the keywords are the question."""
    node = shutil.which("node") or parts.absent("node", "node is not installed")
    modules = tmp_path_factory.mktemp("modules")
    shutil.copytree(FOLDER, modules, dirs_exist_ok=True)
    (modules / "package.json").write_text('{"type": "module"}')

    def ask(kind: str, **question: Any) -> Any:
        words = json.dumps([{"ask": kind, **question}])
        done = subprocess.run(
            [node, READER, modules], input=words, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[0]

    return ask


@pytest.fixture
def berlin() -> Iterator[None]:
    """A place whose clocks change twice a year."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_words_for_a_time_mean_what_they_mean_on_the_command_line(read: Read) -> None:
    nows = [datetime.fromisoformat(moment).astimezone() for moment in MOMENTS]
    cases = [(words, now) for now in nows for words in TIMES]
    answers = read("bounds", cases=[(words, now.timestamp()) for words, now in cases])
    assert dict(zip(cases, answers, strict=True)) == {case: _bounds(*case) for case in cases}


def _bounds(words: str, now: datetime) -> list[float] | None:
    try:
        return list(read_bounds(words, now))
    except RequestError:
        return None


def account() -> Json:
    """An account whose figures need rounding, some of them exactly in the middle."""
    held = RANDOM.choice([0, 450_000, 900_000, HOUR_MS, RANDOM.randrange(40 * HOUR_MS)])
    ratio = RANDOM.choice([None, 0.0, 0.125, 0.5, 1.0, RANDOM.random(), RANDOM.randrange(200) / 200])
    parts_of = [RANDOM.randrange(held + 1) for _ in range(4)]
    names = ("well_used_gpu_ms", "too_big_gpu_ms", "idle_gpu_ms", "unseen_gpu_ms")
    found: Json = dict(zip(names, map(str, parts_of), strict=True))
    found |= {"held_gpu_ms": str(held), "active_gpu_ms": "0", "held_mib_seconds": str(held * 47)}
    if ratio is not None:
        found |= {"use_of_held_ratio": ratio, "memory_of_held_ratio": RANDOM.random()}
    return found


def past_lease(number: int) -> Json:
    ended = NOW - RANDOM.choice([60, 3 * 86400, 400 * 86400])
    found: Json = {
        "id": f"l-{number}",
        "node": "dgx",
        "owner": f"user{number}",
        "project": "",
        "class": "train",
        "outcome": RANDOM.choice(["finished", "over_limit", ""]),
        "outcome_text": "",
        "gpu_labels": ["0", "1"],
        "waited_ms": str(RANDOM.randrange(10**8)),
        "ran_ms": str(RANDOM.randrange(10**9)),
        "started_at": RANDOM.choice([0.0, ended - 60]),
        "ended_at": ended,
        "image": "",
        "container_name": "",
        "account": account(),
    }
    return found | RANDOM.choice(
        [{}, {"exit_code": 0, "peak_bytes": str(7 * GIB), "held_bytes": str(20 * GIB)}]
    )


def table(answer: Json, caption: str) -> list[dict[str, str]]:
    found = next(one for one in answer["tables"] if one["caption"] == caption)
    return [dict(zip(found["titles"], row, strict=True)) for row in found["rows"]]


def same(rows: list[dict[str, str]], cells: list[Row], names: dict[str, str]) -> None:
    """The page's columns have the cells of the command's; an empty one is a dash on both."""
    page = [{column: row[column] for column in names} for row in rows]
    assert page == [{column: row[key] or "-" for column, key in names.items()} for row in cells]


def test_the_history_is_that_of_the_command(read: Read) -> None:
    leases = [past_lease(number) for number in range(SOME)]
    answer = read(
        "page", page="history", now=NOW, answers={"History/Ended": {"leases": leases, "more": True}}
    )
    names = {"lease": "lease", "user": "user", "exit": "exit", "gpu": "gpu", "waited": "waited", "ran": "ran"}
    names |= {
        "GPU hours": "gpu-hours",
        "mean use": "mean-use",
        "end": "end",
        "project": "project",
        "class": "class",
    }
    cells = [history._cells(PastLease(one), NOW) for one in leases]
    same(table(answer, "The leases that are over"), cells, names)
    assert "There are more: show 500" in answer["paragraphs"]


def test_jobs_that_are_over_are_those_of_the_command(read: Read) -> None:
    job: Json = {
        "id": "k3m9x0p2qa",
        "owner": "ada",
        "project": "vision",
        "class": "train",
        "outcome": "failed",
        "exit_code": 3,
        "outcome_text": "",
        "asks": "1",
        "node_count": 1,
        "waited_ms": "90000",
        "attempts": 2,
        "preemptions": 0,
        "submitted_at": NOW - 900,
        "started_at": NOW - 600,
        "ended_at": NOW - 60.25,
        "nodes": ["a", "b"],
        "name": "",
        "image": "",
    }
    jobs = [job, {**job, "id": "other", "started_at": 0.0}]
    answers = {"History/Jobs": {"jobs": jobs, "more": False}}
    answer = read("page", page="history", words={"kind": "jobs"}, now=NOW, answers=answers)
    names = {"job": "job", "user": "user", "exit": "exit", "node": "node", "waited": "waited", "ran": "ran"}
    cells = [history_jobs._cells(PastJob(one), NOW) for one in jobs]
    same(
        table(answer, "The jobs that are over"), cells, names | {"attempts": "attempts", "project": "project"}
    )


def test_the_use_is_that_of_the_command(read: Read) -> None:
    rows = [{"key": f"user{number}", "leases": number, "account": account()} for number in range(SOME)]
    days = [{"key": "2026-11-01", "leases": 1, "account": account()}]
    total = {"key": "", "leases": 9, "account": account()}
    sums: Json = {"rows": rows, "total": total, "waited_requests": 12, "waited_ms": str(9 * HOUR_MS)}
    waited = {"key": "train", "requests": 9, "waited": 4, "waiting": 1, "p50_ms": "0", "p90_ms": "61000"}
    waited |= {"p99_ms": "3700000", "longest_ms": "90000000", "total_ms": "95000000"}
    answers: Json = {"History/Usage": sums, "History/Waits": {"rows": [waited], "total": waited}}
    since = read_bounds("30d", datetime.fromtimestamp(NOW).astimezone())[0]
    answers[f"History/Usage {since:.17g} day"] = {**sums, "rows": days}
    answer = read("page", page="use", words={"since": "30d"}, now=NOW, answers=answers)
    names = {
        "user": "name",
        "leases": "leases",
        "GPU hours": "gpu-hours",
        "use": "use",
        "well used": "well-used",
    }
    names |= {
        "too big": "too-big",
        "idle": "idle",
        "not seen": "unseen",
        "GiB hours": "gib-hours",
        "memory use": "memory-use",
    }
    same(table(answer, "Use by user"), [usage.usage_cells(UsageRow(row)) for row in rows], names)
    times = {
        name: name for name in ("requests", "waited", "p50", "p90", "p99", "longest", "total", "waiting")
    }
    same(table(answer, "Waits by class"), [waits._cells(WaitsRow(waited))], times)
    assert any("while 12 requests waited 9h" in one for one in answer["paragraphs"])
    assert ["GPU hours held", usage.usage_cells(UsageRow(total))["gpu-hours"]] in answer["facts"]


def test_idle_leases_are_those_of_the_command(read: Read) -> None:
    since = {"idle_since": NOW - 4000, "memory_used_bytes": str(3 * GIB), "expires_at": NOW + 500}
    notice = {"kind": "idle", "ends_at": NOW + 60, "text": "it is stopped in 1m"}
    leases = [
        lease(grants=[WHOLE_GRANT], **since, notice=notice),
        lease(id="l-2", grants=[WHOLE_GRANT], **{**since, "idle_since": NOW - 5}),
    ]
    full = [json.loads(json.dumps(_whole(one))) for one in leases]
    answer = read("page", page="idle", now=NOW, answers={}, state={"leases": {"leases": full, "notices": []}})
    names = {
        name: name
        for name in ("lease", "user", "gpu", "share", "memory", "idle", "since", "left", "name", "next")
    }
    cells = [idle._cells(Lease(one), NOW) for one in leases]
    same(table(answer, "Leases that hold GPUs now and run no kernel"), cells, names)


def _whole(one: Json) -> Json:
    """The daemon's answers have all lists and texts, also empty ones."""
    return {"node": "", "container_name": "", "project": "", "memory_wall": "", "grants": [], **one}


def test_nodes_are_those_of_the_command(read: Read) -> None:
    of_gpus = [(1000, 0, ""), (125, 3, ""), (1000, 0, "fell off the bus")]
    gpus = [
        {
            "id": str(index),
            "index": index,
            "name": "L4",
            "free_compute_permille": rest,
            "leases": leases,
            "trouble": trouble,
        }
        for index, (rest, leases, trouble) in enumerate(of_gpus)
    ]
    whole = {
        "name": "a",
        "version": "1",
        "address": "",
        "running": 3,
        "waiting": 1,
        "drain_reason": "fan",
        "drained_by": "root",
    }
    every = [
        {**whole, "presence": "ready", "heard_at": NOW - 3, "silent_since": 0, "gpus": gpus},
        {
            **whole,
            "name": "b",
            "presence": "unknown",
            "heard_at": NOW - 99,
            "silent_since": NOW - 99,
            "gpus": gpus[:1],
        },
        {
            **whole,
            "name": "c",
            "presence": "drained",
            "heard_at": NOW - 1,
            "silent_since": 0,
            "gpus": gpus[1:2],
        },
        {**whole, "name": "d", "presence": "never-seen", "heard_at": 0, "silent_since": 0, "gpus": []},
    ]
    state = {"nodes": {"nodes": every, "pool": "lab", "notices": []}}
    answer = read("page", page="nodes", now=NOW, answers={}, state=state)
    read_nodes = [PoolNode(one) for one in every]
    rows = [nodes.node_row(one, NOW) for one in read_nodes]
    for row in rows[:3]:
        assert ["GPUs", row["gpus"]] in answer["facts"]
        assert ["heard", f"{row['heard']} ago"] in answer["facts"]
    shown = [value.removesuffix(", as last reported") for term, value in answer["facts"] if term == "free"]
    assert shown == [row["free"] or "-" for row in rows]
    notes = [nodes._note(one, NOW) for one in read_nodes]
    assert [note for note in notes if note and note not in answer["paragraphs"]] == []


def gpu(memory_bytes: int) -> Json:
    """A GPU that nobody has."""
    sizes = dict.fromkeys(
        ("memory_free_bytes", "memory_leasable_bytes", "memory_total_bytes"), str(memory_bytes)
    )
    used = {"memory_used_bytes": "0", "memory_unmanaged_bytes": "0", "utilization_ratio": 0}
    names = {"uuid": f"GPU-{memory_bytes}", "name": "H100", "mode": "free", "sharing": "none", "node": "dgx"}
    numbers = {"index": 0, "label": "0", "leases": 0, "compute_free_permille": 1000, "read_at": NOW}
    flags = {"trouble": "", "drained": False, "health": "ok", "parent_uuid": "", "driver_version": ""}
    return {**sizes, **used, **names, **numbers, **flags}


@pytest.mark.parametrize(
    ("sizes", "heading"),
    [
        ([80 * GIB], "Free now: 1 whole GPU, 80 GiB"),
        ([80 * GIB, 80 * GIB], "Free now: 2 whole GPUs, 80 GiB each"),
        ([80 * GIB, 15 * GIB], "Free now: 2 whole GPUs, 15 GiB to 80 GiB each"),
    ],
)
def test_the_headline_promises_no_more_memory_than_each_gpu_has(
    sizes: list[int], heading: str, read: Read
) -> None:
    answers = {
        "gpus": {"gpus": [gpu(size) for size in sizes], "simulated": False, "notices": [], "troubles": []},
        "leases": {"leases": [], "unmanaged": [], "notices": []},
    }
    answer = read("page", page="machine", now=NOW, answers={}, state=answers)
    assert answer["headings"] == [heading]


@pytest.mark.parametrize(
    ("pool", "owner", "owner_uid", "said"),
    [
        (False, "ada", 0, "ada you"),  # the reader of these pages has this number and the name root
        (False, "root", 1000, "root"),
        (True, "root", 0, "root you"),
        (True, "root@dgx", 0, "root@dgx you"),
        (True, "ada@dgx", 0, "ada@dgx"),  # a pool's answers have no numbers
    ],
)
def test_a_readers_own_leases_are_marked(
    pool: bool, owner: str, owner_uid: int, said: str, read: Read
) -> None:
    one = _whole(lease(owner=owner, owner_uid=str(owner_uid), node="dgx" if pool else ""))
    gpus = {"gpus": [], "simulated": False, "notices": [], "troubles": []}
    answers = {"gpus": gpus, "leases": {"leases": [one], "unmanaged": [], "notices": []}}
    answer = read("page", page="machine", pool=pool, now=NOW, answers={}, state=answers)
    assert table(answer, "Who has what")[0]["user"] == said


def test_the_coordinators_page_asks_for_nothing_that_only_a_node_has(read: Read) -> None:
    """It has no leases of its own, no presets and no offers."""
    pages = {
        page: read("page", page=page, words={"id": "l-7f3k"}, node="", pool=True, now=NOW, answers={})
        for page in ("lease", "submit")
    }
    assert pages["submit"]["calls"] == []
    assert "gpushare run --gpu 0.25 --pool IMAGE" in pages["submit"]["texts"]
    assert set(pages["lease"]["watched"]) == {"leases", "report"}


def test_the_use_over_a_life_says_what_the_report_says(read: Read) -> None:
    one = past_lease(1) | {"started_at": NOW - 60, "account": account(), "held_bytes": str(20 * GIB)}
    curve = [
        {"at": NOW - 60, "use_ratio": 0.5, "use_max_ratio": 0.75, "memory_ratio": 0.25},
        {"at": NOW - 30},
    ]
    answer = read("life", report={"lease": one, "curve": curve, "reasons": [], "notes": []})
    line = next(iter(report._split(Account(one["account"])))).split(maxsplit=2)[2]
    assert f"GPU hours: {line}" in answer["paragraphs"]
    seen, unseen = table(answer, "Memory: table")
    assert (seen["used"], unseen["used"], unseen["held"]) == ("5 GiB", "-", "20 GiB")
    assert [row["used"] for row in table(answer, "Compute: table")] == ["50%", "-"]


@pytest.mark.parametrize(
    ("values", "pieces"),
    [
        ([], []),
        ([None, None], []),
        ([0, 1, 2], [[0, 2]]),
        ([None, 1, None, 0, 3, None], [[1, 1], [3, 4]]),
    ],
)
def test_a_line_has_a_gap_where_nobody_has_seen_anything(
    values: list[float | None], pieces: list[list[int]], read: Read
) -> None:
    assert read("pieces", values=values) == pieces


@pytest.mark.parametrize(
    ("form", "times", "range_of_axis"),
    [
        ("lines", [6000, 6060, 6120], [6000, 6120]),
        ("lines", [6000], [5940, 6060]),  # a lease of less than a minute
        ("bars", [86400], [43200, 129600]),
    ],
)
def test_an_axis_is_as_long_as_what_it_shows(
    form: str, times: list[int], range_of_axis: list[int], read: Read
) -> None:
    assert read("range", form=form, times=times) == range_of_axis


@pytest.mark.parametrize("page", ["history", "use", "audit"])
def test_words_that_are_no_time_are_told_and_nothing_is_asked(page: str, read: Read) -> None:
    answer = read("page", page=page, words={"since": "<b>"}, now=NOW, answers={})
    assert answer["calls"] == []
    assert any("<b>" in one and "is not a time" in one for one in answer["paragraphs"])


def test_the_command_that_is_named_takes_the_words_as_they_are(read: Read) -> None:
    words = {"user": "it's $(me)", "since": "7d"}
    answer = read("page", page="history", words=words, now=NOW, answers={"History/Ended": {"leases": []}})
    assert answer["code"] == ["gpushare history --user 'it'\\''s $(me)' --since 7d"]


def test_a_refusal_is_shown_with_its_hint(read: Read) -> None:
    failure = {"failure": {"message": "you may see your own leases only", "hint": "root sees all"}}
    answer = read("page", page="history", now=NOW, trusted=False, answers={"History/Ended": failure})
    assert "you may see your own leases only (root sees all)" in answer["paragraphs"]
    assert "Of others you see what the site allows." in answer["paragraphs"]


def test_a_page_of_the_audit_asks_for_older_lines(read: Read) -> None:
    line = {
        "at": NOW,
        "uid": "0",
        "user": "ada",
        "pid": "7",
        "executable": "",
        "method": "POST",
        "name": "",
        "digest": "",
    }
    line |= {
        "endpoint": f"/containers/{'0a' * 32}/start",
        "container": "",
        "status": 403,
        "code": "permission_denied",
    }
    lines = [{**line, "number": str(number), "text": "no", "more": "2"} for number in range(5, 105)]
    answers = {"Audit/List": {"lines": lines, "trouble": ""}}
    words = {"before": "105", "refused": "refused"}
    answer = read("page", page="audit", words=words, now=NOW, answers=answers)
    assert answer["calls"] == [["Audit/List", {"refused": True, "since": 0, "before": 105, "limit": 100}]]
    first = table(answer, "Changes and refusals")[0]
    assert first["call"] == "POST /containers/0a0a0a0a0a0a/start"
    assert (first["status"], first["said"]) == ("✗ 403", "and 2 more like it; no")
    assert any("Older lines" in one for one in answer["paragraphs"])
