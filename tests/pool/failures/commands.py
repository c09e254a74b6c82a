"""Commands that users of a machine have under way while something behind them restarts, as data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pool.failures.daemons import Node
from tests.pool.failures.machine import wait_until

COMMAND_FORKS: Final = Path(__file__).with_name("command_forks.py")
WAITS_FOR_IT: Final = "trying again for"


@dataclass(frozen=True)
class Row:
    """A command and the truth about it.

    ``words`` may name what a round has prepared, as ``{job}``. ``code`` is the exit code that is true, and
    ``out`` is in what it prints. ``needs``: what must answer for it, beside the node's daemon. ``runs``: it
    has a program run, exactly once, which writes a line into a file called after the row.
    """

    name: str
    words: str
    code: int = 0
    out: str = ""
    needs: frozenset[str] = frozenset()
    runs: bool = False


POOL: Final = frozenset({"coordinator"})
ENGINE: Final = frozenset({"engine"})

BEGUN: Final = (
    Row("ps", "ps -q", out="{lease}"),
    Row("queue", "queue"),
    Row("gpus", "gpus", out="H100"),
    Row("presets", "presets"),
    Row("project ls", "project ls"),
    Row("offer", "offer --gpu 0.1"),
    Row("why a lease", "why {lease}", out="{lease}"),
    Row("why a job here", "why {here_over}", out="{here_over}"),
    Row("why a job of the pool", "why {over}", out="{over}"),
    Row("why a job that came in elsewhere", "why {elsewhere_over}", out="{elsewhere_over}", needs=POOL),
    Row("jobs", "jobs", out="{here_runs}"),
    Row("nodes", "nodes", out="RTX 4090", needs=POOL),
    Row("wait for a job here", "wait {here_over}", code=4),
    Row("wait for a job of the pool", "wait {over}", code=3),
    Row("wait for a job that came in elsewhere", "wait {elsewhere_over}", code=3, needs=POOL),
    Row("wait for an array that came in elsewhere", "wait {elsewhere_array}", code=3, needs=POOL),
    Row("logs of a job here", "logs {here_over}", out="said here", needs=ENGINE),
    Row("logs of a job of the pool", "logs {over}", out="said far", needs=POOL),
    Row("submit", "submit --gpu 0.1 {once} 5", runs=True),
    Row("submit --pool", "submit --pool --gpu 0.1 {once} 5", runs=True),
    Row("submit --pool --array", "submit --pool --array 0-1 --gpu 0.1 {once} 5", runs=True),
    Row("run", "run --gpu 0.1 --rm {once} 5", code=5, needs=ENGINE, runs=True),
    Row("run --pool", "run --pool --node b --gpu 0.1 --rm {once} 6", code=6, needs=POOL, runs=True),
    Row("cancel a job here", "cancel {here_held}", out="{here_held}"),
    Row("cancel a job of the pool", "cancel {held}", out="{held}"),
    Row("hold", "hold {here_waits}", out="{here_waits}"),
    Row("pause", "pause {pauses}"),
    Row("resume", "resume {resumes}"),
    Row("extend", "extend {lease} 1h"),
    Row("drain", "drain 1 --reason restart"),
    Row("stop", "stop {stops}"),
)
"""Each answers as if nothing had happened, once what it needs is back."""

AMID: Final = (
    Row("ps", "ps -q", out="{lease}"),
    Row("wait for a job that came in elsewhere", "wait {elsewhere_over}", code=3),
    Row("why a job of the pool", "why {over}", out="{over}"),
    *(Row(f"submit, {number}", "submit --gpu 0.1 {once} 5", runs=True) for number in range(3)),
    *(Row(f"submit --pool, {number}", "submit --pool --gpu 0.1 {once} 5", runs=True) for number in range(3)),
    Row("submit --pool --array", "submit --pool --array 0-1 --gpu 0.1 {once} 5", runs=True),
)
"""Typed the moment before, so that it goes away anywhere between the first connection and the last answer."""

WAITING: Final = (
    Row("wait for a job here", "wait {here_runs}", code=9),
    Row("wait for a job of the pool", "wait {runs}", code=9),
    Row("wait for a job that came in elsewhere", "wait {elsewhere_runs}", code=9),
    Row("wait for an array", "wait {array_runs}", code=9),
    Row("wait for an array that came in elsewhere", "wait {elsewhere_array_runs}", code=9),
    Row("run in the queue", "run --hold --gpu 0.1 --rm {once} 5", code=5, runs=True),
    Row("run --pool in the queue", "run --hold --node b --gpu 0.1 --rm {once} 6", code=6, runs=True),
)
"""What they wait for happens after the restart."""

ATTACHED: Final = (
    Row("run", "run --gpu 0.1 {until_go} 8", code=8, out="ended"),
    Row("run --pool", "run --node b --gpu 0.1 {until_go} 8", code=8, out="ended"),
    Row("logs -f of a job here", "logs -f {here_runs}", out="ended"),
    Row("logs -f of a job of the pool", "logs -f {runs}", out="ended"),
    Row("attach to a job here", "attach {here_runs}", code=9, out="ended"),
    Row("attach to a job of the pool", "attach {runs}", code=9, out="ended"),
)
"""They end as their containers do, or with 125 and the command that takes them up again."""
TAKES_UP_AGAIN: Final = ("gpushare attach", "gpushare logs")


@dataclass
class TypedCommand:
    """A command that was typed, and what it has written so far."""

    row: Row
    words: list[str]
    directory: Path

    @property
    def out(self) -> str:
        return self._read("out")

    @property
    def err(self) -> str:
        return self._read("err")

    @property
    def code(self) -> int | None:
        text = self._read("code")
        return int(text) if text else None

    def _read(self, name: str) -> str:
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    def __str__(self) -> str:
        return f"{' '.join(self.words)[:200]}\n  code {self.code}\n  out {self.out!r}\n  err {self.err!r}"


class Shell:
    """Where a user of a node's machine types commands, many at once."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._directory = directory
        self._forks = node.machine.talk_to(
            *("env", f"GPUSHARE_HOST=unix://{node.socket}", sys.executable, str(COMMAND_FORKS))
        )
        self._typed = 0

    def type(self, row: Row, words: Iterable[str]) -> TypedCommand:
        """Comes back when it was begun."""
        self._typed += 1
        typed = TypedCommand(row, list(words), self._directory / str(self._typed))
        typed.directory.mkdir()
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        order = {"words": typed.words, "directory": str(typed.directory)}
        print(json.dumps(order), file=self._forks.stdin, flush=True)
        assert self._forks.stdout.readline(), "the process that forks died"
        return typed

    def close(self) -> None:
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.close()
        self._forks.stdout.close()
        self._forks.wait()


def wait_for(typed: Iterable[TypedCommand], look: Callable[[TypedCommand], object], what: str) -> None:
    """Until it is so of all; raises with what those wrote of which it is not."""
    typed = list(typed)
    try:
        wait_until(lambda: all(map(look, typed)), what)
    except AssertionError as error:
        error.add_note("\n".join(f"{one}" for one in typed if not look(one)))
        raise


def wait_over(typed: Iterable[TypedCommand]) -> None:
    """Until all have ended."""
    wait_for(typed, lambda one: one.code is not None, "all commands are over")
