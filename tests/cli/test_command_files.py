"""What ``gpushared install`` brings of the command line, run from where it lies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpushared.cli.completion import COMPLETIONS, LAUNCHER
from tests.cli.process import Gpushare
from tests.cli.standin import StandIn, ok

INSTALL = "import sys; from gpushared.node.main import main; main()"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an older version left a link to its own command."""
    folder = tmp_path_factory.mktemp("root")
    (folder / LAUNCHER).parent.mkdir(parents=True)
    (folder / "older").write_text("older")
    (folder / LAUNCHER).symlink_to(folder / "older")
    words = [sys.executable, "-c", INSTALL, "install", "--prefix", str(folder)]
    output = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert f"replaced {folder / LAUNCHER}" in output
    assert [line for line in output if line.endswith("gpushare.fish")] == [
        f"wrote {folder / COMPLETIONS['fish']}"
    ]
    return folder


def test_a_link_of_an_older_version_is_replaced_and_not_written_through(prefix: Path) -> None:
    assert (prefix / "older").read_text() == "older"
    assert (prefix / LAUNCHER).stat().st_mode & 0o777 == 0o755


def test_the_installed_command_asks_the_daemon_whatever_the_user_has_python_do(
    prefix: Path, gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the user')")
    standin.answers["Leases/List"] = ok({"leases": [{"id": "l-7f3k"}]})
    environ = gpushare.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "x", "PYTHONHOME": "/nowhere"}
    words = [str(prefix / LAUNCHER), "ps", "-o", "json"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert [lease["id"] for lease in json.loads(done.stdout)["items"]] == ["l-7f3k"]
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["config", "show"], ["pss"]], ids=" ".join)
def test_the_installed_command_is_the_command(prefix: Path, gpushare: Gpushare, words: list[str]) -> None:
    installed = [str(prefix / LAUNCHER), *words]
    done = subprocess.run(installed, env=gpushare.environ, capture_output=True, text=True, check=False)
    usual = gpushare(*words)
    assert (done.returncode, done.stdout, done.stderr) == (usual.returncode, usual.stdout, usual.stderr)


def test_the_installed_command_writes_all_of_a_long_answer(
    prefix: Path, gpushare: Gpushare, standin: StandIn
) -> None:
    """It ends without the interpreter's own end, which would write what is left."""
    standin.answers["Leases/List"] = ok({"leases": [{"id": f"l-{number}"} for number in range(50_000)]})
    words = [str(prefix / LAUNCHER), "ps", "-q"]
    done = subprocess.run(words, env=gpushare.environ, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("l-49999\n")


def test_the_installed_command_completes(prefix: Path, gpushare: Gpushare) -> None:
    words = {"COMP_WORDS": "gpushare ver", "COMP_CWORD": "1", "_GPUSHARE_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [str(prefix / LAUNCHER)], env=gpushare.environ | words, capture_output=True, check=True
    )
    assert done.stdout == b"plain,version\n"


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_the_installed_completion_is_that_of_the_command(
    prefix: Path, gpushare: Gpushare, shell: str
) -> None:
    assert (prefix / COMPLETIONS[shell]).read_text() == gpushare("completion", shell).stdout
