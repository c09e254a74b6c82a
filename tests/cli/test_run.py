"""``gpushare run`` as a process: image, lease, wait, and what becomes of it."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from gpushared.cli.docker_args import DOCKER_SWITCHES
from gpushared.cli.start import NOT_IN_A_POOL
from tests.cli.answers import QUEUED, RESERVED, lease
from tests.cli.process import ASK_ONCE, Gpushare
from tests.cli.standin import HANG_UP, Call, Reply, StandIn, ok, refusal

PRESENT = "/images/busybox/json"


@pytest.fixture(autouse=True)
def ready(standin: StandIn, docker_recorder: Path) -> None:  # the fixture puts the recorder on PATH
    """A node with the image and with room."""
    standin.answers[PRESENT] = ok({"Id": "sha256:1"})
    standin.answers["Leases/Request"] = ok(RESERVED)
    standin.answers["Leases/Release"] = ok(lease(state="ended"))


def words_of(record: Path, command: str) -> list[str]:
    path = record.with_name(f"{record.name}.{command}")
    return path.read_text().splitlines() if path.exists() else []


def environment_of(record: Path) -> dict[str, str]:
    lines = record.with_name(f"{record.name}.run.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_it_becomes_docker_run_with_the_lease_s_label(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    """Docker gets all words but ours, the gate as its host, and its exit code is the command's."""
    done = gpushare("run", "--rm", "--gpu", "0.25", "-e", "A=1 2", "busybox", "sh", "-c", "exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert words_of(docker_recorder, "run") == [
        "run", "--label", "gpushare.lease=l-7f3k", "--rm", "-e", "A=1 2", "busybox", "sh", "-c", "exit 7",
    ]  # fmt: skip
    assert standin.asked("Leases/Release") == []


@pytest.mark.parametrize(
    ("words", "leads_beside"), [(["-d"], False), (["--detach"], False), ([], True), (["-it"], True)]
)
def test_docker_leads_to_the_gate_past_a_process_beside_it_where_it_stays_attached(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn, words: list[str], leads_beside: bool
) -> None:
    """That one takes up what breaks; a docker that only starts a container needs none."""
    gpushare("run", *words, "busybox")
    host = environment_of(docker_recorder)["DOCKER_HOST"]
    assert ("/gpushare-run-" in host) is leads_beside
    assert (host == standin.host) is not leads_beside


def test_the_socket_beside_docker_is_in_a_folder_that_takes_one(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn, tmp_path: Path
) -> None:
    """Names of sockets are short; a folder that is too deep is passed over."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    gpushare("run", "busybox", XDG_RUNTIME_DIR=str(deep), TMPDIR="/nonexistent")
    assert environment_of(docker_recorder)["DOCKER_HOST"].startswith("unix:///tmp/gpushare-run-")
    assert list(deep.iterdir()) == []


def test_other_docker_endpoints_of_the_user_do_not_win_over_the_gate(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    gpushare(
        "run", "busybox", DOCKER_HOST="tcp://else:1", DOCKER_CONTEXT="else", DOCKER_TLS_VERIFY="1", KEPT="1"
    )
    environ = environment_of(docker_recorder)
    assert environ["DOCKER_HOST"].startswith("unix:///")
    assert environ["KEPT"] == "1"
    assert not {"DOCKER_CONTEXT", "DOCKER_TLS_VERIFY"} & set(environ)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {"gpu": "1"}),
        (["--gpu", "2x0.5"], {"gpu": "2x0.5"}),
        (["--gpu-memory=8g", "--gpu-compute", "30%"], {"gpu_memory": "8g", "gpu_compute": "30%"}),
        (["--preset", "small", "--class", "build"], {"preset": "small", "class": "build"}),
        (["--time", "2h", "--isolation", "exclusive"], {"gpu": "1", "time": "2h", "isolation": "exclusive"}),
        (["--immediate"], {"gpu": "1", "immediate": True}),
        (["--project", "vision", "--priority=-5"], {"gpu": "1", "project": "vision", "priority": -5}),
    ],
)
def test_the_request_is_what_was_typed(
    gpushare: Gpushare, standin: StandIn, words: list[str], asked: dict[str, object]
) -> None:
    """Without any size or preset it is one whole GPU, as with `docker run --gpus 1`."""
    gpushare("run", *words, "busybox")
    (body,) = standin.asked("Leases/Request")
    assert body.pop("request_id")
    assert body.pop("ends_with_caller")
    assert body.pop("image") == "busybox"
    assert {name: value for name, value in body.items() if value} == asked


def test_help_inside_the_command_is_the_command_s(gpushare: Gpushare, docker_recorder: Path) -> None:
    """`gpushare run IMAGE CMD --help` runs; only --help among the options is ours."""
    assert gpushare("run", "--gpu", "1", "busybox", "ls", "--help").returncode == 7
    assert words_of(docker_recorder, "run")[-2:] == ["ls", "--help"]
    assert "Usage: gpushare run" in gpushare("run", "--gpu", "1", "--help", "busybox").stdout


# --- before anything is held


def test_a_missing_image_is_pulled_before_a_gpu_is_held(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers[PRESENT] = Reply(b'{"message": "no such image"}', status=404)
    done = gpushare("run", "--platform", "linux/amd64", "-q", "busybox")
    assert done.returncode == 7
    assert words_of(docker_recorder, "pull") == ["pull", "--quiet", "--platform", "linux/amd64", "busybox"]


def test_an_image_is_not_pulled_for_a_request_that_never_fits(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers[PRESENT] = Reply(b'{"message": "no such image"}', status=404)
    standin.answers["Leases/Offer"] = refusal(400, "failed_precondition", "too big", "ask for 0.5")
    done = gpushare("run", "--gpu", "9", "busybox")
    assert (done.returncode, words_of(docker_recorder, "pull")) == (125, [])
    assert "too big" in done.stderr


def test_an_image_that_cannot_be_pulled_asks_for_no_lease(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    standin.answers[PRESENT] = Reply(b"{}", status=404)
    (tmp_path / "pull-code").write_text("1")
    done = gpushare("run", "busybox")
    assert done.returncode == 125
    assert "the image busybox could not be pulled" in done.stderr
    assert standin.asked("Leases/Request") == []


@pytest.mark.parametrize(("policy", "pulls"), [("always", True), ("never", False), ("missing", False)])
def test_docker_s_pull_policy_is_followed(
    gpushare: Gpushare, docker_recorder: Path, policy: str, pulls: bool
) -> None:
    gpushare("run", f"--pull={policy}", "busybox")
    assert bool(words_of(docker_recorder, "pull")) is pulls


def test_an_engine_that_is_away_is_said_before_waiting(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers[PRESENT] = Reply(b'{"message": "the engine does not answer"}', status=503)
    done = gpushare("run", "busybox", **ASK_ONCE)
    assert done.returncode == 125
    assert "the engine does not answer" in done.stderr
    assert standin.asked("Leases/Request") == []


def test_image_names_are_asked_for_as_they_are(gpushare: Gpushare, standin: StandIn) -> None:
    """A registry's port, a folder, a tag and a digest stay; anything else is quoted."""
    gpushare("run", "host:5000/a/b:tag@sha256:00", "x")
    gpushare("run", "a b?c", "x")
    targets = [call.target for call in standin.calls if call.target.startswith("/images")]
    assert targets == ["/images/host:5000/a/b:tag@sha256:00/json", "/images/a%20b%3Fc/json"]


def test_without_a_docker_command_it_says_what_to_install(gpushare: Gpushare, standin: StandIn) -> None:
    done = gpushare("run", "busybox", PATH="/nonexistent")
    assert done.returncode == 125
    assert "no docker command" in done.stderr
    assert "docker-cli" in done.stderr
    assert standin.calls == []


def test_a_way_around_the_lease_asks_nobody(gpushare: Gpushare, standin: StandIn) -> None:
    done = gpushare("run", "--gpus", "all", "busybox")
    assert done.returncode == 125
    assert "--gpu" in done.stderr.splitlines()[1]
    assert standin.calls == []


@pytest.mark.parametrize("words", [(), ("--result-file", "r.json")])
def test_words_that_docker_refuses_ask_for_no_lease(
    gpushare: Gpushare, standin: StandIn, docker_recorder: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Docker's own message and its exit code; neither a GPU nor a place in the queue was had for it."""
    (tmp_path / "refusal").write_text("125")
    done = gpushare("run", "--gpu", "0.25", *words, "--gpuu", "0.5", "busybox")
    assert (done.returncode, done.stderr) == (125, "docker: no\n")
    assert standin.asked("Leases/Request") == []
    assert words_of(docker_recorder, "run") == []


NO_SIZE = "gpushare: 1 whole GPU, because no size was named\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("busybox",), NO_SIZE),
        (("--isolation", "mig", "busybox"), "gpushare: 1 MIG instance, because no size was named\n"),
        (("--gpu", "1", "busybox"), ""),
        (("--gpu-memory", "8g", "busybox"), ""),
        (("--preset", "small", "busybox"), ""),
        (
            ("busybox", "--gpu=0.25", "true"),
            "gpushare: warning: --gpu stands after the image, so the container's program gets it; "
            "options of gpushare run stand before the image\n" + NO_SIZE,
        ),
        (("--gpu", "1", "busybox", "true", "--gpu", "0.25"), ""),
        (("--gpu", "1", "busybox", "--epochs", "3"), ""),
    ],
)
def test_a_whole_gpu_is_taken_only_with_a_word_about_it(
    gpushare: Gpushare, words: tuple[str, ...], said: str
) -> None:
    """Somebody who names no size, or names one where the container's program gets it, should know."""
    assert gpushare("run", *words).stderr == said


def test_privileged_runs_with_a_warning(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Policy/Explain"] = ok({"passes": True})
    done = gpushare("run", "--privileged", "busybox")
    assert done.returncode == 7
    assert done.stderr.startswith("gpushare: warning: --privileged")
    assert "warning" not in gpushare("run", "--privileged=false", "busybox").stderr


@pytest.mark.parametrize("command", ["run", "submit"])
def test_privileged_is_refused_before_anything_is_asked_for(
    gpushare: Gpushare, standin: StandIn, command: str
) -> None:
    finding = {"field": "HostConfig.Privileged", "verdict": "refused", "hint": "ask for --gpus 1"}
    standin.answers["Policy/Explain"] = ok({"findings": [finding]})
    refused = (
        "gpushare: you may not use --privileged on this node\n"
        "  hint: GPUs need no privileges here: leave it out\n"
    )
    done = gpushare(command, "--privileged", "busybox")
    assert (done.returncode, done.stderr) == (125, refused)
    assert (standin.asked("Leases/Request"), standin.asked("Jobs/Submit")) == ([], [])


@pytest.mark.parametrize("where", [["run", "--pool"], ["run", "--node", "b"], ["submit", "--span"]])
@pytest.mark.parametrize("option", NOT_IN_A_POOL)
def test_what_no_container_of_a_pool_gets_is_refused_before_anything_is_asked_for(
    gpushare: Gpushare, standin: StandIn, option: str, where: list[str]
) -> None:
    standin.answers["Node/Status"] = ok({"node": "a", "engine": {"api_version": "1.41"}})
    words = [f"--{option}"] if option in DOCKER_SWITCHES else [f"--{option}", "x"]
    done = gpushare(*where, *words, "busybox")
    assert done.returncode == 125
    assert f"--{option} is not allowed for a container of a pool" in done.stderr
    assert "warning" not in done.stderr
    assert all("Jobs/" not in call.target for call in standin.calls)


def test_privileged_on_this_node_by_its_name_is_as_on_this_node(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Node/Status"] = ok({"node": "a", "engine": {"api_version": "1.41"}})
    standin.answers["Policy/Explain"] = ok({"passes": True})
    standin.answers["Jobs/Reserve"] = refusal(400, "invalid_argument", "it came so far")
    done = gpushare("run", "--node", "a", "--privileged", "busybox")
    assert "warning: --privileged" in done.stderr
    assert "it came so far" in done.stderr


def test_docker_reads_the_words_of_a_run_that_waits_once(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = ok(RESERVED)
    standin.answers["Policy/Explain"] = ok({"passes": True})
    assert gpushare("run", "--future", "x", "busybox").returncode == 7
    (asked,) = standin.asked("Policy/Explain")
    assert base64.b64decode(asked["create_body"]) == b"{}", "what docker said when it read the words"
    assert words_of(docker_recorder, "create") == []


def test_a_detached_run_that_waits_names_what_else_there_is_once(
    gpushare: Gpushare, standin: StandIn
) -> None:
    nearer = {**QUEUED["waiting"], "position": 1}
    again = {**QUEUED, "token": "t2", "waiting": nearer}
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = [ok(again), ok(RESERVED)]
    attached = gpushare("run", "busybox").stderr
    standin.answers["Leases/Wait"] = [ok(again), ok(RESERVED)]
    detached = gpushare("run", "-d", "busybox").stderr
    assert (attached.count("gpushare submit"), detached.count("gpushare submit")) == (0, 1)
    assert detached.count("--max-wait") == 1
    standin.answers["Leases/Wait"] = [ok(RESERVED)]
    bounded = gpushare("run", "-d", "--max-wait", "1h", "busybox").stderr
    assert (bounded.count("gpushare submit"), bounded.count("--max-wait")) == (1, 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rm",), "conflicting options: --restart-on-fault and --rm"),
        (("--restart", "on-failure:3"), "conflicting options: --restart-on-fault and --restart"),
    ],
)
def test_restarts_on_a_fault_exclude_docker_s_own(
    gpushare: Gpushare, standin: StandIn, words: tuple[str, ...], says: str
) -> None:
    """Before anybody is asked; none at all excludes nothing."""
    done = gpushare("run", "--restart-on-fault", "3", *words, "busybox")
    assert done.returncode == 2
    assert says in done.stderr
    assert standin.calls == []
    gpushare("run", "--restart-on-fault", "0", *words, "busybox")
    gpushare("run", "--restart-on-fault=3", "--restart", "no", "busybox")
    assert [asked["restart_on_fault"] for asked in standin.asked("Leases/Request")] == [0, 3]


def test_run_sends_its_terms_of_placement_with_the_request(gpushare: Gpushare, standin: StandIn) -> None:
    words = ["--model", "h100, a100", "--near", "l-1", "--away-from", "l-2,l-3", "--cpus", "2", "-m", "8g"]
    gpushare("run", *words, "busybox")
    (asked,) = standin.asked("Leases/Request")
    assert (asked["models"], asked["near"], asked["away_from"]) == (["h100", "a100"], ["l-1"], ["l-2", "l-3"])
    assert (asked["host_cpu_milli"], asked["host_memory_bytes"]) == (2000, 8 * 1024**3)


@pytest.mark.parametrize("value", ["many", "-1", "1.5"])
def test_restarts_that_are_no_number_ask_nobody(gpushare: Gpushare, standin: StandIn, value: str) -> None:
    done = gpushare("run", "--restart-on-fault", value, "busybox")
    assert (done.returncode, standin.calls) == (2, [])
    assert "--restart-on-fault" in done.stderr


@pytest.mark.parametrize("value", ["soon", "-1m", "nan", "9" * 5000])
def test_a_wait_that_is_no_duration_asks_nobody(gpushare: Gpushare, standin: StandIn, value: str) -> None:
    done = gpushare("run", f"--max-wait={value}", "busybox")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    assert standin.calls == []


def test_what_the_daemon_refuses_is_said_and_nothing_runs(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers["Leases/Request"] = refusal(400, "failed_precondition", "too big", "ask for 0.5")
    done = gpushare("run", "--gpu", "64", "busybox")
    assert (done.returncode, done.stderr) == (125, "gpushare: too big\n  hint: ask for 0.5\n")
    assert words_of(docker_recorder, "run") == []


def test_a_docker_that_cannot_be_started_gives_the_lease_back(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "docker").write_text("#!/nonexistent/interpreter\n")
    done = gpushare("run", "busybox")
    assert done.returncode == 125
    assert "docker cannot be started" in done.stderr
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]


def test_a_simulated_gpu_is_called_so(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Request"] = ok({**RESERVED, "simulated": True})
    assert gpushare("run", "--gpu", "1", "busybox").stderr == "gpushare: l-7f3k is on a SIMULATED GPU\n"


# --- in the queue


def test_the_queue_is_shown_by_a_line_per_change(gpushare: Gpushare, standin: StandIn) -> None:
    """Where stderr is no terminal: the same state twice is said once."""
    second = {**QUEUED, "token": "t2", "waiting": {**QUEUED["waiting"], "position": 1}}
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = [ok(QUEUED), ok(second), ok(second), ok(RESERVED)]
    done = gpushare("run", "--gpu", "1", "busybox")
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    reason = "needs 24 GiB on one GPU; best is GPU 1 with 11 GiB free"
    assert lines[0] == f"gpushare: l-7f3k queued, position 3 of 5: {reason}"
    assert lines[1] == f"gpushare: l-7f3k queued, position 1 of 5: {reason}"
    assert lines[2].startswith("gpushare: l-7f3k granted: 0.25 on GPU 0 (H100), 20 GiB, after ")
    assert len(lines) == 3
    assert [body["token"] for body in standin.asked("Leases/Wait")] == ["t1", "t1", "t2", "t2"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_the_queue(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn, number: signal.Signals, code: int
) -> None:
    held = threading.Event()
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = Reply(hold=held)
    process = gpushare.start("run", "busybox")
    standin.wait_for("Leases/Wait")
    process.send_signal(number)
    _, complaint = process.communicate(timeout=60)
    held.set()
    assert process.returncode == code
    assert f"left the queue ({number.name})" in complaint
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]
    assert words_of(docker_recorder, "run") == []


def test_a_signal_amid_the_request_gives_back_what_may_have_been_granted(
    gpushare: Gpushare, standin: StandIn
) -> None:
    """The answer never came, so the same request is asked again to learn which lease it was."""
    held, first = threading.Event(), threading.Event()

    def answer(call: Call) -> Reply:
        if first.is_set():
            return ok(RESERVED)
        first.set()
        return Reply(hold=held)

    standin.answers["Leases/Request"] = answer
    process = gpushare.start("run", "busybox")
    standin.wait_for("Leases/Request")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    held.set()
    assert process.returncode == 130
    one, two = standin.asked("Leases/Request")
    assert one["request_id"] == two["request_id"]
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]


def test_a_signal_while_the_daemon_is_away_ends_the_attempts(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Request"] = HANG_UP
    process = gpushare.start("run", "--gpu", "1", "busybox")
    assert process.stderr is not None
    assert "trying again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_ctrl_c_ends_every_command_that_waits_with_its_own_code(gpushare: Gpushare, standin: StandIn) -> None:
    held = threading.Event()
    standin.answers["Leases/Get"] = Reply(hold=held)
    process = gpushare.start("wait", "l-7f3k")
    standin.wait_for("Leases/Get")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    held.set()
    assert (process.returncode, told.strip()) == (130, "")


def test_a_second_signal_does_not_wait_for_a_hanging_daemon(gpushare: Gpushare, standin: StandIn) -> None:
    held = threading.Event()
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = standin.answers["Leases/Release"] = Reply(hold=held)
    process = gpushare.start("run", "busybox")
    standin.wait_for("Leases/Wait")
    process.send_signal(signal.SIGINT)
    standin.wait_for("Leases/Release")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    held.set()
    assert process.returncode == -signal.SIGINT


def test_an_ignored_hang_up_stays_ignored(gpushare: Gpushare, standin: StandIn) -> None:
    """Nohup gpushare run ... goes on waiting when the terminal closes."""
    held = threading.Event()
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = [Reply(json.dumps(QUEUED).encode(), hold=held), ok(RESERVED)]
    process = gpushare.start("run", "busybox", before=["nohup"])
    standin.wait_for("Leases/Wait")
    process.send_signal(signal.SIGHUP)
    held.set()
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_max_wait_leaves_the_queue(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = ok(QUEUED)
    done = gpushare("run", "--max-wait", "1s", "busybox")
    assert done.returncode == 125
    assert "gave up after 1s in the queue (--max-wait)" in done.stderr
    assert "hint: why it waited: needs 24 GiB" in done.stderr
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]
    assert all(body["timeout_seconds"] <= 1 for body in standin.asked("Leases/Wait"))


def test_without_any_wait_the_request_is_granted_at_once_or_not_at_all(
    gpushare: Gpushare, standin: StandIn
) -> None:
    standin.answers["Leases/Request"] = ok(QUEUED)
    done = gpushare("run", "--max-wait", "0s", "busybox")
    assert done.returncode == 125
    assert "gave up after 0s in the queue (--max-wait)" in done.stderr
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]
    assert standin.asked("Leases/Wait") == []


def test_a_restarted_daemon_is_waited_for(gpushare: Gpushare, standin: StandIn) -> None:
    """The journal keeps the place in the queue, so that the same lease is waited for."""
    held = threading.Event()
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = Reply(hold=held)
    process = gpushare.start("run", "--gpu", "1", "busybox")
    standin.wait_for("Leases/Wait")
    standin.go_away()
    held.set()
    assert process.stderr is not None
    output = process.stderr.readline() + process.stderr.readline()
    assert "the daemon is away; trying again for 30 s" in output
    standin.answers["Leases/Wait"] = ok(RESERVED)
    standin.listen()
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert len(standin.asked("Leases/Request")) == 1
    assert {asked["lease_id"] for asked in standin.asked("Leases/Wait")} == {"l-7f3k"}


def test_an_answer_that_was_lost_is_asked_for_again(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Request"] = [HANG_UP, ok(RESERVED)]
    assert gpushare("run", "busybox").returncode == 7
    one, two = standin.asked("Leases/Request")
    assert one["request_id"] == two["request_id"]


def test_a_lease_that_somebody_ends_in_the_queue_runs_nothing(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers["Leases/Request"] = ok(QUEUED)
    standin.answers["Leases/Wait"] = ok(
        lease(state="ended", outcome={"kind": "stopped", "text": "stopped by root"})
    )
    done = gpushare("run", "busybox")
    assert done.returncode == 125
    assert "ended before it was used: stopped by root" in done.stderr
    assert words_of(docker_recorder, "run") == []


# --- with a result file


def result_of(path: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads(path.read_text())
    assert [other.name for other in path.parent.iterdir() if other.name.startswith(f".{path.name}")] == []
    return result


def test_the_result_file_tells_lease_outcome_and_exit_code(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    standin.answers["Leases/Get"] = ok(lease(state="draining"))
    standin.answers["Leases/Wait"] = ok(
        lease(state="ended", outcome={"kind": "finished", "exit_code": 7, "text": "exit code 7"})
    )
    path = tmp_path / "result.json"
    assert gpushare("run", "--result-file", str(path), "busybox").returncode == 7
    assert result_of(path) == {
        "lease": "l-7f3k",
        "outcome": "finished",
        "exit_code": 7,
        "reason": "exit code 7",
    }


def test_a_refusal_is_in_the_result_file(gpushare: Gpushare, standin: StandIn, tmp_path: Path) -> None:
    standin.answers["Leases/Request"] = refusal(429, "resource_exhausted", "no room now")
    path = tmp_path / "result.json"
    assert gpushare("run", "--immediate", "--result-file", str(path), "busybox").returncode == 125
    assert result_of(path) == {"lease": "", "outcome": "refused", "exit_code": 125, "reason": "no room now"}


def test_a_docker_that_made_no_container_gives_the_lease_back(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    standin.answers["Leases/Get"] = ok(RESERVED)
    path = tmp_path / "result.json"
    gpushare("run", "--result-file", str(path), "busybox")
    assert result_of(path)["outcome"] == "failed"
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]


def test_a_detached_container_is_running(gpushare: Gpushare, standin: StandIn, tmp_path: Path) -> None:
    standin.answers["Leases/Get"] = ok(lease())
    path = tmp_path / "result.json"
    gpushare("run", "-d", "--result-file", str(path), "busybox")
    assert result_of(path)["outcome"] == "running"


def test_max_wait_and_cancelling_are_in_the_result_file(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    standin.answers["Leases/Request"] = standin.answers["Leases/Wait"] = ok(QUEUED)
    path = tmp_path / "result.json"
    gpushare("run", "--max-wait", "1s", "--result-file", str(path), "busybox")
    assert result_of(path)["outcome"] == "max_wait"
    held = threading.Event()
    standin.answers["Leases/Wait"] = Reply(hold=held)
    before = len(standin.asked("Leases/Wait"))
    process = gpushare.start("run", "--result-file", str(path), "busybox")
    standin.wait_for("Leases/Wait", before + 1)
    process.terminate()
    process.communicate(timeout=60)
    held.set()
    assert process.returncode == 143
    assert result_of(path)["outcome"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_parent_passes_signals_on_and_returns_what_docker_returns(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path, number: signal.Signals
) -> None:
    standin.answers["Leases/Get"] = ok(lease(state="ended", outcome={"kind": "finished"}))
    up = tmp_path / "up"
    os.mkfifo(up)
    name = number.name.removeprefix("SIG")
    (tmp_path / "script").write_text(f'trap "exit 9" {name}\necho > {up}\nwhile :; do sleep 0.05; done\n')
    process = gpushare.start("run", "--result-file", "r.json", "busybox")
    up.read_text()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert result_of(tmp_path / "r.json")["exit_code"] == 9


def test_a_docker_killed_by_a_signal_is_128_and_its_number(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    standin.answers["Leases/Get"] = ok(lease(state="ended", outcome={"kind": "failed"}))
    (tmp_path / "script").write_text("kill -KILL $$\n")
    assert gpushare("run", "--result-file", "r.json", "busybox").returncode == 137


def test_a_result_file_that_cannot_be_written_asks_nobody(gpushare: Gpushare, standin: StandIn) -> None:
    done = gpushare("run", "--result-file", "/nonexistent/r.json", "busybox")
    assert done.returncode == 125
    assert "cannot be written" in done.stderr
    assert standin.calls == []


# --- logs


def test_logs_becomes_docker_logs_of_the_lease_s_container(
    gpushare: Gpushare, docker_recorder: Path, standin: StandIn
) -> None:
    standin.answers["Leases/Get"] = ok(lease(container_id="abc123"))
    done = gpushare("logs", "-f", "--tail", "5", "trainer")
    assert done.returncode == 7
    assert words_of(docker_recorder, "logs") == ["logs", "--follow", "--tail=5", "abc123"]
    assert standin.asked("Leases/Get") == [{"lease_id": "trainer"}, {"lease_id": "l-7f3k"}]


def test_logs_of_a_lease_without_a_container_say_so(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/Get"] = ok(QUEUED)
    done = gpushare("logs", "l-7f3k")
    assert done.returncode == 125
    assert "gpushare why l-7f3k" in done.stderr
