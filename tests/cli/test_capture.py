"""What the docker CLI would send, read off docker CLIs old and new."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushared.cli.capture import capture, read_run
from gpushared.cli.docker_args import are_plain, split
from gpushared.domain.model.errors import RequestError
from tests.bed import parts

CLIS = {
    "the machine's own": Path(shutil.which("docker") or "/nonexistent"),
    "20.10": Path("/usr/bin/docker"),
    "newest": parts.DOCKER,
}


@pytest.fixture(params=CLIS)
def program(request: pytest.FixtureRequest) -> str:
    path = CLIS[request.param]
    if not os.access(path, os.X_OK):
        parts.absent("cli", f"there is no {path}")
    return str(path)


@dataclass(frozen=True)
class Case:
    """Words of `docker create`, and what must be in what docker sends."""

    words: list[str]
    body: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    platform: str = ""


CASES = {
    "image and command": Case(
        ["busybox", "echo", "a b", "--rm"], {"Image": "busybox", "Cmd": ["echo", "a b", "--rm"]}
    ),
    "a name and a platform": Case(
        ["--name", "trainer", "--platform", "linux/amd64", "busybox"],
        {},
        name="trainer",
        platform="linux/amd64",
    ),
    "variables, and those of a file": Case(
        ["-e", "FROM_HERE", "--env-file", "some.env", "busybox"],
        {"Env": ["B=two words", "C=3", "FROM_HERE=yes"]},
    ),
    "mounts": Case(
        ["-v", "/data:/data:ro", "--mount", "type=tmpfs,target=/x", "busybox"],
        {},
        {"Binds": ["/data:/data:ro"], "Mounts": [{"Type": "tmpfs", "Target": "/x"}]},
    ),
    "limits": Case(
        ["-m", "1g", "--cpus", "1.5", "--ulimit", "nofile=10:20", "busybox"],
        {},
        {
            "Memory": 1 << 30,
            "NanoCpus": 1_500_000_000,
            "Ulimits": [{"Name": "nofile", "Soft": 10, "Hard": 20}],
        },
    ),
    "a pull that the node is to do": Case(["--pull", "always", "busybox"], {"Image": "busybox"}),
    "removal": Case(["--rm", "busybox"], {}, {"AutoRemove": True}),
    "a terminal": Case(["-it", "busybox"], {"Tty": True, "OpenStdin": True}),
    "an image by digest": Case(
        ["registry.example:5000/a/b@sha256:" + "0" * 64],
        {"Image": "registry.example:5000/a/b@sha256:" + "0" * 64},
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROM_HERE", "yes")
    (tmp_path / "some.env").write_text("# a comment\nB=two words\nC=3\n")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_docker_would_send_is_kept(program: str, case: Case) -> None:
    captured = capture(program, case.words, "1.41")
    body = json.loads(captured.body)
    assert {name: body[name] for name in case.body} == case.body
    assert {name: body["HostConfig"][name] for name in case.host} == case.host
    assert (captured.name, captured.platform) == (case.name, case.platform)


def test_relative_paths_are_made_absolute_by_the_docker_cli_itself(tmp_path: Path) -> None:
    """Since 23.0; an older one sends them as they are, and the engine refuses them."""
    new = CLIS["newest"]
    if not new.exists():
        parts.absent("cli", f"there is no {new}")
    captured = capture(str(new), ["-v", "./data:/data", "busybox"], "1.41")
    assert json.loads(captured.body)["HostConfig"]["Binds"] == [f"{tmp_path}/data:/data"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--no-such-option", "busybox"], "unknown flag"),
        (["--env-file", "gone.env", "busybox"], "gone.env"),
        (["--memory", "much", "busybox"], "much"),
    ],
)
def test_what_docker_refuses_is_refused_in_its_own_words(
    program: str, words: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RequestError, match="docker does not take these words"):
        capture(program, words, "1.41")
    assert complaint in capfd.readouterr().err


def test_settings_of_the_user_for_other_engines_do_not_reach_docker(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOCKER_CONTEXT and TLS would lead it to another engine, where it would really create the container."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    assert json.loads(capture(program, ["busybox"], "1.41").body)["Image"] == "busybox"


def test_docker_speaks_the_api_that_the_node_s_engine_speaks() -> None:
    """A body of a newer API could name what the engine ignores: a CLI speaks no newer one than it is told."""
    new = CLIS["newest"]
    if not new.exists():
        parts.absent("cli", f"there is no {new}")
    words = ["--network", "none", "--annotation", "a=b", "busybox"]
    assert "Annotations" in json.loads(capture(str(new), words, "1.43").body)["HostConfig"]
    with pytest.raises(RequestError):
        capture(str(new), words, "1.42")


def test_nothing_is_left_behind(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    capture(program, ["busybox"], "1.41")
    assert refused(program, ["--cidfile", str(place / "cid"), "busybox"]) == 0
    assert list(place.iterdir()) == []


MEANT = {"--gpuu": "did you mean --gpu?", "--tiem": "did you mean --time?", "--no-such-option": ""}


@pytest.mark.parametrize("typed", MEANT)
def test_an_option_that_is_nearly_one_of_ours_is_guessed(
    program: str, typed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """After docker's own message, which knows nothing of our options."""
    assert refused(program, [typed, "1", "busybox"]) == 125
    output = capfd.readouterr().err
    assert output.endswith(f"gpushare: {MEANT[typed]}\n") is bool(MEANT[typed])
    assert ("did you mean" in output) is bool(MEANT[typed])
    with pytest.raises(RequestError) as submitted:
        capture(program, [typed, "1", "busybox"], "1.41")
    assert (submitted.value.hint == MEANT[typed]) is bool(MEANT[typed])


# --- docker run, which refuses more than docker create


def refused(program: str, words: list[str]) -> int:
    return read_run(program, split(words), lambda: "1.41").refusal


@pytest.fixture
def no_terminal() -> Iterator[None]:
    """Stdin is no terminal, wherever the tests are run."""
    before, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    yield
    os.dup2(before, 0)
    os.close(before)
    os.close(nothing)


REFUSED_BY_RUN = {
    "an option with a typing error": (["--gpuu", "0.25", "busybox"], 125, "unknown flag: --gpuu"),
    "a terminal where there is none": (["-it", "busybox"], 1, "the input device is not a TTY"),
    "a port that cannot be": (["-p", "99999:1", "busybox"], 125, "99999"),
    "a file that is not there": (["--env-file", "/nosuch", "busybox"], 125, "/nosuch"),
    "detached and attached": (["-d", "-a", "stdout", "busybox"], 1, "onflicting options"),
    "a file of an id that is there": (["--cidfile", "some.env", "busybox"], 125, "ID file found"),
    "an image with capital letters": (["-v", "/a:/b", "BusyBox"], 125, "invalid reference format"),
}


@pytest.mark.usefixtures("no_terminal")
@pytest.mark.parametrize("name", REFUSED_BY_RUN)
def test_what_docker_run_refuses_is_refused_with_its_words_and_its_code(
    program: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words, code, complaint = REFUSED_BY_RUN[name]
    assert refused(program, words) == code
    assert complaint in capfd.readouterr().err


PLAIN = [
    [],
    ["--rm", "--name", "trainer1", "--network", "host", "-e", "A=1", "-e", "B", "--init"],
    ["-d", "--env", "A="],
    ["-i", "--network", "lab"],
    ["-t"],
    ["--rm", "--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--shm-size=8g"],
    ["-p", "8888:8888", "-p", "6006", "-v", "/data:/data:ro", "-v", "cache:/root/.cache", "-w", "/work"],
    ["-d", "--restart", "unless-stopped", "--cpus", "1.5", "-m", "2g", "-h", "box", "--name", "a_b-1"],
    ["-u", "1000:1000", "--entrypoint", "/bin/sh", "-l", "org.lab=x y", "--pull", "missing", "--read-only"],
]
NOT_PLAIN = [
    ["--rm", "--restart", "always"],
    ["-v", "./data:/data"],
    ["-v", "/data:/"],
    ["-v", "/data:/data:shared"],
    ["-p", "99999:1"],
    ["-p", "80-90:80-90"],
    ["--shm-size", "0"],
    ["--ulimit", "memlock"],
    ["--name", "a", "--name", "b"],
    ["--name", "-a"],
    ["-e", "=x"],
    ["--rm=perhaps"],
    ["--future", "x"],
]
TAKEN = [*PLAIN, ["-v", "/data:/data", "-p", "8080:80", "--gpus", "all"], ["--pull", "always", "-m", "1g"]]


@pytest.mark.parametrize("words", TAKEN, ids=" ".join)
def test_what_docker_run_takes_is_taken_without_a_word(
    program: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The words that are not shown to docker at all are taken by docker, too."""
    assert refused(program, [*words, "busybox"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_docker_is_not_started_for_words_that_it_cannot_refuse(words: list[str]) -> None:
    assert are_plain(split([*words, "registry.lab:5000/torch:24.10-py3"]))


@pytest.mark.parametrize("words", NOT_PLAIN, ids=" ".join)
def test_docker_reads_words_that_it_might_refuse(words: list[str]) -> None:
    assert not are_plain(split([*words, "busybox"]))


def test_a_pipe_of_variables_is_left_for_the_container(tmp_path: Path) -> None:
    """As in ``--env-file <(secrets)``: it can be read once."""
    os.mkfifo(tmp_path / "pipe")
    assert refused("/nonexistent/docker", ["--env-file", str(tmp_path / "pipe"), "busybox"]) == 0
