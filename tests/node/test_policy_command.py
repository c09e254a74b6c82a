"""``gpushare policy`` against a real daemon and a real engine: what it says is what then happens."""

from __future__ import annotations

import json
import pwd
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused
from tests.node.grpc_client import ask

ALICE = pwd.getpwnam("games").pw_uid
BOB = pwd.getpwnam("mail").pw_uid
"""Users of every system whom nobody trusts."""


def options_of(daemon: DaemonProcess, *words: str) -> list[str]:
    """Of a container with no network, unless the words name one."""
    options = daemon.container_options(*words)
    assert options[:2] == ["--network", "none"]
    return options[2:] if "--network" in words else options


def explained(daemon: DaemonProcess, *words: str) -> tuple[int, dict[str, Json]]:
    """The exit code and the findings by field."""
    options = options_of(daemon, *words)
    done = daemon.gpushare("policy", "explain", "--as", str(ALICE), "-o", "json", "--", *options)
    (item,) = json.loads(done.stdout)["items"]
    return done.returncode, {one["field"]: one for one in item["findings"]}


RUNS: list[tuple[list[str], str, str]] = [
    (["--shm-size", "64m"], "HostConfig.ShmSize", "allowed"),
    (["--ipc", "host"], "HostConfig.IpcMode", "refused"),
    (["--user", "root"], "User", "refused"),
    (["--privileged"], "HostConfig.Privileged", "refused"),
    (["--network", "host"], "HostConfig.NetworkMode", "refused"),
    (["--network", "somebody-elses"], "HostConfig.NetworkMode", "refused"),
    (["-v", "/etc:/x"], "HostConfig.Mounts", "refused"),
    (["--cap-drop", "ALL"], "HostConfig.CapDrop", "allowed"),
    (["--pids-limit", "99999"], "HostConfig.PidsLimit", "set"),
]


@pytest.mark.parametrize(("words", "field", "verdict"), RUNS)
def test_what_is_explained_is_what_a_create_does(
    daemon: DaemonProcess, words: list[str], field: str, verdict: str
) -> None:
    code, findings = explained(daemon, *words)
    assert findings[field]["verdict"] == verdict, findings
    created = daemon.docker("create", *options_of(daemon, *words), uid=ALICE)
    assert (created.returncode == 0) is (code == 0), created.stderr
    if verdict == "refused":
        assert code == 1
        assert findings[field]["why"] in created.stderr
        assert (findings[field]["hint"] or "") in created.stderr


def test_a_gpu_is_explained_as_its_lease_and_none_is_held(daemon: DaemonProcess) -> None:
    code, findings = explained(daemon, "--gpus", "1")
    assert code == 0
    assert findings["HostConfig.DeviceRequests"]["given"] == '{"gpu": "1"}'
    assert daemon.leases() == {}


def test_people_read_lines_with_the_option_the_reason_and_what_to_do(daemon: DaemonProcess) -> None:
    words = daemon.container_options("--ipc", "host", "--init")
    done = daemon.gpushare("policy", "explain", "--as", "nobody", *words)
    assert done.returncode == 1, done.stderr
    assert "refused   --ipc" in done.stdout
    assert "--shm-size 8g gives more shared memory" in done.stdout
    assert "allowed   --init" in done.stdout
    assert "It would be refused, by the policy lab: 1 of the above." in done.stdout


def test_a_trusted_caller_is_told_that_nothing_is_judged(daemon: DaemonProcess) -> None:
    done = daemon.gpushare("policy", "explain", "--", *daemon.container_options("--privileged"))
    assert done.returncode == 0
    assert "You are trusted here" in done.stdout


def explain(daemon: DaemonProcess, body: dict[str, Any], *, uid: int = ALICE, version: str = "") -> Json:
    raw = b64encode(json.dumps(body).encode()).decode()
    return daemon.call("Policy/Explain", {"create_body": raw, "api_version": version}, uid=uid)


def test_a_caller_who_is_not_trusted_is_judged_without_asking_for_it(daemon: DaemonProcess) -> None:
    explanation = explain(daemon, {"Image": "x", "HostConfig": {"Privileged": True}})
    assert (explanation["judged"], explanation["passes"]) == (True, False)
    trusted = explain(daemon, {"Image": "x", "HostConfig": {"Privileged": True}}, uid=0)
    assert (trusted["judged"], trusted["passes"]) == (False, True)


def test_a_field_that_the_engine_does_not_read_is_dropped_for_the_trusted_too(daemon: DaemonProcess) -> None:
    for uid in (0, ALICE):
        findings = explain(daemon, {"Image": "x", "HostConfig": {"Brand": 1}}, uid=uid)["findings"]
        (finding,) = [one for one in findings if one["field"] == "HostConfig.Brand"]
        assert (finding["verdict"], finding["why"]) == ("dropped", "the engine does not read it")


def test_programs_are_told_the_same_over_grpc(daemon: DaemonProcess) -> None:
    """Verdicts, rules, errors and hints; no body may be longer than a call in JSON can be."""
    privileged = b64encode(b'{"Image": "x", "HostConfig": {"Privileged": true, "Init": true}}').decode()
    calls: list[tuple[str, Json]] = [
        ("Policy/Show", {}),
        ("Policy/Explain", {"create_body": privileged}),
        ("Policy/Explain", {"create_body": privileged, "api_version": "1.41"}),
        ("Policy/Explain", {"create_body": privileged, "api_version": "new"}),
        ("Policy/Explain", {"create_body": privileged, "user": "root"}),
        ("Policy/Explain", {"create_body": b64encode(b" " * (190 * 1024 - 2) + b"{}").decode()}),
    ]
    for uid in (0, ALICE):
        for call, by_grpc in zip(calls, ask(daemon.socket, calls, uid=uid), strict=True):
            assert by_grpc == answered(daemon, *call, uid=uid), call
    longer = {"create_body": b64encode(b" " * 190 * 1024 + b"{}").decode()}
    (refused,) = ask(daemon.socket, [("Policy/Explain", longer)])
    assert (refused["code"], "longer than" in refused["message"]) == ("invalid_argument", True)


def answered(daemon: DaemonProcess, call: str, message: Json, *, uid: int) -> Json:
    """By JSON, with an error as gRPC's clients of these tests tell it."""
    try:
        return daemon.call(call, message, uid=uid)
    except Refused as refused:
        return {"code": refused.code, "message": refused.message, "hint": refused.hint}


def test_who_is_not_trusted_asks_for_nobody_else(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused) as refused:
        daemon.call("Policy/Explain", {"create_body": "e30=", "user": "root"}, uid=ALICE)
    assert refused.value.code == "permission_denied"
    with pytest.raises(Refused) as refused:
        daemon.call("Policy/Explain", {"create_body": "e30=", "user": "no-such-user"})
    assert refused.value.code == "not_found"


def test_a_version_that_makes_no_sense_is_refused_with_a_hint(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused) as refused:
        explain(daemon, {}, version="new")
    assert (refused.value.code, refused.value.hint) == ("invalid_argument", "write it like 1.41")


CONFIG = """
[gate]
preset = "strict"
everybody_confined = true
containers_per_user = 1
memory_limit = "64MiB"
"""


@pytest.fixture
def strict(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    daemon = new_daemon(engine=docker_engine, config=CONFIG)
    daemon.start()
    return daemon


def test_the_rules_say_where_they_come_from(strict: DaemonProcess) -> None:
    lines = strict.gpushare_says("policy", "show").splitlines()
    rules = {line.split()[0]: line for line in lines}
    assert rules["preset"].split() == ["preset", "configuration", '"strict"']
    assert rules["memory_limit"].split() == ["memory_limit", "configuration", '"64MiB"']
    assert "preset strict" in rules["networks"]
    assert '"own", "none"' in rules["networks"]
    assert rules["host_network"].split() == ["host_network", "default", '"never"']


def test_everybody_is_judged_and_bounded_where_the_site_says_so(strict: DaemonProcess) -> None:
    """Root too; and the second container of a user who may have one is refused."""
    refused = strict.docker("create", *strict.container_options("--privileged"))
    assert refused.returncode == 1
    assert "GPUs need no privileges here" in refused.stderr
    options = strict.container_options()
    made = strict.docker("create", *options, uid=ALICE)
    assert made.returncode == 0, made.stderr
    memory = strict.check("inspect", "-f", "{{.HostConfig.Memory}}", made.stdout.strip())
    assert memory.strip() == str(64 << 20)
    second = strict.docker("create", *options, uid=ALICE)
    assert "you have the one container that a user may have here" in second.stderr
    strict.check("rm", made.stdout.strip(), uid=ALICE)
    again = strict.docker("create", *options, uid=ALICE)
    assert again.returncode == 0, again.stderr


@pytest.fixture
def friends(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    daemon = new_daemon(engine=docker_engine, config='[gate]\npreset = "open"\n')
    daemon.start()
    return daemon


def test_root_inside_owns_its_files_and_nothing_of_the_machine(friends: DaemonProcess) -> None:
    """Its owner finds it again by the gate's mark, and nobody else does."""
    container = friends.run_container("--user", "root", uid=ALICE)
    done = friends.check(
        "exec", container, "sh", "-c", "touch /x && chown 5:5 /x && stat -c %u /x", uid=ALICE
    )
    assert done.strip() == "5"
    status = friends.check("exec", container, "cat", "/proc/self/status", uid=ALICE)
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert fields["Uid"].split() == ["0"] * 4
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    of_packages = {0, 1, 3, 4, 5, 6, 7, 10}  # linux/capability.h: CHOWN ... NET_BIND_SERVICE
    assert int(fields["CapBnd"], 16) == sum(1 << number for number in of_packages)
    assert friends.docker("exec", container, "id", uid=BOB).returncode == 1
    with_files = friends.docker(
        "create", *friends.container_options("--user", "root", "-v", "/tmp:/x:ro"), uid=ALICE
    )
    assert "would give what is the machine's" in with_files.stderr
    with_gpu = friends.docker(
        "create", *friends.container_options("--user", "root", "--gpus", "1"), uid=ALICE
    )
    assert "no container that is root inside has a GPU" in with_gpu.stderr


# --- before anybody waits ------------------------------------------------------------------------------

FORBIDDEN = [["--network", "host"], ["--user", "0"], ["--ipc", "host"]]


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.parametrize("words", FORBIDDEN, ids=lambda words: words[0])
def test_what_the_policy_forbids_is_refused_before_anybody_waits(
    daemon: DaemonProcess, command: str, words: list[str]
) -> None:
    daemon.request("2")
    options = options_of(daemon, *words)
    _, findings = explained(daemon, *words)
    (refused,) = [one for one in findings.values() if one["verdict"] == "refused"]
    done = daemon.gpushare(command, "--gpu", "1", *options, uid=ALICE)
    assert done.returncode == 125
    assert f"gpushare: {refused['why']}\n" in done.stderr
    assert len(daemon.leases()) == 1
    assert daemon.call("Jobs/List", {})["jobs"] == []


def test_an_explanation_writes_no_file(daemon: DaemonProcess, tmp_path: Path) -> None:
    written = tmp_path / "cid"
    options = options_of(daemon, "--cidfile", str(written))
    done = daemon.gpushare("policy", "explain", "--", *options)
    assert (done.returncode, written.exists()) == (0, False), done.stderr


def test_what_only_this_moment_forbids_is_said_before_the_wait(daemon: DaemonProcess) -> None:
    taken = daemon.docker("create", *options_of(daemon, "--name", "taken-by-her"), uid=ALICE)
    assert taken.returncode == 0, taken.stderr
    daemon.request("2")
    words = options_of(daemon, "--name", "taken-by-her", "-v", "/nowhere-at-all:/x")
    done = daemon.gpushare("run", "--gpu", "1", "--max-wait", "1s", *words, uid=ALICE)
    assert "as things are now, docker will refuse the container: /nowhere-at-all cannot be" in done.stderr
    assert "a container named taken-by-her is there" in done.stderr
    assert "gave up after 1s in the queue" in done.stderr
    words = options_of(daemon, "-v", "/nowhere-at-all:/x")
    queued = daemon.gpushare("submit", "--gpu", "1", *words, uid=ALICE)
    assert (queued.returncode, "/nowhere-at-all cannot be" in queued.stderr) == (0, True), queued.stderr
