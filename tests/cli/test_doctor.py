"""``gpushare doctor`` as a process: what it shows, its exit code, and the bundle it writes."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushared.cli.caller_checks import CallerFacts, DockerCli, docker_group
from gpushared.domain.model.checkup import Status
from gpushared.domain.model.errors import DaemonUnavailable
from tests.cli.answers import QUEUED
from tests.cli.process import GPUSHARE, Gpushare
from tests.cli.standin import Reply, StandIn, ok, refusal

FINE = {"name": "docker", "status": "ok", "detail": "Docker 29"}
WARNED = {"name": "docker-cdi", "status": "warning", "detail": "CDI is off", "fix": "switch it on"}
FAILED = {"name": "driver", "status": "failed", "detail": "it is not loaded", "fix": "modprobe nvidia"}
BLOCKED = {"name": "mig-mode", "status": "skipped", "detail": "because of driver", "blocked_by": "driver"}
SETTINGS = [
    {"section": "node", "name": "state_dir", "value": '"/var/lib/gpushared"'},
    {"section": "pool", "name": "join_token", "value": '"hunter2"'},
    {"section": "pool", "name": "url", "value": '"https://eve:hunter2@pool.example/x"'},
]


@pytest.fixture(autouse=True)
def a_docker(docker_recorder: Path, tmp_path: Path) -> None:
    """A program in docker's place that says its version, so that machines without docker pass too."""
    (tmp_path / "script").write_text('echo "Docker version 28.2.2, build e6534b4"; exit 0\n')


def serve(standin: StandIn, *checks: dict[str, str], **fields: Any) -> None:
    standin.answers["Node/Status"] = ok({"version": "0.1.0", "node": "dgx"})
    standin.answers["Node/Doctor"] = ok({"checks": list(checks), **fields})


def items(text: str) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in json.loads(text)["items"]}


def test_both_sides_are_one_table(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin, FINE, WARNED)
    done = gpushare("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["STATUS", "CHECK", "DETAIL", "FIX"]
    names = [line.split()[1] for line in lines[1:]]
    assert names.index("docker-cli") < names.index("docker") < names.index("docker-cdi")
    assert re.split(r"  +", lines[-1]) == ["warning", "docker-cdi", "CDI is off", "switch it on"]


def test_a_failure_is_exit_code_1_and_what_follows_from_it_is_shown_on_request(
    gpushare: Gpushare, standin: StandIn
) -> None:
    serve(standin, FAILED, BLOCKED)
    done = gpushare("doctor")
    assert done.returncode == 1
    assert "modprobe nvidia" in done.stdout
    assert "mig-mode" not in done.stdout
    assert "mig-mode" in gpushare("doctor", "--all").stdout
    assert "driver" in gpushare("doctor", "-a", "-o", "columns=blocked-by").stdout


def test_json_has_the_envelope_of_all_listings(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin, FAILED, BLOCKED, simulated=True)
    done = gpushare("doctor", "--json")
    assert done.stdout == gpushare("doctor", "-o", "json").stdout
    data = json.loads(done.stdout)
    assert (data["schema"], data["simulated"]) == ("gpushare.doctor/1", True)
    assert (data["well"], data["missing"]) == (False, None)
    assert items(done.stdout)["driver"] == {**FAILED, "blocked_by": None}
    assert "mig-mode" not in items(done.stdout)
    assert "mig-mode" in items(gpushare("doctor", "--json", "--all").stdout)


def test_without_a_daemon_this_side_is_checked_and_the_rest_is_said_to_be_missing(
    gpushare: Gpushare, standin: StandIn
) -> None:
    standin.go_away()
    done = gpushare("doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert sum(line.startswith("failed") for line in lines) == 1
    assert lines[-1].startswith("the daemon's checks are missing: no gpushared daemon answers")
    found = items(gpushare("doctor", "--json").stdout)
    assert found["docker-cli"]["status"] == "ok"
    assert "config-files" in found
    assert "daemon-version" not in found


def test_a_daemon_that_knows_no_doctor_is_a_failure_that_names_it(
    gpushare: Gpushare, standin: StandIn
) -> None:
    serve(standin)
    standin.answers["Node/Doctor"] = refusal(404, "unimplemented", "there is no call Node/Doctor")
    found = items(gpushare("doctor", "--json").stdout)
    assert found["daemon"]["status"] == "ok"
    assert found["daemon-checks"]["status"] == "failed"
    assert "there is no call" in found["daemon-checks"]["detail"]


def test_a_host_that_is_none_is_the_one_failure(gpushare: Gpushare) -> None:
    done = gpushare("doctor", "--json", GPUSHARE_HOST="tcp://example:1")
    assert done.returncode == 1
    failures = [name for name, item in items(done.stdout).items() if item["status"] == "failed"]
    assert failures == ["gpushare-host"]


def test_another_version_of_the_daemon_is_a_warning(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin)
    standin.answers["Node/Status"] = ok({"version": "0.0.9", "node": "dgx"})
    found = items(gpushare("doctor", "--json").stdout)["daemon-version"]
    assert (found["status"], "0.0.9" in found["detail"]) == ("warning", True)


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ('echo "Docker version 19.03.15, build 99e3ed8"', "warning", "older than 20.10"),
        ('echo "podman version 5.4.2"', "warning", "does not say that it is docker"),
        ("exit 3", "warning", "does not say that it is docker"),
    ],
)
def test_the_docker_command_is_looked_at(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path, script: str, status: str, says: str
) -> None:
    serve(standin)
    (tmp_path / "script").write_text(f"{script}\nexit 0\n")
    found = items(gpushare("doctor", "--json").stdout)["docker-cli"]
    assert found["status"] == status
    assert says in found["detail"]


def test_no_docker_command_is_a_failure(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin)
    done = gpushare("doctor", "--json", PATH="/nonexistent")
    assert items(done.stdout)["docker-cli"]["status"] == "failed"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("environ", "status", "says"),
    [
        ({}, "ok", "plain docker goes to the engine"),
        ({"DOCKER_HOST": "OURS"}, "ok", "go through gpushared"),
        ({"DOCKER_HOST": "OURS", "DOCKER_CONTEXT": "other"}, "ok", "go through gpushared"),
        ({"DOCKER_HOST": "OURS", "DOCKER_TLS_VERIFY": "1"}, "warning", "DOCKER_TLS_VERIFY"),
        ({"DOCKER_HOST": "ssh://eve:pw@far"}, "warning", "DOCKER_HOST=ssh://far"),
        ({"DOCKER_CONTEXT": "default"}, "ok", "plain docker goes to the engine"),
        ({"DOCKER_CONTEXT": "far"}, "warning", "DOCKER_CONTEXT=far"),
    ],
)
def test_where_plain_docker_goes_is_told(
    gpushare: Gpushare, standin: StandIn, environ: dict[str, str], status: str, says: str
) -> None:
    serve(standin)
    set_ = {name: standin.host if value == "OURS" else value for name, value in environ.items()}
    found = items(gpushare("doctor", "--json", **set_).stdout)["docker-environment"]
    assert found["status"] == status
    assert says in found["detail"]


@pytest.mark.parametrize(
    ("uid", "groups", "status"),
    [
        (1000, ("users",), Status.OK),
        (1000, ("users", "docker"), Status.WARNING),
        (0, ("root", "docker"), Status.OK),
    ],
)
def test_a_member_of_the_docker_group_is_warned(uid: int, groups: tuple[str, ...], status: Status) -> None:
    away = DaemonUnavailable("away")
    facts = CallerFacts("/s", away, away, DockerCli("/docker"), uid=uid, groups=groups)
    assert docker_group(facts).status is status


# --- the bundle ------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(gpushare: Gpushare, standin: StandIn) -> dict[str, Any]:
    serve(standin, FAILED, BLOCKED, settings=SETTINGS)
    standin.answers["Gpus/List"] = ok({"gpus": [{"uuid": "GPU-a"}]})
    standin.answers["Leases/List"] = ok(
        {"leases": [{**QUEUED, "image": "https://eve:hunter2@reg.example/i"}]}
    )
    standin.answers["Leases/Explain"] = ok({"lease": QUEUED, "story": [{"at": 1.0, "text": "asked for"}]})
    done = gpushare("doctor", "--report", "out.json", DOCKER_HOST="tcp://eve:hunter2@far:2376")
    assert done.returncode == 1
    assert "wrote out.json" in done.stderr
    found: dict[str, Any] = json.loads((gpushare.folder / "out.json").read_text())
    return found


def test_the_bundle_has_what_a_helper_needs(bundle: dict[str, Any]) -> None:
    assert bundle["schema"] == "gpushare.report/1"
    assert bundle["versions"]["gpushared"] == "0.1.0"
    assert bundle["versions"]["docker_cli"].startswith("Docker version 28")
    assert {"driver", "mig-mode", "docker-cli"} <= {check["name"] for check in bundle["checks"]}
    assert bundle["gpus"][0]["uuid"] == "GPU-a"
    assert bundle["leases"][0]["story"][0]["text"] == "asked for"
    assert bundle["settings"][0] == {**SETTINGS[0]}
    assert bundle["problems"] == []


def test_the_bundle_has_no_secrets(bundle: dict[str, Any]) -> None:
    text = json.dumps(bundle)
    assert "hunter2" not in text
    assert bundle["settings"][1]["value"] == "(left out)"
    assert bundle["environment"]["DOCKER_HOST"] == "tcp://far:2376"


def test_only_its_owner_may_read_the_bundle(bundle: dict[str, Any], gpushare: Gpushare) -> None:
    assert stat.S_IMODE((gpushare.folder / "out.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("make", ["file", "link"])
def test_nothing_is_written_over(gpushare: Gpushare, standin: StandIn, make: str) -> None:
    path = gpushare.folder / "out.json"
    if make == "file":
        path.write_text("mine")
    else:
        path.symlink_to(gpushare.folder / "nowhere")
    serve(standin)
    done = gpushare("doctor", "--report", "out.json")
    assert done.returncode == 2
    assert "out.json exists" in done.stderr
    assert standin.calls == []
    assert path.is_symlink() or path.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin)
    done = gpushare("doctor", "--report", "nowhere/out.json")
    assert done.returncode == 2
    assert "nowhere/out.json cannot be written" in done.stderr


def test_a_bundle_without_a_daemon_says_what_is_missing(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    gpushare("doctor", "--report", "out.json")
    found = json.loads((gpushare.folder / "out.json").read_text())
    assert found["problems"] == ["the daemon did not answer: its part is missing"]
    assert (found["node"], found["gpus"], found["leases"]) == (None, [], [])


def test_what_the_daemon_does_not_tell_is_named_in_the_bundle(gpushare: Gpushare, standin: StandIn) -> None:
    serve(standin, FINE)
    standin.answers["Gpus/List"] = refusal(503, "unavailable", "the GPUs hang")
    standin.answers["Leases/List"] = Reply(hang_up=True)
    gpushare("doctor", "--report", "out.json")
    problems = json.loads((gpushare.folder / "out.json").read_text())["problems"]
    assert "the daemon tells its settings to trusted callers only" in problems
    assert "the GPUs hang" in problems
    assert any("connection" in problem for problem in problems)


# --- on a terminal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [100, 80, 60])
def test_sentences_wrap_inside_their_columns_where_there_is_room(
    gpushare: Gpushare, standin: StandIn, columns: int
) -> None:
    long = {**WARNED, "detail": "word " * 30, "fix": "`do this and that`"}
    longest_name = {**FINE, "name": "docker-default-runtime"}
    serve(standin, long, longest_name)
    leader, follower = os.openpty()
    gpushare.environ |= {"COLUMNS": str(columns), "NO_COLOR": "1"}
    with subprocess.Popen([*GPUSHARE, "doctor"], env=gpushare.environ, stdout=follower) as process:
        os.close(follower)
        text = b""
        while True:
            try:
                text += os.read(leader, 65536)
            except OSError:  # how a terminal says that nobody writes any more
                break
        os.close(leader)
        assert process.wait(60) == 0
    lines = text.decode().splitlines()
    shown = [line for line in lines if "word" in line]
    if columns == 60:
        assert len(shown) == 1
    else:
        assert len(shown) > 1
        assert max(map(len, lines)) <= columns
    assert "-" not in "".join(shown[1:])
