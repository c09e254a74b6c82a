"""``gpushare submit`` and the commands about jobs, as processes: what they ask, print and end with."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.bed import parts
from tests.cli.process import ASK_ONCE, Gpushare
from tests.cli.standin import HANG_UP, Call, StandIn, ok, refusal

JOB = "k3m9x0p2qa"
LABELS = quote(json.dumps({"label": [f"gpushare.job={JOB}", "gpushare.attempt=1"]}))
OF_JOB = f"/containers/json?all=1&filters={LABELS}"
NONE = refusal(404, "not_found", "there is no such thing")


def job(**said: object) -> dict[str, Any]:
    """A job as the daemon writes it."""
    return {
        "id": JOB,
        "state": "queued",
        "name": "trainer",
        "owner": "ada@ws3",
        "asks": "0.5",
        "token": "t1",
        "attempt": 1,
        **said,
    }


OVER = job(state="succeeded", exit_code=0, token="t9", ended_at=1010.0)
RUNNING = job(state="running", parts=[{"node": "ws3", "state": "running", "lease_id": "l-7f3k"}])


@pytest.fixture(autouse=True)
def ready(standin: StandIn, gpushare: Gpushare) -> None:
    """A node that takes jobs, and the real docker CLI."""
    if not parts.DOCKER.exists():
        parts.absent("cli", f"there is no {parts.DOCKER}")
    gpushare.environ["PATH"] = f"{parts.DOCKER.parent}:{gpushare.environ['PATH']}"
    standin.answers["Node/Status"] = ok({"node": "ws3", "engine": {"api_version": "1.41"}})
    standin.answers["Jobs/Submit"] = ok({"job_ids": [JOB], "notes": ["kept on this node"]})
    standin.answers["Jobs/Get"] = NONE
    standin.answers["Jobs/List"] = ok({"jobs": []})
    standin.answers["Leases/Get"] = NONE


def submitted(standin: StandIn) -> dict[str, Any]:
    (asked,) = standin.asked("Jobs/Submit")
    return asked


def body_of(asked: dict[str, Any]) -> dict[str, Any]:
    body = json.loads(base64.b64decode(asked["create_body"]))
    assert isinstance(body, dict)
    return body


# --- submit


NETWORKS = [
    (("--nodes", "2"), True),
    (("--span",), True),
    (("--nodes", "2", "--network", "host"), False),
    (("--nodes", "2", "--net=routed"), False),
    (("--nodes", "1"), False),
]


@pytest.mark.parametrize(("words", "noted"), NETWORKS)
def test_who_asks_for_several_nodes_is_told_of_the_network_that_joins_them(
    gpushare: Gpushare, words: tuple[str, ...], noted: bool
) -> None:
    done = gpushare("submit", "--pool", *words, "busybox", "true")
    assert (done.returncode, "--network host" in done.stderr) == (0, noted), done.stderr


def test_it_prints_the_id_alone_and_says_the_rest_on_stderr(gpushare: Gpushare, standin: StandIn) -> None:
    done = gpushare(
        "submit", "--gpu", "0.5", "--name", "trainer", "-e", "A=1", "busybox", "sh", "-c", "exit 3"
    )
    assert (done.returncode, done.stdout) == (0, f"{JOB}\n")
    assert "kept on this node" in done.stderr
    asked = submitted(standin)
    assert (asked["image"], asked["name"], asked["lease"]["gpu"]) == ("busybox", "trainer", "0.5")
    assert asked["request_id"]
    body = body_of(asked)
    assert (body["Env"], body["Cmd"]) == (["A=1"], ["sh", "-c", "exit 3"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pool"], {"pool": True}),
        (["--node", "ws4"], {"node": "ws4"}),
        (["--array", "0-9"], {"array": "0-9"}),
        (["--after", "a,b", "--after-ok=c"], {
            "after": [{"job_id": "a", "ok": False}, {"job_id": "b", "ok": False}, {"job_id": "c", "ok": True}]
        }),
        (["--retries", "3"], {"retries": 3}),
        (["--no-requeue"], {"requeue": False}),
        (["--requeue", "--rm"], {"requeue": True, "remove": True}),
        (["--stop-after", "10m"], {"stop_after_seconds": 600}),
        (["--nodes", "2", "--span"], {"nodes": 2, "span": True}),
        (["--pull", "never"], {"pull": "never"}),
        (["--platform=linux/amd64"], {"platform": "linux/amd64"}),
    ],
)  # fmt: skip
def test_the_request_is_what_was_typed(
    gpushare: Gpushare, standin: StandIn, words: list[str], said: dict[str, object]
) -> None:
    done = gpushare("submit", *words, "busybox")
    assert done.returncode == 0, done.stderr
    asked = submitted(standin)
    assert {name: asked[name] for name in said} == said


@pytest.mark.parametrize(
    ("words", "lease"),
    [
        ([], {"gpu": "1"}),
        (["--gpu", "0.5", "--hold", "--priority", "7"], {"gpu": "0.5", "held": True, "priority": 7}),
        (["--preset", "small", "--class", "infer"], {"preset": "small", "class": "infer"}),
        (["--cpus", "2", "-m", "1g"], {"gpu": "1", "host_cpu_milli": 2000, "host_memory_bytes": 1 << 30}),
    ],
)
def test_the_lease_s_part_is_that_of_run(
    gpushare: Gpushare, standin: StandIn, words: list[str], lease: dict[str, object]
) -> None:
    gpushare("submit", *words, "busybox")
    assert {name: value for name, value in submitted(standin)["lease"].items() if value} == lease


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["busybox"], "1 whole GPU, because no size was named"),
        (["--gpu", "1", "busybox", "--span"], "options of gpushare submit stand before the image"),
    ],
)
def test_what_is_hardly_meant_is_said(gpushare: Gpushare, words: list[str], said: str) -> None:
    done = gpushare("submit", *words)
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize("words", [["-d"], ["-itd"], ["-dit"], ["--detach", "--sig-proxy=false"]])
def test_detached_is_how_a_job_runs_anyway(gpushare: Gpushare, standin: StandIn, words: list[str]) -> None:
    done = gpushare("submit", *words, "busybox", "-d")
    assert done.returncode == 0, done.stderr
    body = body_of(submitted(standin))
    assert body["Cmd"] == ["-d"]
    assert body["Tty"] is any("t" in word for word in words if not word.startswith("--"))


def test_a_terminal_waits_for_somebody_as_with_docker_run_detached(
    gpushare: Gpushare, standin: StandIn
) -> None:
    done = gpushare("submit", "-it", "busybox")
    assert "gpushare attach" in done.stderr
    body = body_of(submitted(standin))
    assert (body["Tty"], body["OpenStdin"]) == (True, True)
    assert not any(body[name] for name in ("AttachStdin", "AttachStdout", "AttachStderr", "StdinOnce"))


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        ([], "no image was named", 2),
        (["--cidfile", "x", "busybox"], "--cidfile makes no sense for a job", 2),
        (["--gpus", "all", "busybox"], "--gpus asks docker for GPUs beside the lease", 125),
        (["--retries", "many", "busybox"], "--retries 'many' is not possible", 2),
        (["--node", "a", "--span", "busybox"], "--node and --span exclude each other", 2),
        (["--requeue", "--no-requeue", "busybox"], "exclude each other", 2),
        (["--max-wait", "3", "busybox"], "unknown flag: --max-wait", 125),
        (["--array"], "--array needs a value", 2),
        (["--pool", "--nodes", "0", "busybox"], "at least one node", 2),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_daemon_is_asked(
    gpushare: Gpushare, standin: StandIn, words: list[str], sentence: str, code: int
) -> None:
    done = gpushare("submit", "--gpu", "1", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert standin.asked("Jobs/Submit") == []


def test_a_relative_path_is_resolved_where_it_was_typed(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    gpushare("submit", "-v", "./data:/data", "busybox")
    assert body_of(submitted(standin))["HostConfig"]["Binds"] == [f"{tmp_path}/data:/data"]


def test_a_lost_answer_is_asked_for_again_with_the_same_id(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/Submit"] = [HANG_UP, ok({"job_ids": [JOB]})]
    done = gpushare("submit", "busybox")
    assert (done.returncode, done.stdout) == (0, f"{JOB}\n")
    first, second = standin.asked("Jobs/Submit")
    assert first == second


@pytest.mark.parametrize(
    ("code", "told"),
    [("never_fits", "waits until a node joins that could take it: no node"), ("resources", "")],
)
def test_what_no_node_of_the_pool_could_ever_take_is_kept_and_that_is_said(
    gpushare: Gpushare, standin: StandIn, code: str, told: str
) -> None:
    sentence = {"reason_code": code, "sentence": "no node could take 99", "hint": "there are T4"}
    standin.answers["Jobs/Explain"] = ok({"job": job(), **sentence})
    done = gpushare("submit", "--pool", "--gpu", "99", "busybox")
    assert (done.returncode, done.stdout) == (0, f"{JOB}\n")
    assert told in done.stderr
    assert bool(told) == ("no node could take 99" in done.stderr)


def test_jobs_are_near_or_away_from_others_by_their_names(gpushare: Gpushare, standin: StandIn) -> None:
    """On this node these are leases, and in the pool jobs."""
    lease = {"id": "l-7f3k", "state": "active", "job_id": JOB}
    alone = {"id": "l-8g4m", "state": "active"}
    standin.answers["Leases/Get"] = lambda call: ok(alone if call.body["lease_id"] == "alone" else lease)
    words = ("--near", "trainer", "--away-from", "trainer,l-7f3k", "busybox")
    for where in ((), ("--node", "ws3"), ("--pool",)):
        gpushare("submit", *where, *words)
    near = [(asked["lease"]["near"], asked["lease"]["away_from"]) for asked in standin.asked("Jobs/Submit")]
    here, in_pool = (["l-7f3k"], ["l-7f3k", "l-7f3k"]), ([JOB], [JOB, JOB])
    assert near == [here, here, in_pool]
    standin.answers["Leases/Get"] = lambda call: ok(alone)
    refused = gpushare("submit", "--pool", "--near", "alone", "busybox")
    assert (refused.returncode, "'alone' is a lease without a job" in refused.stderr) == (125, True)


def test_an_array_is_named_by_its_own_id(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/Submit"] = ok({"job_ids": [f"{JOB}_0", f"{JOB}_1"], "array_id": JOB})
    assert gpushare("submit", "--array", "0-1", "busybox").stdout == f"{JOB}\n"


# --- jobs


def test_jobs_are_listed_with_where_they_are_and_why(gpushare: Gpushare, standin: StandIn) -> None:
    waits = job(id="aaaaaaaaaa", reason="needs 24 GiB on one GPU", pool=True)
    standin.answers["Jobs/List"] = ok({"jobs": [RUNNING, waits], "notices": ["the pool does not answer"]})
    lines = gpushare("jobs").stdout.splitlines()
    assert lines[0].split() == ["JOB", "NAME", "OWNER", "STATE", "NODE", "ASKS", "AGE", "REASON"]
    assert [lines[1].split()[place] for place in (0, 3, 4)] == [JOB, "running", "ws3"]
    assert lines[2].endswith("needs 24 GiB on one GPU")
    assert lines[3] == "the pool does not answer"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {}),
        (["--all"], {"all": True}),
        (["-a", "--ended"], {"all": True, "ended": True}),
        (["--array", JOB], {"array_id": JOB, "ended": True}),
        (["--array=" + JOB], {"array_id": JOB, "ended": True}),
    ],
)
def test_which_jobs_are_listed_is_said(
    gpushare: Gpushare, standin: StandIn, words: list[str], asked: dict[str, object]
) -> None:
    assert gpushare("jobs", *words).returncode == 0
    (body,) = standin.asked("Jobs/List")
    assert {name: value for name, value in body.items() if value and name != "limit"} == asked


def test_all_pages_are_listed(gpushare: Gpushare, standin: StandIn) -> None:
    pages = {"": ok({"jobs": [job(id="a")], "next_page_token": "l1"}), "l1": ok({"jobs": [job(id="b")]})}
    standin.answers["Jobs/List"] = lambda call: pages[call.body["page_token"]]
    assert gpushare("jobs", "-q").stdout == "a\nb\n"
    assert gpushare("jobs", "--ended").stdout.splitlines()[-1] == "only the last 1 jobs are shown"


# --- wait and cancel


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (OVER, 0),
        (job(state="failed", exit_code=3, token="t9"), 3),
        (job(state="failed", reason="the image is not there", token="t9"), 125),
        (job(state="cancelled", token="t9"), 125),
    ],
)
def test_wait_ends_with_the_code_of_the_job(
    gpushare: Gpushare, standin: StandIn, end: dict[str, Any], code: int
) -> None:
    standin.answers["Leases/Get"] = NONE
    standin.answers["Jobs/Get"] = ok(RUNNING)
    standin.answers["Jobs/Wait"] = [ok(RUNNING), ok(end)]
    done = gpushare("wait", "trainer")
    assert done.returncode == code
    assert (end["state"] in done.stderr) is (code != 0)


def test_wait_for_several_ends_with_the_first_that_did_not_succeed(
    gpushare: Gpushare, standin: StandIn
) -> None:
    ends = {
        "a": OVER,
        "b": job(id="b", state="failed", exit_code=4),
        "c": job(id="c", state="failed", exit_code=5),
    }
    standin.answers["Leases/Get"] = NONE
    standin.answers["Jobs/Get"] = lambda call: ok(ends[call.body["job_id"]] | {"id": call.body["job_id"]})
    assert gpushare("wait", "a", "b", "c").returncode == 4


def test_wait_for_an_array_waits_for_all_of_it(gpushare: Gpushare, standin: StandIn) -> None:
    def of_array(call: Call) -> Any:
        first = job(id=f"{JOB}_0", state="succeeded", array_index=0)
        second = job(id=f"{JOB}_1", state="running", array_index=1)
        return ok({"jobs": [first, second]})

    standin.answers["Jobs/List"] = of_array
    standin.answers["Jobs/Wait"] = ok(job(id=f"{JOB}_1", state="failed", exit_code=6))
    assert gpushare("wait", JOB).returncode == 6


@pytest.fixture
def sweep(standin: StandIn) -> None:
    """An array of that name, which the daemon takes for no single job."""
    over, runs = (
        job(id=f"{JOB}_{at}", state=state, array_index=at)
        for at, state in enumerate(("succeeded", "running"))
    )
    standin.answers["Jobs/Get"] = refusal(
        400, "invalid_argument", "'sweep' is an array of 2 jobs", "name one"
    )
    standin.answers["Jobs/List"] = lambda call: ok(
        {"jobs": [over, runs] if call.body["array_id"] == "sweep" else []}
    )
    standin.answers["Jobs/Cancel"] = lambda call: ok(job(id=call.body["job_id"]))
    standin.answers["Jobs/Wait"] = ok(job(id=f"{JOB}_1", state="failed", exit_code=6))


@pytest.mark.usefixtures("sweep")
def test_an_array_is_waited_for_and_ended_by_its_name(gpushare: Gpushare) -> None:
    assert gpushare("wait", "sweep").returncode == 6
    assert gpushare("cancel", "sweep").stdout == f"{JOB}_1\n"


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("words", [("why",), ("hold",), ("logs",), ("stop",), ("priority", "--", "5")])
def test_where_one_job_is_meant_the_name_of_an_array_is_refused_in_one_sentence(
    gpushare: Gpushare, words: tuple[str, ...]
) -> None:
    command, *rest = words
    done = gpushare(command, "sweep", *rest)
    assert (done.returncode, done.stderr) == (
        125,
        "gpushare: 'sweep' is an array of 2 jobs\n  hint: name one\n",
    )


def test_a_name_that_two_jobs_have_is_said_of_neither_s_array(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/Get"] = refusal(400, "invalid_argument", "'x' is the name of 2 jobs", "say which")
    for command in ("wait", "cancel"):
        assert "'x' is the name of 2 jobs" in gpushare(command, "x").stderr


def test_wait_gives_up_after_its_time(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Get"] = NONE
    standin.answers["Jobs/Get"] = ok(RUNNING)
    standin.answers["Jobs/Wait"] = ok(RUNNING)
    done = gpushare("wait", "--timeout", "1s", "trainer")
    assert done.returncode == 124
    assert "not over after 1s" in done.stderr


def test_cancel_prints_each_and_reports_what_cannot_be(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/Cancel"] = lambda call: (
        NONE if call.body["job_id"] == f"{JOB}_9" else ok(job(id=call.body["job_id"]))
    )
    standin.answers["Leases/Get"] = standin.answers["Jobs/Get"] = NONE
    done = gpushare("cancel", "--grace", "3", f"{JOB}_1", f"{JOB}_9", f"{JOB}_2")
    assert (done.returncode, done.stdout) == (125, f"{JOB}_1\n{JOB}_2\n")
    assert f"there is no job, lease or container '{JOB}_9'" in done.stderr
    assert standin.asked("Jobs/Cancel")[0] == {"job_id": f"{JOB}_1", "grace_seconds": 3}


def test_cancel_says_what_is_known_of_those_who_have_not_heard_of_it(
    gpushare: Gpushare, standin: StandIn
) -> None:
    away = {
        "state": "cancelling",
        "reason": "to be cancelled as soon as it can be",
        "hint": "it is kept here",
    }
    standin.answers["Jobs/Cancel"] = ok(job(id=JOB) | away)
    standin.answers["Leases/Get"] = NONE
    done = gpushare("cancel", JOB)
    assert (done.returncode, done.stdout) == (0, f"{JOB}\n")
    assert done.stderr == f"gpushare: {JOB}: {away['reason']}\n  hint: {away['hint']}\n"


def test_cancel_of_an_array_that_is_over_has_nothing_to_end(gpushare: Gpushare, standin: StandIn) -> None:
    """As of a job that is over."""
    standin.answers["Jobs/List"] = ok({"jobs": [OVER | {"id": f"{JOB}_{number}"} for number in range(3)]})
    done = gpushare("cancel", JOB)
    assert (done.returncode, done.stdout, standin.asked("Jobs/Cancel")) == (0, "", [])


def test_cancel_of_an_array_ends_those_that_are_not_over(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/List"] = ok({"jobs": [job(id=f"{JOB}_{number}") for number in range(3)]})
    standin.answers["Jobs/Cancel"] = lambda call: ok(job(id=call.body["job_id"]))
    assert gpushare("cancel", JOB).stdout.split() == [f"{JOB}_2", f"{JOB}_1", f"{JOB}_0"]


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        (["--all"], ["c0", "b_1", "b_0", "a0"]),
        (["--name", "sweep"], ["b_1", "b_0"]),
        (["--name", "trainer"], ["a0"]),
    ],
)
def test_cancel_ends_all_of_ones_own_or_those_of_a_name(
    gpushare: Gpushare, standin: StandIn, words: list[str], ended: list[str]
) -> None:
    sweep = [job(id=f"b_{at}", name=f"sweep-{at}", array_id="b", array_index=at) for at in range(2)]
    others = [job(id="c0", name="sweep-7"), OVER | {"id": "d0", "name": "sweep"}]
    standin.answers["Jobs/List"] = ok(
        {"jobs": [job(id="a0"), *sweep, *others], "notices": ["the pool is away"]}
    )
    standin.answers["Jobs/Cancel"] = lambda call: ok(job(id=call.body["job_id"]))
    done = gpushare("cancel", *words)
    assert (done.returncode, done.stdout.split()) == (0, ended)
    assert done.stderr == "gpushare: the pool is away\n"
    assert not any(asked.get("all") for asked in standin.asked("Jobs/List"))


@pytest.mark.parametrize("words", [[], ["--all", "a"], ["--all", "--name", "a"], ["--name", "a", "b"]])
def test_cancel_is_told_in_one_way_which_jobs_are_meant(gpushare: Gpushare, words: list[str]) -> None:
    done = gpushare("cancel", *words)
    assert (done.returncode, "say which jobs to end" in done.stderr) == (2, True)


def test_cancel_of_a_name_that_no_job_has_is_an_error_and_of_all_where_there_is_none_is_not(
    gpushare: Gpushare, standin: StandIn
) -> None:
    standin.answers["Jobs/List"] = ok({})
    assert "you have no job named 'nobody'" in gpushare("cancel", "--name", "nobody").stderr
    assert gpushare("cancel", "--all").returncode == 0


# --- why, hold, logs


@pytest.mark.parametrize("state", ["held", "queued"])
def test_the_output_of_a_job_that_never_ran_is_refused_in_one_sentence(
    gpushare: Gpushare, standin: StandIn, state: str
) -> None:
    standin.answers["Jobs/Get"] = ok(job(state=state, attempt=0))
    standin.answers["Jobs/Door"] = refusal(409, "failed_precondition", f"job {JOB} is {state}", "why")
    done = gpushare("logs", JOB)
    assert (done.returncode, done.stderr) == (125, f"gpushare: job {JOB} is {state}\n  hint: why\n")


def test_what_is_told_of_jobs_on_simulated_gpus_says_so(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Jobs/List"] = ok({"jobs": [], "simulated": True})
    standin.answers["Jobs/Explain"] = ok({"job": RUNNING, "simulated": True})
    assert json.loads(gpushare("jobs", "-o", "json").stdout)["simulated"] is True
    assert json.loads(gpushare("why", "-o", "json", JOB).stdout)["simulated"] is True
    assert "SIMULATED" in gpushare("why", JOB).stdout


def test_why_of_a_job_tells_its_story(gpushare: Gpushare, standin: StandIn) -> None:
    explanation = {"job": RUNNING, "reason_code": "", "story": [{"at": 0.0, "text": "submitted by ada@ws3"}]}
    standin.answers["Jobs/Explain"] = ok(explanation)
    lines = gpushare("why", JOB).stdout.splitlines()
    assert lines[0] == f"{JOB}: running, asks 0.5, of ada@ws3"
    assert "l-7f3k" in lines[1]
    assert lines[-1].endswith("submitted by ada@ws3")


def test_a_name_that_no_lease_has_is_looked_for_among_jobs(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Get"] = NONE
    standin.answers["Jobs/Get"] = ok(job())
    standin.answers["Jobs/Explain"] = ok({"job": job()})
    assert gpushare("why", "trainer").stdout.startswith(JOB)
    standin.answers["Jobs/Hold"] = ok(job())
    assert gpushare("hold", "trainer").stdout == f"{JOB}\n"
    assert standin.asked("Jobs/Hold") == [{"job_id": JOB, "held": True}]


def test_a_lease_s_id_is_never_looked_for_among_jobs(gpushare: Gpushare, standin: StandIn) -> None:
    assert "there is no such thing" in gpushare("logs", "l-7f3k").stderr
    assert standin.asked("Jobs/Get") == []


def test_logs_of_a_job_become_docker_s_of_its_container(
    gpushare: Gpushare, standin: StandIn, docker_recorder: Path
) -> None:
    standin.answers["Jobs/Get"] = ok(RUNNING)
    standin.answers["Jobs/Door"] = ok({"host": standin.host, "lease_id": "l-7f3k", "here": True})
    standin.answers[OF_JOB] = ok([{"Id": "c1"}])
    assert gpushare("logs", "-f", "--tail", "3", JOB).returncode == 7
    recorded = docker_recorder.with_name("record.logs").read_text().split()
    assert recorded == ["logs", "--follow", "--tail=3", "c1"]
    standin.answers["/containers/c1/json"] = ok({"Config": {"Tty": False}})
    assert gpushare("attach", JOB).returncode == 7
    assert docker_recorder.with_name("record.attach").read_text().split() == ["attach", "c1"]


def test_docker_is_pointed_at_the_socket_that_leads_to_the_job_s_node(
    gpushare: Gpushare, standin: StandIn, docker_recorder: Path, tmp_path: Path
) -> None:
    """However the container is called there: it is found by its job."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        there = StandIn(Path(folder) / "node.sock")
        there.answers[OF_JOB] = ok([{"Id": "c9"}])
        standin.answers["Jobs/Get"] = ok(RUNNING | {"pool": True})
        standin.answers["Jobs/Door"] = ok({"host": there.host, "lease_id": "l-7f3k", "node": "ws4"})
        assert gpushare("logs", "--rank", "1", JOB).returncode == 7
        there.close()
    assert standin.asked("Jobs/Door") == [{"job_id": JOB, "rank": 1}]
    environ = docker_recorder.with_name("record.logs.env").read_text()
    assert f"DOCKER_HOST={there.host}" in environ


def test_a_node_that_is_cut_off_is_named_and_not_taken_for_this_one_s_daemon(
    gpushare: Gpushare, standin: StandIn
) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        there = StandIn(Path(folder) / "node.sock")
        there.answers[OF_JOB] = HANG_UP
        standin.answers["Jobs/Get"] = ok(RUNNING | {"pool": True})
        standin.answers["Jobs/Door"] = ok({"host": there.host, "lease_id": "l-7f3k", "node": "ws4"})
        done = gpushare("logs", JOB, **ASK_ONCE)
        there.close()
    assert done.returncode == 125
    assert f"node ws4, where job {JOB} is, cannot be reached" in done.stderr
    assert "systemctl" not in done.stderr


def test_an_earlier_attempt_is_sought_where_it_ran(
    gpushare: Gpushare, standin: StandIn, docker_recorder: Path
) -> None:
    """Of a job that waits for its second, that is also what is meant where none is named."""
    tried = {"attempt": 1, "parts": [{"node": "ws3", "lease_id": "l-7f3k"}]}
    standin.answers["Jobs/Get"] = ok(job(tries=[tried]))
    standin.answers["Jobs/Door"] = ok({"host": standin.host, "lease_id": "l-7f3k", "here": True})
    standin.answers[OF_JOB] = ok([{"Id": "c1"}])
    for words in ([], ["--attempt", "1"]):
        assert gpushare("logs", *words, JOB).returncode == 7
    assert standin.asked("Jobs/Door") == [{"job_id": JOB, "rank": 0, "attempt": 1}] * 2
    assert docker_recorder.with_name("record.logs").read_text().split()[-1] == "c1"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [(RUNNING, "is running and has no container yet"), (OVER, "has been removed, and its output with it")],
)
def test_where_there_is_no_output_it_says_why(
    gpushare: Gpushare, standin: StandIn, found: dict[str, Any], sentence: str
) -> None:
    standin.answers["Jobs/Get"] = ok(found)
    standin.answers["Jobs/Door"] = ok({"host": standin.host, "lease_id": "l-7f3k", "here": True})
    standin.answers[OF_JOB] = ok([])
    done = gpushare("logs", JOB)
    assert done.returncode == 125
    assert sentence in done.stderr
