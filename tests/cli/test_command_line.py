"""The command line as a whole: help, mistakes, and what it costs to start."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest

from gpushared.cli.tree import COMMANDS, cli
from tests.cli.process import Gpushare
from tests.cli.standin import StandIn, ok, refusal

HEAVY = ("grpc", "google.protobuf", "docker", "http", "asyncio", "email", "requests")


def test_without_words_it_shows_help(gpushare: Gpushare) -> None:
    done = gpushare()
    assert done.returncode == 2
    assert all(command in done.stderr for command in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_name_in_the_list_leads_to_its_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help_with_examples(gpushare: Gpushare, command: str, option: str) -> None:
    done = gpushare(command, option)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: gpushare")
    assert "Examples:" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence", "hint"),
    [
        (["pss"], "there is no command 'pss'", "did you mean ps?"),
        (["x" * 100_000], "there is no command", "--help"),
        (["ps", "--al"], "no such option", "gpushare ps --help"),
        (["ps", "--json"], "no such option", "gpushare ps -o json"),
        (["nodes", "--format", "json"], "no such option", "gpushare nodes -o json"),
        (["ps", "-w"], "no such option", "gpushare top"),
        (["stop"], "missing argument", "gpushare stop --help"),
        (["stop", "--grace", "-1", "l-1"], "invalid value", "gpushare stop --help"),
        (["priority", "5", "l-1"], "'l-1' is not a valid whole number", "gpushare priority --help"),
        (["completion"], "Choose from: bash, zsh, fish", "gpushare completion --help"),
        (["run", "--gpu", "1"], "no image", "IMAGE"),
        (["--nonsense"], "no such option", "gpushare --help"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_one_hint(
    gpushare: Gpushare, words: list[str], sentence: str, hint: str
) -> None:
    done = gpushare(*words)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("gpushare: ")
    assert sentence in first
    assert second.startswith("  hint: ")
    assert hint in second
    assert len(done.stderr) < 500


def test_the_version_of_the_client_asks_nobody(gpushare: Gpushare, standin: StandIn) -> None:
    done = gpushare("--version")
    assert done.stdout.startswith("gpushare ")
    assert standin.calls == []


def test_completion_is_not_bypassed_by_the_short_cut(gpushare: Gpushare) -> None:
    done = gpushare("ps", _GPUSHARE_COMPLETE="bash_complete", COMP_WORDS="gpushare ps --no", COMP_CWORD="2")
    assert "--no-headers" in done.stdout


def test_drain_and_undrain_say_what_has_become_of_the_gpus(gpushare: Gpushare, standin: StandIn) -> None:
    gpus = [{"index": 0, "mode": "drained", "leases": 2}, {"index": 1, "mode": "drained"}]
    standin.answers["Gpus/Drain"] = ok({"gpus": gpus})
    undrained = [{"index": 1, "label": "1:0", "mode": "exclusive"}, {"index": 1, "mode": "unhealthy"}]
    standin.answers["Gpus/Undrain"] = ok({"gpus": undrained})
    done = gpushare("drain", "all", "--reason", "new fans")
    assert done.stdout == "GPU 0 is drained; 2 leases there run on\nGPU 1 is drained\n"
    assert gpushare("undrain", "1").stdout == "GPU 1:0 gets leases again\nGPU 1 is still unhealthy\n"
    assert standin.asked("Gpus/Drain") == [{"gpu": "all", "reason": "new fans"}]
    assert standin.asked("Gpus/Undrain") == [{"gpu": "1"}]
    assert gpushare("drain", "1").returncode == 2, "without a reason"


@pytest.mark.parametrize(
    "words", [["ps"], ["gpus", "-o", "json"], ["queue"], ["why", "l-1"], ["stop", "l-1"], ["resize", "l-1"]]
)
def test_no_command_loads_the_daemon_s_libraries(standin: StandIn, words: list[str]) -> None:
    """Importing grpc, protobuf or docker takes longer than all that these commands do."""
    for call in ("Leases/List", "Gpus/List", "Leases/Explain", "Leases/Stop", "Leases/Resize"):
        standin.answers[call] = ok({})
    code = (
        "import sys; from gpushared.cli.main import main; code = main();"
        "import json; print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={"GPUSHARE_HOST": standin.host},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    exit_code, modules = json.loads(done.stderr)
    assert exit_code == 0
    assert [name for name in HEAVY if name in modules] == []


WRONG_VALUES = [
    "run --gpu 25%",
    "run --gpu 0.25 --time 1",
    "run --gpu 0.25 --time 400d",
    "run --gpu 0.25 --class x",
    "run --preset small --time 1",
    "run --isolation cosy",
    "run --gpu-memory 8x",
    "run --gpu-compute 130%",
    "run --priority 101",
    "run --notice-signal KILL",
    "run --begin soon",
    "run --begin +xs",
    "run --begin 0001-01-01",
    "run --begin 1960-01-01",
    "run --restart-on-fault 101",
    "run --model ?",
    "run --project " + "x" * 65,
    "run --max-wait 10",
    "run --gpu " + "9" * 5000,
    "run --pool --gpu 25%",
    "run --pool --max-wait 1",
    "submit --gpu 25%",
    "submit --time abc",
    "submit --array 9-1",
    "submit --retries 101",
    "submit --pool --nodes 999999",
    "submit --pool --stop-after 1s",
    "submit --pool --stop-after x",
    "offer --gpu 25%",
    "offer --class x",
    "offer --time 1",
    "offer --begin soon",
    "offer --priority 101",
    "resize l-7f3k --gpu 25%",
    "resize l-7f3k --gpu 0.5 --gpu-memory x",
    "wait k7f3k2m9qa --timeout 1",
    "ps --since soon",
    "audit --since soon",
    "audit --limit 0",
    "history --since soon",
    "history --limit 0",
    "usage --until tomorrow",
    "waits --since 7",
    "project set vision --limit 25%",
    "project set vision --limit none --fixed x",
    "pool token --valid 1",
    "simulate --container x --memory 8x",
    "simulate --utilization 130%",
    "simulate --gpu x",
]
"""The last option of each is the one that is wrong."""
OF_SEVERAL_OPTIONS = [
    "run --gpu 0.25 --isolation exclusive",
    "run --gpu-memory 8g --isolation mig --gpu-memory 8g..9g",
    "extend l-7f3k 1",
    "simulate --memory 8g",
    "waste --since 1d --until 2d",
    "history export --csv --jsonl",
]


@pytest.mark.parametrize("line", [*WRONG_VALUES, *OF_SEVERAL_OPTIONS], ids=lambda line: line[:60])
def test_a_wrong_value_is_exit_code_2_names_its_option_and_nobody_is_asked(
    gpushare: Gpushare, standin: StandIn, line: str
) -> None:
    words = line.split()
    image = ["busybox"] if words[0] in {"run", "submit"} else []
    done = gpushare(*words, *image)
    assert (done.returncode, done.stdout, standin.calls) == (2, "", []), done.stderr
    assert done.stderr.startswith("gpushare: ")
    assert len(done.stderr) < 1000
    if line in WRONG_VALUES:
        wrong = [word for word in words if word.startswith("--")][-1]
        assert wrong in re.findall(r"--[a-z-]+", done.stderr.partition("\n")[0].lower()), done.stderr


@pytest.mark.parametrize("code", ["invalid_argument", "failed_precondition", "not_found"])
def test_what_the_daemon_refuses_is_exit_code_125(gpushare: Gpushare, standin: StandIn, code: str) -> None:
    standin.answers["Leases/Offer"] = refusal(400, code, "no")
    assert gpushare("offer", "--gpu", "1/4", "--time", "01:00:00").returncode == 125
    (asked,) = standin.asked("Leases/Offer")
    assert (asked["gpu"], asked["time"]) == ("1/4", "01:00:00")
