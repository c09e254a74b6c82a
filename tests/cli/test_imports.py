"""What the commands that are typed all day import: their time cannot be asserted, their modules can.

Most of the time of such a command is its imports. A module that is new here has to be worth its time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import gpushared
from tests.cli.answers import RESERVED
from tests.cli.process import Gpushare
from tests.cli.standin import StandIn, ok

CODE = """
import sys
before = set(sys.modules)
import os

def tell(*ignored):
    import json
    os.write(2, json.dumps(sorted(after - before)).encode())
    os._exit(0)

def at_exec(*ignored):
    global after
    after = set(sys.modules)
    tell()

sys.path += sys.argv.pop(1).split(":")
from gpushared.cli.main import main
os.execve = at_exec
try:
    main()
except SystemExit:
    pass
after = set(sys.modules)
tell()
"""
"""Nothing is imported by ``site`` here, nor by a test's own start."""

FOLDERS = ":".join(str(Path(module.__file__ or "").parents[1]) for module in (gpushared, click))

BASE = {
    "gpushared",
    "gpushared.light",
    *(f"gpushared.cli{name}" for name in ("", ".main", ".errors", ".text")),
}
BASE |= {"gpushared.domain", "gpushared.domain.model", "gpushared.domain.model.errors"}
CLIENT = {"gpushared.client"} | {
    f"gpushared.client.{name}" for name in ("api", "http", "retries", "submit_parameters")
}
CLIENT |= {"gpushared.domain.model.backoff"}
CLIENT |= {f"gpushared.api{name}" for name in ("", ".message", ".v1", ".v1.messages")}
LISTING = BASE | CLIENT | {"gpushared.cli.listing", "gpushared.cli.table"}
RUN = {"docker_args", "docker_cli", "lease_values"}
RUN |= {"relay", "run_container", "start", "waiting"}
STANDARD = {
    *("abc", "array", "collections", "contextlib", "copyreg", "enum", "errno", "functools", "genericpath"),
    *("importlib", "itertools", "json", "keyword", "math", "operator", "os", "posixpath", "re", "reprlib"),
    *("select", "selectors", "signal", "socket", "stat", "struct", "types", "warnings"),
}
"""Of the standard library, without names that begin with an underscore."""


def imported(gpushare: Gpushare, *words: str, **environ: str) -> tuple[set[str], set[str]]:
    """The modules of ours that a command imported, and the others by their first name."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CODE, FOLDERS, *words],
        env=gpushare.environ | environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = json.loads(done.stderr.splitlines()[-1])
    ours = {name for name in names if name.partition(".")[0] == "gpushared"}
    others = {name.partition(".")[0] for name in names if name not in ours}
    return ours, {name for name in others if not name.startswith("_")}


@pytest.mark.parametrize("words", [["ps"], ["ps", "-o", "json"], ["gpus"], ["queue", "-q"]], ids=" ".join)
def test_a_listing_imports_what_it_needs(gpushare: Gpushare, standin: StandIn, words: list[str]) -> None:
    standin.answers |= {"Leases/List": ok({"leases": []}), "Gpus/List": ok({})}
    ours, others = imported(gpushare, *words)
    commands = {f"gpushared.cli.{name}" for name in ("gpus", "ps", "queue")}
    assert ours <= LISTING | commands | {"gpushared.client.jobs"}
    assert others <= STANDARD


def test_run_imports_what_it_needs(gpushare: Gpushare, docker_recorder: Path, standin: StandIn) -> None:
    standin.answers |= {"/images/busybox/json": ok({"Id": "sha256:1"}), "Leases/Request": ok(RESERVED)}
    ours = ["--gpu", "0.25", "--time", "2h", "--project", "lab"]
    docker = ["-m", "8g", "--rm", "-v", "/data:/data", "-p", "8888:8888", "--shm-size", "8g", "busybox"]
    found, others = imported(gpushare, "run", *ours, *docker)
    assert found <= BASE | CLIENT | {f"gpushared.cli.{name}" for name in RUN}
    assert others <= STANDARD


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"], []], ids=" ".join)
def test_help_imports_no_command(gpushare: Gpushare, words: list[str]) -> None:
    ours, _ = imported(gpushare, *words)
    assert ours == BASE | {"gpushared.cli.tree"}


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("gpushare st", set()),
        ("gpushare preempt l-", CLIENT | {"gpushared.cli.complete"}),
        ("gpushare config ch", {"gpushared.cli.config"}),
    ],
)
def test_a_completion_imports_one_command(
    gpushare: Gpushare, standin: StandIn, line: str, modules: set[str]
) -> None:
    standin.answers["Leases/List"] = ok({"leases": []})
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_GPUSHARE_COMPLETE": "bash_complete"}
    ours, others = imported(gpushare, **words)
    rest = {
        "gpushared.cli.tree",
        "gpushared.cli.lease_commands",
        "gpushared.cli.options",
        "gpushared.cli.references",
    }
    assert ours <= BASE | rest | {"gpushared.client.jobs"} | modules
    assert not others & {"subprocess", "dataclasses", "tomllib"}
