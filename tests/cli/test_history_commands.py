"""What the commands on the history show, started as processes, and the words for time that they read."""

from __future__ import annotations

import csv
import json
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpushared.cli.csv_text import csv_text
from gpushared.cli.sparkline import sparkline
from gpushared.client.period import PERIODS, read_bounds
from gpushared.domain.model.errors import RequestError
from tests.cli.answers import GRANT, lease
from tests.cli.process import Gpushare
from tests.cli.standin import Reply, StandIn, ok, refusal

HOUR_MS = 3_600_000
GIB = 1024**3
ACCOUNT = {
    "held_gpu_ms": str(31 * HOUR_MS),
    "active_gpu_ms": str(20 * HOUR_MS),
    "idle_gpu_ms": str(10 * HOUR_MS),
    "too_big_gpu_ms": str(5 * HOUR_MS),
    "well_used_gpu_ms": str(15 * HOUR_MS),
    "unseen_gpu_ms": str(HOUR_MS),
    "held_mib_seconds": str(1024 * 3600 * 40),
    "use_of_held_ratio": 0.42,
}
PAST = {
    "id": "l-7f3k",
    "node": "dgx",
    "owner": "alice",
    "project": "vision",
    "class": "train",
    "outcome": "finished",
    "exit_code": 3,
    "asks": "0.25",
    "gpu_count": 1,
    "gpu_labels": ["0"],
    "models": ["H100"],
    "created_at": time.time() - 9000,
    "started_at": time.time() - 7200,
    "ended_at": time.time() - 60,
    "waited_ms": "1800000",
    "ran_ms": "7140000",
    "time_limit_seconds": "28800",
    "peak_bytes": str(7 * GIB),
    "held_bytes": str(20 * GIB),
    "account": ACCOUNT,
    "job": "k3m9x0p2qa",
    "attempt": 1,
    "image": "=cmd()",
}
USAGE = {
    "rows": [{"key": "alice", "leases": 2, "account": ACCOUNT}, {"key": "bob", "leases": 1}],
    "total": {"leases": 3, "account": ACCOUNT},
    "waited_requests": 12,
    "waited_ms": str(9 * HOUR_MS),
}
REPORT = {
    "leases": [
        {
            "lease": PAST,
            "reasons": [{"reason": "resources", "waited_ms": "1800000"}],
            "curve": [
                {"at": 1.0, "use_ratio": 0.0, "memory_ratio": 0.1},
                {"at": 2.0, "use_ratio": 1.0, "memory_ratio": 0.35},
                {"at": 3.0},
            ],
            "notes": [
                {
                    "kind": "memory_too_big",
                    "text": "peak 7 GiB: `--gpu-memory 8g` is enough",
                    "mend": "--gpu-memory 8g",
                },
                {"kind": "time_limit", "text": "it asked for 8h", "mend": "--time 4h"},
            ],
        }
    ]
}


@pytest.fixture(autouse=True)
def answers(standin: StandIn) -> None:
    standin.answers |= {
        "History/Ended": ok({"leases": [PAST], "more": True, "simulated": True}),
        "History/Usage": ok(USAGE),
        "History/Report": ok(REPORT),
        "History/Waits": ok({"rows": [{"key": "train", "requests": 4, "waited": 1, "p50_ms": "60000"}]}),
    }


def test_history_shows_what_ended(gpushare: Gpushare, standin: StandIn) -> None:
    lines = gpushare("history", "--user", "alice", "--since", "2d").stdout.splitlines()
    assert lines[0].startswith("SIMULATED")
    assert lines[1].split()[:8] == ["LEASE", "USER", "OUTCOME", "EXIT", "GPU", "WAITED", "RAN", "GPU-HOURS"]
    row = ["l-7f3k", "alice", "finished", "3", "0", "30m", "1h59m", "31.0", "7", "GiB", "42%"]
    assert lines[2].split()[: len(row)] == row
    assert "--limit" in lines[-1]
    (call,) = standin.calls
    assert call.body["window"]["user"] == "alice"
    assert call.body["window"]["until"] - call.body["window"]["since"] == pytest.approx(2 * 86400, abs=7200)


def test_a_job_is_found_whenever_it_ran(gpushare: Gpushare, standin: StandIn) -> None:
    gpushare("history", "--job", "k3m9x0p2qa")
    (call,) = standin.calls
    assert (call.body["job"], call.body["window"]["since"]) == ("k3m9x0p2qa", 0.0)


def test_csv_has_the_fields_of_json_and_begins_no_formula(gpushare: Gpushare) -> None:
    (row,) = csv.DictReader(gpushare("history", "-o", "csv").stdout.splitlines())
    (item,) = json.loads(gpushare("history", "-o", "json").stdout)["items"]
    assert row["image"] == "'=cmd()"
    assert float(row["account.held_gpu_ms"]) == item["account"]["held_gpu_ms"]
    assert (row["gpu_labels"], row["peak_bytes"], row["use_max_ratio"]) == ("0", str(7 * GIB), "")


def test_csv_without_items_has_titles(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["History/Ended"] = ok({})
    (line,) = gpushare("history", "-o", "csv").stdout.splitlines()
    assert "account.held_gpu_ms" in line.split(",")


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1", "'=1"), ("@x", "'@x"), ("-1", "'-1"), ("+1", "'+1"), (-1, "-1"), ("a,b", '"a,b"'), (None, "")],
)
def test_a_cell_of_csv(value: object, cell: str) -> None:
    assert csv_text([{"a": value, "b": True}], {}).splitlines() == ["a,b", f"{cell},true"]


def test_usage_and_waste_split_what_was_held(gpushare: Gpushare, standin: StandIn) -> None:
    lines = gpushare("usage", "--by", "project").stdout.splitlines()
    assert lines[1].split() == ["alice", "2", "31.0", "40.0", "42%", "-", "10.0"]
    assert lines[-1] == "total: 31.0 GPU hours held by 3 leases, 42% used"
    assert standin.calls[-1].body["by"] == "project"
    lines = gpushare("waste").stdout.splitlines()
    assert lines[1].split() == ["alice", "31.0", "15.0", "5.00", "10.0", "1.00", "48%"]
    assert lines[-1] == "10.0 GPU hours lay idle while 12 requests waited 9h"


def test_waits_show_percentiles(gpushare: Gpushare) -> None:
    lines = gpushare("waits").stdout.splitlines()
    assert lines[0].split() == ["NAME", "REQUESTS", "WAITED", "P50", "P90", "P99", "LONGEST", "TOTAL"]
    assert lines[1].split()[:4] == ["train", "4", "1", "1m"]


def test_idle_shows_who_holds_gpus_and_runs_no_kernel_the_longest_first(
    gpushare: Gpushare, standin: StandIn
) -> None:
    now = time.time()
    leases = [lease(id=f"l-{n}", idle_since=now - n * 600, grants=[GRANT]) for n in (1, 3, 2)]
    standin.answers["Leases/List"] = ok({"leases": [*leases, lease(grants=[GRANT])]})
    done = gpushare("idle")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["LEASE", "l-3", "l-2", "l-1", "0.75"]
    assert gpushare("idle", "--user", "bob").stdout.splitlines()[-1] == "no lease is idle"


def test_a_report_tells_the_life_of_a_lease(gpushare: Gpushare) -> None:
    lines = gpushare("report", "l-7f3k", "--ascii").stdout.splitlines()
    assert lines[0] == "l-7f3k: finished(3), train, of alice in vision"
    text = "\n".join(lines)
    for part in (
        "job       k3m9x0p2qa, attempt 1",
        "asked     0.25, for 8h",
        "waited    30m: resources 30m",
        "GPU 0 of dgx (H100), 20 GiB",
        "25% of the time asked for",
        "[_# ]",
        "31.0 held: 15.0 well used, 5.00 too big, 10.0 idle, 1.00 not seen",
        "note      peak 7 GiB: `--gpu-memory 8g` is enough",
        "note      it asked for 8h: `--time 4h`",
    ):
        assert part in text, text


def test_a_report_finds_a_container_by_its_name(gpushare: Gpushare, standin: StandIn) -> None:
    def answer(call: object) -> Reply:
        named: str = call.body["name"]  # type: ignore[attr-defined]
        return ok(REPORT) if named == "l-7f3k" else refusal(404, "not_found", "the history has none")

    standin.answers |= {"History/Report": answer, "Leases/Get": ok(lease())}
    assert gpushare("report", "trainer").stdout.startswith("l-7f3k: ")
    standin.answers["Leases/Get"] = refusal(404, "not_found", "there is no lease")
    assert "the history has none" in gpushare("report", "nothing").stderr


def test_an_export_goes_from_page_to_page(gpushare: Gpushare, standin: StandIn, tmp_path: Path) -> None:
    def answer(call: object) -> Reply:
        token = call.body["page_token"]  # type: ignore[attr-defined]
        row = {"node": "box", "lease": f"@{token or 'first'}", "at": 1.5}
        return ok(
            {"columns": list(row), "rows": [json.dumps(row)], "next_page_token": "" if token else "1:2"}
        )

    standin.answers["History/Export"] = answer
    lines = gpushare("history", "export", "--kind", "hours").stdout.splitlines()
    assert lines == ["node,lease,at", "box,'@first,1.5", "box,'@1:2,1.5"]
    lines = gpushare("history", "export", "--jsonl").stdout.splitlines()
    assert [json.loads(line)["lease"] for line in lines] == ["@first", "@1:2"]
    done = gpushare("history", "export", "--parquet", str(tmp_path / "x"))
    if find_spec("pyarrow") is None:
        assert "pip install gpushared[parquet]" in done.stderr
    else:  # the extra is seldom there
        assert done.returncode == 0


NOW = datetime(2026, 11, 28, 12, 0).astimezone()  # a Saturday


@pytest.mark.parametrize(
    ("word", "begin", "end"),
    [
        ("today", "2026-11-28", "2026-11-29"),
        ("yesterday", "2026-11-27", "2026-11-28"),
        ("this-week", "2026-11-23", "2026-11-30"),
        ("last-week", "2026-11-16", "2026-11-23"),
        ("this-month", "2026-11-01", "2026-12-01"),
        ("last-month", "2026-10-01", "2026-11-01"),
        ("2026-11-01", "2026-11-01", "2026-11-01"),
        ("12h", "2026-11-28", "2026-11-28"),
    ],
)
def test_words_for_time(word: str, begin: str, end: str) -> None:
    found = [
        datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d") for moment in read_bounds(word, NOW)
    ]
    assert found == [begin, end]


@pytest.mark.parametrize("word", ["", "soon", "last-year", "7", "2026-13-01"])
def test_other_words_are_refused_with_the_words_that_there_are(word: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_bounds(word, NOW)
    assert all(period in refused.value.hint for period in PERIODS)


def test_a_curve_shows_what_was_not_seen_apart_from_what_was_not_used() -> None:
    assert sparkline([0.0, 0.01, 0.5, 1.0, None], plain=False) == "▁▂▅█·"


JOB = {
    "id": "k3m9x0p2qa",
    "owner": "alice",
    "project": "vision",
    "class": "train",
    "outcome": "failed",
    "outcome_text": "no image",
    "exit_code": 3,
    "asks": "0.25",
    "node_count": 2,
    "submitted_at": time.time() - 9000,
    "started_at": time.time() - 7200,
    "ended_at": time.time() - 3600,
    "waited_ms": "1800000",
    "reasons": [{"reason": "resources", "waited_ms": "1800000"}],
    "attempts": 2,
    "nodes": ["a", "b"],
}


@pytest.mark.parametrize(
    ("command", "call"), [("usage", "Usage"), ("waste", "Usage"), ("waits", "Waits"), ("history", "Ended")]
)
def test_the_pool_is_asked_for_by_one_word(
    gpushare: Gpushare, standin: StandIn, command: str, call: str
) -> None:
    assert gpushare(command, "--pool").returncode == 0
    assert standin.asked(f"History/{call}")[-1]["window"]["pool"] is True
    assert gpushare(command).returncode == 0
    assert "pool" not in standin.asked(f"History/{call}")[-1]["window"]


def test_a_report_of_a_job_begins_with_its_wait_in_the_queue(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["History/Report"] = ok({**REPORT, "job": JOB})
    done = gpushare("report", "--pool", "k3m9x0p2qa")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "k3m9x0p2qa: job, failed(3) (no image), train, of alice in vision"
    assert "  asked     2 nodes x 0.25" in lines
    assert "  waited    30m before its leases: resources 30m" in lines
    assert "  attempts  2 on a, b" in lines
    assert standin.asked("History/Report")[-1]["pool"] is True


def test_jobs_that_are_over_are_a_row_each(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["History/Jobs"] = ok({"jobs": [JOB], "more": True})
    done = gpushare(
        "history", "jobs", "--pool", "--limit", "5", "-o", "columns=job,outcome,node,waited,ran,asks"
    )
    assert done.stdout.splitlines()[1].split()[:4] == ["k3m9x0p2qa", "failed", "a,b", "30m"]
    assert standin.asked("History/Jobs")[-1]["limit"] == 5
    assert json.loads(gpushare("history", "jobs", "-o", "json").stdout)["items"][0]["attempts"] == 2


def test_listings_of_the_pool_name_nodes_and_those_that_do_not_answer(
    gpushare: Gpushare, standin: StandIn
) -> None:
    notice = "b does not answer: shown as it was 2m ago"
    waiting = {"position": 1, "reason": "resources", "text": "all GPUs are taken"}
    leases = [lease(id="l-1", grants=[GRANT], node="a"), lease(id="", state="queued", waiting=waiting)]
    standin.answers["Leases/List"] = ok({"leases": leases, "notices": [notice]})
    standin.answers["Gpus/List"] = ok({"gpus": [{"label": "0", "node": "a"}], "notices": [notice]})
    for command in ("ps", "queue", "gpus"):
        done = gpushare(command, "--pool")
        assert "NODE" in done.stdout.splitlines()[0], command
        assert done.stdout.splitlines()[-1] == notice or command == "queue"
    assert standin.asked("Leases/List")[-1]["pool"] is True
    assert "NODE" not in gpushare("ps").stdout
    refused = gpushare("ps", "--pool", "--all")
    assert (refused.returncode, "gpushare history --pool" in refused.stderr) == (2, True)
