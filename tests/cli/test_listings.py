"""What the listing commands show, started as processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answers import GRANT, QUEUED, lease
from tests.cli.process import ASK_ONCE, Gpushare
from tests.cli.standin import Call, Reply, StandIn, ok, refusal

GIB = 1024**3
PS_COLUMNS = ["LEASE", "USER", "STATE", "GPU", "SHARE", "MEMORY", "WALL", "AGE", "LEFT", "IMAGE", "NAME"]


@pytest.fixture(autouse=True)
def answers(standin: StandIn) -> None:
    now = time.time()
    active = lease(
        grants=[GRANT],
        memory_used_bytes=str(3 * GIB),
        memory_wall="mps-client",
        compute_cap="mps-percentage",
        container_id="c" * 64,
        container_name="trainer",
        image="registry.example/a/very/long/name/of/an/image:latest",
        created_at=now - 3700,
        expires_at=now + 7250,
    )
    other = lease(id="l-2222", owner="bob", grants=[{**GRANT, "gpu_index": 1, "compute_permille": 500}] * 2)
    ended = lease(id="l-0001", state="ended", outcome={"kind": "finished", "exit_code": 3})
    second = lease(id="l-9999", state="queued", waiting={"position": 4, "reason": "resources"})
    standin.answers["Leases/List"] = ok(
        {
            "leases": [active, other, second, QUEUED, ended],
            "unmanaged": [{"pid": 77, "user": "eve", "command": "py\x1b[31mthon", "memory_bytes": str(GIB)}],
            "simulated": True,
        }
    )
    healthy = {
        "uuid": "GPU-aaaa",
        "name": "H100",
        "mode": "shared",
        "memory_total_bytes": str(80 * GIB),
        "memory_used_bytes": "0",
        "memory_free_bytes": str(59 * GIB),
        "memory_leasable_bytes": str(79 * GIB),
        "compute_free_permille": 750,
        "utilization_ratio": 0.0,
        "temperature_celsius": 40,
        "power_watts": 99.6,
        "leases": 1,
        "sampled_at": now,
    }
    lost = {"uuid": "GPU-bbbb", "index": 1, "name": "H100", "trouble": "fell off the bus"}
    standin.answers["Gpus/List"] = ok({"gpus": [healthy, lost], "node": "dgx", "troubles": ["MPS is down"]})
    standin.answers["Node/Presets"] = ok({"presets": [{"name": "small", "gpu": "0.25", "class": "build"}]})
    standin.answers["Node/Status"] = ok({"version": "0.1.0", "node": "dgx", "engine": {"version": "28.2"}})


def table(text: str) -> list[list[str]]:
    """The table's cells; columns are at least two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_ps_shows_leases_and_processes_without_one(gpushare: Gpushare) -> None:
    done = gpushare("ps")
    assert done.returncode == 0, done.stderr
    lines = table(done.stdout)
    assert lines[0] == ["SIMULATED GPUs: no real hardware is leased here"]
    assert lines[1] == PS_COLUMNS
    assert lines[2][:9] == ["l-7f3k", "alice", "active", "0", "0.25", "3/20 GiB", "mps-client", "1h1m", "2h"]
    assert lines[2][9:] == ["registry.example/a/very/long/name/of/an…", "trainer"]
    assert lines[3][3:6] == ["1,1", "2x0.5", "-/40 GiB"]
    assert lines[6][2] == "finished(3)"
    assert lines[7] == [
        "UNMANAGED",
        "eve",
        "unmanaged",
        "0",
        "-",
        "1 GiB",
        "none",
        "-",
        "-",
        "-",
        "py\\x1b[31mthon (pid 77)",
    ]


def test_a_suspended_lease_has_the_time_left_that_it_had(gpushare: Gpushare, standin: StandIn) -> None:
    suspended = lease(state="suspended", left_seconds=5400.0)
    standin.answers["Leases/List"] = ok({"leases": [suspended]})
    standin.answers["Leases/Extend"] = ok(suspended)
    assert gpushare("ps", "--no-headers", "-o", "columns=left").stdout == "1h30m\n"
    assert gpushare("extend", suspended["id"], "1h").stdout == f"{suspended['id']}: 1h30m left\n"


def test_ps_shows_compute_that_others_leave(gpushare: Gpushare, standin: StandIn) -> None:
    burst = {**GRANT, "compute_permille": 125, "compute_limit_permille": 1000}
    leases = [lease(grants=[burst]), lease(grants=[burst, burst])]
    standin.answers["Leases/List"] = ok({"leases": leases})
    assert gpushare("ps", "--no-headers", "-o", "columns=share").stdout.split() == [
        *("12.5..100%", "2x12.5..100%")
    ]


def test_a_gpu_that_the_daemon_does_not_see_has_no_number(gpushare: Gpushare, standin: StandIn) -> None:
    unseen = lease(grants=[{**GRANT, "gpu_index": -1, "gpu_name": "", "gpu_label": ""}])
    standin.answers["Leases/List"] = ok({"leases": [unseen], "unmanaged": [{"pid": 7, "gpu_index": -1}]})
    assert gpushare("ps", "--no-headers", "-o", "columns=gpu").stdout.split() == ["?", "?"]


def test_numbers_stand_to_the_right(gpushare: Gpushare) -> None:
    rows = gpushare("ps", "-o", "columns=memory,lease").stdout.splitlines()[1:]
    assert [row[:8] for row in rows[:3]] == ["  MEMORY", "3/20 GiB", "-/40 GiB"]
    assert rows[-1].startswith("   1 GiB  UNMANAGED")


def test_every_listing_has_the_same_envelope(gpushare: Gpushare) -> None:
    for command, schema in [
        ("ps", "gpushare.leases/1"),
        ("gpus", "gpushare.gpus/1"),
        ("queue", "gpushare.queue/1"),
        ("presets", "gpushare.presets/1"),
        ("version", "gpushare.version/1"),
    ]:
        data = json.loads(gpushare(command, "-o", "json").stdout)
        assert data["schema"] == schema
        assert isinstance(data["items"], list)
        assert isinstance(data["simulated"], bool)


def test_json_has_numbers_and_null_for_what_is_unknown(gpushare: Gpushare) -> None:
    data = json.loads(gpushare("ps", "-o", "json").stdout)
    first, second = data["items"][:2]
    assert data["simulated"] is True
    assert first["grants"][0]["memory_bytes"] == 20 * GIB
    assert (first["memory_wall"], first["compute_cap"]) == ("mps-client", "mps-percentage")
    assert second["memory_used_bytes"] is None
    assert second["memory_wall"] is None
    assert data["unmanaged"][0]["pid"] == 77


def test_lines_of_json_are_one_item_each(gpushare: Gpushare) -> None:
    lines = gpushare("ps", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["l-7f3k", "l-2222", "l-9999", "l-7f3k", "l-0001"]


def test_quiet_is_ids_alone(gpushare: Gpushare) -> None:
    assert gpushare("queue", "-q").stdout == gpushare("queue", "-o", "ids").stdout == "l-7f3k\nl-9999\n"
    assert gpushare("gpus", "-q").stdout == "GPU-aaaa\nGPU-bbbb\n"


def test_no_headers_leaves_only_rows(gpushare: Gpushare) -> None:
    assert gpushare("ps", "-o", "columns=lease", "--no-headers").stdout.splitlines() == [
        "l-7f3k", "l-2222", "l-9999", "l-7f3k", "l-0001", "UNMANAGED",
    ]  # fmt: skip


def test_wide_shows_walls_and_ids(gpushare: Gpushare) -> None:
    lines = gpushare("ps", "-o", "wide").stdout.splitlines()
    assert "CAP" in lines[1].split()
    assert "mps-percentage" in lines[2]
    assert "GPU-aaaa" in lines[2]
    assert "registry.example/a/very/long/name/of/an/image:latest" in lines[2]


def test_gpus_shows_what_is_used_free_and_wrong(gpushare: Gpushare) -> None:
    lines = table(gpushare("gpus").stdout)
    assert lines[0] == ["NODE", "GPU", "NAME", "MODE", "UTIL", "MEMORY", "TEMP", "POWER", "LEASES", "FREE"]
    assert lines[1] == ["dgx", "0", "H100", "shared", "0%", "0/80 GiB", "40 C", "100 W", "1", "0.75, 59 GiB"]
    assert lines[2][4] == "-"
    assert [line[0] for line in lines[3:]] == ["trouble: MPS is down", "trouble: GPU 1: fell off the bus"]


def test_gpus_says_which_are_drained_why_since_when_and_by_whom(gpushare: Gpushare, standin: StandIn) -> None:
    since = time.time() - 250
    sick = {"reason": "fell off the bus (XID 79)", "since": since, "by": "gpushared", "sick": True}
    fan = {"reason": "new fan", "since": since, "by": "root"}
    listed = [
        {"uuid": "GPU-a", "index": 0, "name": "H100", "mode": "drained", "drained": fan},
        {"uuid": "GPU-b", "index": 1, "name": "H100", "mode": "unhealthy", "drained": sick},
    ]
    free = {"compute_free_permille": 1000, "memory_free_bytes": 80 << 30}
    standin.answers["Gpus/List"] = ok({"gpus": [{**gpu, **free} for gpu in listed]})
    assert gpushare("gpus", "-o", "columns=free").stdout.split()[:3] == ["FREE", "-", "-"]
    lines = gpushare("gpus").stdout.splitlines()
    assert lines[-2:] == [
        "drained: GPU 0: new fan (root, 4m ago)",
        "unhealthy: GPU 1 fell off the bus (XID 79) 4m ago; gpushare undrain 1 ends that",
    ]


def test_queue_is_in_order_with_reasons(gpushare: Gpushare) -> None:
    lines = table(gpushare("queue").stdout)
    assert lines[1] == [
        *("POS", "LEASE", "NAME", "USER", "CLASS", "ASKS", "WAITED", "ETA", "IMAGE", "REASON")
    ]
    assert [line[0] for line in lines[2:]] == ["3", "4"]
    assert lines[2][7:] == ["unknown", "-", "needs 24 GiB on one GPU; best is GPU 1 with 11 GiB free"]
    assert lines[3][-1] == "resources"


@pytest.mark.parametrize(
    ("since", "waited"), [(60, "1m"), (0, "5d")], ids=["taken off its GPUs", "of an older coordinator"]
)
def test_a_request_has_waited_since_it_was_taken_off_its_gpus(
    gpushare: Gpushare, standin: StandIn, since: float, waited: str
) -> None:
    now = time.time()
    times = {"created_at": now - 5 * 86400 - 60, "since": now - since if since else 0.0}
    suspended = {**QUEUED, **times, "state": "suspended"}
    standin.answers["Leases/List"] = ok({"leases": [suspended]})
    standin.answers["Projects/List"] = ok({"projects": []})
    standin.answers["Leases/Explain"] = ok({"lease": suspended})
    assert gpushare("queue", "-o", "columns=waited").stdout.split()[-1] == waited
    assert f"waits for {waited}, start" in gpushare("queue", "--explain").stdout


def test_audit_says_that_it_leaves_out_older_lines(gpushare: Gpushare, standin: StandIn) -> None:
    lines: list[dict[str, Any]] = [
        {"number": number, "at": 1000.0 + number, "user": "ann", "what": "Stop"} for number in (1, 2, 3)
    ]

    def answer(call: Call) -> Reply:
        before = call.body.get("before") or 4
        older = [line for line in lines if line["number"] < before]
        return ok({"lines": older[-call.body["limit"] :]})

    standin.answers["Audit/List"] = answer
    left_out = "older lines are not shown"
    assert left_out in gpushare("audit", "--limit", "2").stdout
    assert left_out not in gpushare("audit", "--limit", "3").stdout


def test_all_asks_for_ended_leases(gpushare: Gpushare, standin: StandIn) -> None:
    gpushare("ps", "--all")
    gpushare("ps")
    assert [body["ended"] for body in standin.asked("Leases/List")] == [True, False]


def test_gpus_says_each_trouble_once(gpushare: Gpushare, standin: StandIn) -> None:
    sick = {"sick": True, "reason": "is lost: fell off", "since": 1000, "by": "gpushared"}
    gpus = [
        {"uuid": "a", "index": 0, "name": "H100", "trouble": "no MPS"},
        {"uuid": "b", "index": 1, "name": "H100", "trouble": "no MPS"},
        {"uuid": "c", "index": 2, "name": "H100", "trouble": "fell off", "drained": sick},
    ]
    standin.answers["Gpus/List"] = ok({"gpus": gpus, "node": "dgx", "troubles": ["no disk", "no disk"]})
    lines = gpushare("gpus").stdout.splitlines()[4:]
    assert lines[:2] == ["trouble: no disk", "trouble: GPUs 0, 1: no MPS"]
    assert [line.split(" is lost")[0] for line in lines[2:]] == ["unhealthy: GPU 2"]


def test_version_says_the_engines_trouble_once(gpushare: Gpushare, standin: StandIn) -> None:
    away = "no Docker engine answers"
    standin.answers["Node/Status"] = ok({"version": "0.1.0", "engine": {"trouble": away}, "troubles": [away]})
    assert gpushare("version").stdout.count(away) == 1


def test_presets_and_version(gpushare: Gpushare) -> None:
    assert table(gpushare("presets").stdout)[1] == ["small", "0.25", "-", "-", "build", "-", "-"]
    assert table(gpushare("version").stdout)[1][1:4] == ["0.1.0", "dgx", "28.2"]


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": ""}, False),
    ],
)
def test_colour_is_for_terminals_or_on_demand(
    gpushare: Gpushare, environ: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[" in gpushare("ps", **environ).stdout) is coloured


def test_colour_does_not_move_columns(gpushare: Gpushare) -> None:
    import re

    plain, coloured = gpushare("ps").stdout, gpushare("ps", FORCE_COLOR="1").stdout
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain


@pytest.mark.parametrize("output", ["yaml", "columns=", "columns=lease,nonsense", "x" * 100_000])
def test_an_unknown_output_is_a_usage_error_that_asks_nobody(
    gpushare: Gpushare, standin: StandIn, output: str
) -> None:
    done = gpushare("ps", "-o", output)
    assert done.returncode == 2
    assert "  hint: " in done.stderr
    assert len(done.stderr) < 500
    assert standin.calls == []


def test_an_error_of_the_daemon_is_a_sentence_and_a_hint(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/List"] = refusal(503, "unavailable", "the journal is full", "make room")
    done = gpushare("ps", **ASK_ONCE)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "gpushare: the journal is full\n  hint: make room\n"


def test_an_error_cannot_move_the_cursor_or_flood_the_terminal(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/List"] = refusal(400, "invalid_argument", "\x1b[2J" + "x" * 1_000_000)
    done = gpushare("ps")
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 1000


def test_a_missing_daemon_is_said_with_a_hint(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    for command in ("ps", "gpus", "queue", "presets"):
        done = gpushare(command, **ASK_ONCE)
        assert done.returncode == 125
        assert "systemctl status gpushared" in done.stderr


def test_version_without_a_daemon_still_shows_the_client(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    done = gpushare("version", "-o", "json")
    assert done.returncode == 125
    (item,) = json.loads(done.stdout)["items"]
    assert item["daemon"] is None
    assert item["client"]


def test_a_bad_host_is_a_mistake_in_the_configuration(gpushare: Gpushare) -> None:
    done = gpushare("ps", GPUSHARE_HOST="tcp://somewhere:1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2


def test_a_reader_that_leaves_early_is_no_error(gpushare: Gpushare, standin: StandIn) -> None:
    """As in `gpushare ps | head -0`."""
    many = [lease(id=f"l-{number}") for number in range(5000)]
    standin.answers["Leases/List"] = Reply(json.dumps({"leases": many}).encode())
    process = gpushare.start("ps")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""


def test_a_full_disk_is_said(gpushare: Gpushare) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = gpushare.start("ps", stdout=full)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 125
    assert complaint == "gpushare: the output cannot be written: No space left on device\n"


def test_a_closed_stdout_is_no_bug(gpushare: Gpushare) -> None:
    """As in `gpushare ps >&- 2>&-`."""
    process = gpushare.start("ps", before=["sh", "-c", 'exec "$@" >&- 2>&-', "sh"])
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_names_beyond_ascii_are_shown_even_where_the_terminal_is_not_utf_8(
    gpushare: Gpushare, standin: StandIn
) -> None:
    standin.answers["Leases/List"] = ok({"leases": [lease(owner="añ日本")]})
    assert "añ日本" in gpushare("ps", PYTHONUTF8="1").stdout
    assert "a\\xf1\\u65e5\\u672c" in gpushare("ps", PYTHONIOENCODING="ascii").stdout


def test_wide_characters_keep_the_columns_straight(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/List"] = ok({"leases": [lease(owner="日本"), lease(owner="abcd")]})
    rows = gpushare("ps", "-o", "columns=user,state", PYTHONUTF8="1").stdout.splitlines()
    assert rows == ["USER  STATE", "日本  active", "abcd  active"]


def test_why_tells_reason_place_and_story(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Explain"] = ok(
        {
            "lease": QUEUED,
            "story": [{"at": 1000.0, "state": "queued", "text": "asked for 0.25"}],
            "refusals": [{"reason": "resources", "gpus": 2, "text": "has too little free memory"}],
        }
    )
    done = gpushare("why", "l-7f3k")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "l-7f3k: queued, asks 0.25, train, of alice",
        "  why      needs 24 GiB on one GPU; best is GPU 1 with 11 GiB free (resources)",
        "  place    3 of 5",
        "  start    unknown",
        "  refused  each of 2 GPUs: has too little free memory",
        "  story",
        "    1970-01-01 00:16:40  queued     asked for 0.25",
    ]
    data = json.loads(gpushare("why", "-o", "json", "l-7f3k").stdout)
    assert data["schema"] == "gpushare.explanation/1"
    assert data["items"][0]["lease"]["waiting"]["position"] == 3


def test_why_of_a_running_lease_tells_what_holds_it(gpushare: Gpushare, standin: StandIn) -> None:
    running = lease(grants=[GRANT], memory_wall="mps-client", compute_cap="none", simulated=True)
    standin.answers["Leases/Explain"] = ok({"lease": running})
    lines = gpushare("why", "l-7f3k").stdout.splitlines()
    assert lines[0].startswith("SIMULATED")
    assert "  holds    0.25 on GPU 0 (H100), 20 GiB" in lines
    assert "  walls    memory: mps-client, compute: none" in lines
    assert standin.asked("Leases/Explain") == [{"lease_id": "l-7f3k"}]


def test_stop_ends_each_lease_and_says_which_could_not_be(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Stop"] = lambda call: (
        refusal(404, "not_found", "there is no lease l-x", "see gpushare ps")
        if call.body["lease_id"] == "l-x"
        else ok(lease(id=call.body["lease_id"]))
    )
    done = gpushare("stop", "--grace", "5", "l-1", "l-x", "l-2")
    assert (done.returncode, done.stdout) == (125, "l-1\nl-2\n")
    assert "there is no lease l-x" in done.stderr
    assert standin.asked("Leases/Stop")[0] == {"lease_id": "l-1", "grace_seconds": 5}
    gpushare("stop", "l-1")
    assert standin.asked("Leases/Stop")[-1] == {"lease_id": "l-1"}


def test_resize_says_the_new_size_and_what_holds_when(gpushare: Gpushare, standin: StandIn) -> None:
    effects = ["booked now: 40 GiB on GPU 0", "watchdog now: ends it\x1b[31m"]
    standin.answers["Leases/Resize"] = ok({"lease": lease(asks="0.5"), "effects": effects})
    done = gpushare("resize", "l-7f3k", "--gpu", "0.5")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == ["l-7f3k: 0.5", "  booked now: 40 GiB on GPU 0"]
    assert "\x1b" not in done.stdout
    gpushare("resize", "l-1", "--gpu-memory", "12g", "--gpu-compute", "50%")
    assert standin.asked("Leases/Resize") == [
        {"lease_id": "l-7f3k", "gpu": "0.5", "gpu_memory": "", "gpu_compute": ""},
        {"lease_id": "l-1", "gpu": "", "gpu_memory": "12g", "gpu_compute": "50%"},
    ]


def test_resize_shows_a_refusal_and_its_hint(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Resize"] = refusal(429, "resource_exhausted", "the room is kept", "see the queue")
    done = gpushare("resize", "l-1", "--gpu", "0.5")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "gpushare: the room is kept\n  hint: see the queue\n"


def test_an_offer_tells_when_where_who_gives_way_and_what_would_fit(
    gpushare: Gpushare, standin: StandIn
) -> None:
    standin.answers["Leases/Offer"] = ok(
        {
            "asks": "0.5",
            "class": "build",
            "project": "product",
            "grants": [GRANT],
            "gives_way": [
                {"lease_id": "l-7f3k", "owner": "bob", "asks": "1", "project": "red", "step": "requeue"}
            ],
            "why": "its project is guaranteed the room",
            "waiting": {"position": 1, "queue_length": 2, "reason": "preempting", "text": "l-7f3k gives way"},
            "fits_now": "--gpu 0.25 would fit on GPU 1 now",
        }
    )
    done = gpushare("offer", "--gpu", "0.5", "--time", "2h", "--class", "build", "--model", "h100,a100")
    assert done.stdout.splitlines() == [
        "0.5, build, of project product: waits, position 1 of 2, start unknown",
        "  where      0.25 on GPU 0 (H100), 20 GiB",
        "  gives way  l-7f3k of bob (1, project red): is told, stopped, and started again later",
        "  because    its project is guaranteed the room",
        "  why        l-7f3k gives way (preempting)",
        "  instead    --gpu 0.25 would fit on GPU 1 now",
    ]
    (call,) = (one for one in standin.calls if one.target.endswith("/Offer"))
    assert (call.body["gpu"], call.body["time"], call.body["class"]) == ("0.5", "2h", "build")
    assert call.body["models"] == ["h100", "a100"]
    data = json.loads(gpushare("offer", "-o", "json").stdout)
    assert (data["schema"], data["items"][0]["gives_way"][0]["step"]) == ("gpushare.offer/1", "requeue")


def test_an_offer_of_what_starts_now_says_so(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Offer"] = ok(
        {"asks": "1", "class": "train", "project": "bob", "starts_now": True, "grants": [GRANT]}
    )
    assert gpushare("offer").stdout.splitlines()[0] == "1, train, of project bob: starts now"


def test_queue_explains_each_request_in_full(gpushare: Gpushare, standin: StandIn) -> None:
    """Those that left the queue meanwhile are left out."""
    waits = {**QUEUED, "project": "red"}
    standin.answers["Leases/List"] = ok({"leases": [waits]})
    standin.answers["Projects/List"] = ok(
        {
            "projects": [
                {
                    "name": "red",
                    "held_permille": 500,
                    "quotas": [{"guaranteed_permille": 1000, "limit_permille": 2000}],
                    "decayed_gpu_seconds": 5400,
                    "use_ratio": 0.25,
                }
            ]
        }
    )
    standin.answers["Leases/Explain"] = ok(
        {
            "lease": waits,
            "kept": {"lease_id": "l-9999", "gpu_labels": ["0", "1"]},
            "fits_now": "--gpu 0.25 would fit on GPU 1 now",
        }
    )
    lines = gpushare("queue", "--explain").stdout.splitlines()
    assert lines[0].startswith("3 of 5: l-7f3k, asks 0.25, train, of alice, waits for ")
    assert lines[1:] == [
        "  why      needs 24 GiB on one GPU; best is GPU 1 with 11 GiB free (resources)",
        "  kept     GPU 0, 1 for l-9999, start unknown",
        "  instead  --gpu 0.25 would fit on GPU 1 now",
        "  project  red holds 0.5 GPUs, guaranteed 1 and at most 2, used 1.5 GPU hours lately (25%)",
    ]
    (item,) = json.loads(gpushare("queue", "--explain", "-o", "json").stdout)["items"]
    assert (item["id"], item["standing"]["name"], item["kept"]["lease_id"]) == ("l-7f3k", "red", "l-9999")
    standin.answers["Leases/Explain"] = ok({"lease": lease(state="active")})
    assert gpushare("queue", "--explain").stdout == ""
