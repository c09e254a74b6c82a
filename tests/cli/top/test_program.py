"""The program as a process: what it imports, and that it ends with its terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import pytest

from tests.cli.process import GPUSHARE, Gpushare
from tests.cli.standin import StandIn, ok
from tests.cli.test_imports import imported
from tests.cli.top import machines

END_SECONDS = 30


@pytest.fixture(autouse=True)
def _served(standin: StandIn) -> None:
    standin.answers |= {
        "Gpus/List": ok({"gpus": [machines.gpu(0)], "node": "gpu-a"}),
        "Leases/List": ok({"leases": [machines.lease(1)]}),
        "History/Recent": ok(machines.recent()),
    }


def test_a_picture_imports_neither_click_nor_curses(gpushare: Gpushare) -> None:
    """They would take longer than the rest of it."""
    ours, others = imported(gpushare, "top", "--once", "--ascii")
    assert "gpushared.cli.top.view" in ours
    assert not {"gpushared.cli.top.screen", "gpushared.cli.tree"} & ours
    assert not {"click", "curses", "dataclasses", "typing", "inspect"} & others


def test_it_ends_with_a_terminal_that_tells_it_nothing(gpushare: Gpushare) -> None:
    """As one that is not its controlling terminal, which sends no signal when it is gone."""
    end, theirs = pty.openpty()
    process = subprocess.Popen(
        [*GPUSHARE, "top"], env={**gpushare.environ, "LANG": "C.UTF-8"}, stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    shown = b""
    while b"l-0001" not in shown:
        shown += os.read(end, 65536)
    os.close(end)
    try:
        assert process.wait(END_SECONDS) != -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "soon"], "--interval 'soon' is not possible"),
        (["--interval", "0.1"], "--interval '0.1' is not possible"),
        (["--interval", "nan"], "--interval 'nan' is not possible"),
        (["--what"], "no such option '--what'"),
        (["-q"], "no such option '-q'"),
        (["busy"], "got unexpected extra argument (busy)"),
    ],
)
def test_words_that_make_no_sense_are_refused(gpushare: Gpushare, words: list[str], said: str) -> None:
    done = gpushare("top", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint" in done.stderr


def test_both_readers_of_the_words_do_the_same(gpushare: Gpushare) -> None:
    """Words that are rarely spelt so are read by click."""
    plain = gpushare("top", "--once", "--interval", "5")
    by_click = gpushare("top", "--once", "--interval=5")
    assert plain.returncode == by_click.returncode == 0
    assert plain.stdout == by_click.stdout


def test_a_daemon_that_is_not_there_is_an_error_of_one_picture(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    standin.path.unlink()
    done = gpushare("top", "--once", GPUSHARE_RETRY_SECONDS="0")
    assert done.returncode == 125
    assert "no gpushared daemon answers" in done.stderr
