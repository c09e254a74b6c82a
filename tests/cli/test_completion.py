"""Completion, as shells ask for it: what is offered, and the silence where there is nothing to offer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpushared.cli.completion import SHELLS
from tests.cli.process import Gpushare
from tests.cli.standin import HANG_UP, Reply, StandIn, ok, refusal

LEASES = {
    "leases": [
        {"id": "l-aaaa", "state": "active", "owner": "ada", "asks": "0.5", "container_name": "trainer"},
        {"id": "l-abcd", "state": "queued", "owner": "bob", "asks": "1", "waiting": {"position": 1}},
    ]
}
JOBS = {
    "jobs": [{"id": "k3m9x0p2qa", "state": "queued", "name": "night"}, {"id": "zzzz", "state": "running"}]
}
ANSWERS = {
    "Leases/List": LEASES,
    "Jobs/List": JOBS,
    "Jobs/Nodes": {"nodes": [{"name": "dgx-1"}, {"name": "ws3"}]},
    "Node/Presets": {"presets": [{"name": "small", "description": "for\nnotebooks"}, {"name": "large"}]},
    "Projects/List": {"projects": [{"name": "vision", "origin": "set"}, {"name": "ada", "origin": "user"}]},
    "Gpus/List": {"gpus": [{"index": 0}, {"index": 1, "label": "1:0"}]},
}


def offered(gpushare: Gpushare, line: str) -> list[str]:
    """What bash would be offered for the last word of the line."""
    *before, word = line.split(" ")
    done = gpushare(
        COMP_WORDS=" ".join([*before, word]), COMP_CWORD=str(len(before)), _GPUSHARE_COMPLETE="bash_complete"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpushare und", ["undrain"]),
        ("gpushare ps --no", ["--no-headers"]),
        ("gpushare project s", ["set", "show"]),
        ("gpushare stop ", ["l-aaaa", "trainer", "l-abcd"]),
        ("gpushare stop l-aaaa l-ab", ["l-abcd"]),
        ("gpushare unhold ", ["l-abcd", "k3m9x0p2qa", "night"]),
        ("gpushare wait ", ["k3m9x0p2qa", "night", "zzzz"]),
        ("gpushare logs --tail 5 n", ["night"]),
        ("gpushare why t", ["trainer"]),
        ("gpushare drain ", ["0", "1:0", "all", "dgx-1", "ws3"]),
        ("gpushare node forget w", ["ws3"]),
        ("gpushare project show ", ["vision"]),
        ("gpushare simulate --container ", ["trainer"]),
        ("gpushare run --rm -it --preset ", ["small", "large"]),
        ("gpushare run --gpu 1 --node d", ["dgx-1"]),
        ("gpushare run --project ", ["vision"]),
        ("gpushare run --near l-zzzz,l-aa", ["l-zzzz,l-aaaa"]),
        ("gpushare submit --after-ok k3m9x0p2qa,z", ["k3m9x0p2qa,zzzz"]),
        ("gpushare offer --class ", ["build", "train", "infer"]),
        ("gpushare nonsense x", []),
    ],
)
def test_a_shell_is_offered_the_words_that_make_sense(
    gpushare: Gpushare, standin: StandIn, line: str, words: list[str]
) -> None:
    standin.answers |= {call: ok(answer) for call, answer in ANSWERS.items()}
    assert offered(gpushare, line) == [f"plain,{word}" for word in words]


@pytest.mark.parametrize("line", ["gpushare run -v ./da", "gpushare run busybox ./da"])
def test_words_of_docker_are_left_to_the_shell_as_files(gpushare: Gpushare, line: str) -> None:
    assert offered(gpushare, line) == ["file,./da"]


@pytest.mark.parametrize(
    "answer",
    [
        HANG_UP,
        Reply(hold=threading.Event()),
        Reply(b"[]"),
        Reply(b"{"),
        ok({"leases": "many"}),
        ok({"leases": [1]}),
        refusal(403, "permission_denied", "no"),
        refusal(503, "unavailable", "the engine is away"),
        ok({}),
    ],
)
def test_without_an_answer_that_makes_sense_nothing_is_offered_or_said(
    gpushare: Gpushare, standin: StandIn, answer: Reply
) -> None:
    standin.answers["Leases/List"] = answer
    assert offered(gpushare, "gpushare stop ") == []
    if answer.hold is not None:
        answer.hold.set()


@pytest.mark.parametrize("host", ["unix:///nowhere/d.sock", "tcp://elsewhere", "unix:///" + "x" * 200])
def test_without_a_daemon_nothing_is_offered_or_said(gpushare: Gpushare, host: str) -> None:
    gpushare.environ["GPUSHARE_HOST"] = host
    assert offered(gpushare, "gpushare stop ") == []


def test_a_description_keeps_to_its_line(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Node/Presets"] = ok(ANSWERS["Node/Presets"])
    done = gpushare(COMP_WORDS="gpushare run --preset s", COMP_CWORD="3", _GPUSHARE_COMPLETE="zsh_complete")
    assert done.stdout.splitlines() == ["plain", "small", r"for\nnotebooks"]


SOURCED = {
    "bash": (
        'source "$SCRIPT"; COMP_WORDS=(gpushare stop l-a); COMP_CWORD=2; _gpushare_completion gpushare;'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "zsh": (
        'compdef() {}; _describe() { eval "print -l \\$$3" }; autoload() {}; source "$SCRIPT";'
        "words=(gpushare stop l-a); CURRENT=3; _gpushare_completion"
    ),
    "fish": 'source "$SCRIPT"; complete --do-complete "gpushare stop l-a"',
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_completes_a_lease(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path, shell: str
) -> None:
    script = tmp_path / "script"
    script.write_text(gpushare("completion", shell).stdout)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    standin.answers["Leases/List"] = ok(LEASES)
    program = tmp_path / "bin" / "gpushare"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom gpushared.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    environ = {**gpushare.environ, "SCRIPT": str(script), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, "-c", SOURCED[shell]],
        env=environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    lines = [re.split(r"[:\t]", line) for line in done.stdout.splitlines()]
    descriptions = [[]] * 2 if shell == "bash" else [["0.5 of ada (active)"], ["1 of bob (queued)"]]
    assert lines == [["l-aaaa", *descriptions[0]], ["l-abcd", *descriptions[1]]]


def test_completion_names_its_shells(gpushare: Gpushare) -> None:
    done = gpushare("completion", "tcsh")
    assert done.returncode == 2
    assert "bash" in done.stderr
