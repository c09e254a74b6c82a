"""Commands begun, waiting and attached while a daemon, the coordinator or an engine restarts.

One restart with all commands in flight at once; what they are to say stands in ``commands``.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bed import parts
from tests.pool.failures.commands import (
    AMID,
    ATTACHED,
    BEGUN,
    TAKES_UP_AGAIN,
    WAITING,
    WAITS_FOR_IT,
    Row,
    Shell,
    TypedCommand,
    wait_for,
    wait_over,
)
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World

ONCE = 'echo ran >>"$0/$1"; exit $2'
"""Run as ``sh -c ONCE DIRECTORY NAME CODE``."""
UNTIL_GO = 'while [ ! -e "$0/go" ]; do echo works; sleep 0.2; done; echo ended; exit $1'
"""Run as ``sh -c UNTIL_GO DIRECTORY CODE``."""


@dataclass(frozen=True)
class Restart:
    """What goes away, how, and what brings it back. ``needed``: the word in a row's needs; empty for all."""

    away: Callable[[World], None]
    back: Callable[[World], None]
    needed: str = ""


RESTARTS = {
    "daemon stopped": Restart(lambda world: world.nodes["a"].stop(), lambda world: world.nodes["a"].start()),
    "daemon killed": Restart(lambda world: world.nodes["a"].kill(), lambda world: world.nodes["a"].start()),
    "coordinator killed": Restart(
        lambda world: world.coordinator.kill(), lambda world: world.coordinator.start(), "coordinator"
    ),
    "engine stopped": Restart(
        lambda world: world.nodes["a"].engine.stop(), lambda world: world.nodes["a"].engine.start(), "engine"
    ),
}


class Round:
    """Jobs and leases for the rows of one restart, and the commands that were typed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node = world.nodes["a"]
        self.shared = world.diary.directory / f"round-{secrets.token_hex(3)}"
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        commands = world.directory / self.shared.name
        commands.mkdir()
        self.shell = Shell(self.node, commands)
        self.named: dict[str, str] = {}
        self.files: list[Path] = []

    def prepare(self) -> None:
        over, here_over = "echo said far; exit 3", "echo said here; exit 4"
        pool, small = ("--pool", "--gpu", "0.1"), ("--gpu", "0.1")
        until_go = ("sh", "-c", UNTIL_GO, str(self.shared), "9")
        self._submit("over", *pool, given=("sh", "-c", over))
        self._submit("elsewhere_over", *pool, given=("sh", "-c", over), on="b")
        self._submit("elsewhere_array", *pool, "--array", "0-1", given=("sh", "-c", over), on="b")
        self._submit("here_over", *small, given=("sh", "-c", here_over))
        self._submit("runs", *pool, "--node", "b", given=until_go)
        self._submit("elsewhere_runs", *pool, given=until_go, on="b")
        self._submit("array_runs", *pool, "--array", "0-1", given=until_go)
        self._submit("elsewhere_array_runs", *pool, "--array", "0-1", given=until_go, on="b")
        self._submit("here_runs", *small, given=until_go)
        for name in ("here_held", "here_waits"):
            self._submit(name, *small, "--hold", given=until_go)
        self._submit("held", *pool, "--hold", given=until_go)
        for name in ("lease", "pauses", "resumes", "stops"):
            self._hold_lease(name)
        self.node.gpushare("pause", self.named["resumes"])
        for name in ("over", "here_over"):
            self.node.gpushare("wait", self.named[name], check=False)
        for name in ("elsewhere_over", "elsewhere_array"):
            self.world.nodes["b"].gpushare("wait", self.named[name], check=False)
        for name in ("runs", "here_runs"):
            wait_until(lambda name=name: "works" in self._output(name), f"{name} runs")  # type: ignore[misc]

    def _submit(self, name: str, *options: str, given: Iterable[str], on: str = "a") -> None:
        volume = f"{self.shared}:{self.shared}"
        words = ("submit", *options, "-v", volume, parts.BUSYBOX_IMAGE, *given)
        self.named[name] = self.world.nodes[on].gpushare(*words).split()[0]

    def _hold_lease(self, name: str) -> None:
        words = ("run", "-d", "--gpu", "0.1", "--time", "1h", parts.BUSYBOX_IMAGE, "sleep", "1000")
        container = self.node.gpushare(*words).split()[0]
        self.named[name] = self.node.call("Leases/Get", {"lease_id": container})["id"]

    def _output(self, name: str) -> str:
        return self.node.gpushare("logs", self.named[name], check=False)

    # --- typing ----------------------------------------------------------------------------------------

    def type(self, rows: Iterable[Row]) -> list[TypedCommand]:
        return [self.shell.type(row, self._words(row)) for row in rows]

    def _words(self, row: Row) -> list[str]:
        volume = ["-v", f"{self.shared}:{self.shared}", parts.BUSYBOX_IMAGE, "sh", "-c"]
        file = self.shared / secrets.token_hex(4)
        if row.runs:
            self.files += [file] * (2 if "--array" in row.words else 1)
        words: list[str] = []
        for word in row.words.split():
            if word == "{once}":
                words += [*volume, ONCE, str(self.shared), file.name]
            elif word == "{until_go}":
                words += [*volume, UNTIL_GO, str(self.shared)]
            else:
                words.append(word.format_map(self.named))
        return words

    def let_go(self) -> None:
        """What the commands wait for happens."""
        (self.shared / "go").touch()

    # --- judging ---------------------------------------------------------------------------------------

    def faults(self, typed: Iterable[TypedCommand]) -> str:
        """What commands said that did not say the truth."""
        return "\n".join(f"{one.row.name}: {one}" for one in typed if not self._is_true(one))

    def _is_true(self, typed: TypedCommand) -> bool:
        return typed.code == typed.row.code and typed.row.out.format_map(self.named) in typed.out

    def is_taken_up_again(self, typed: TypedCommand) -> bool:
        """Whether an attached command that could not go on says how to."""
        return typed.code == 125 and any(words in typed.err for words in TAKES_UP_AGAIN)

    def check_ran_once(self) -> None:
        """No program of a command ran twice, or not at all."""

        def ran() -> Mapping[Path, int]:
            return {file: len(file.read_text().splitlines()) if file.exists() else 0 for file in self.files}

        wanted = {file: self.files.count(file) for file in self.files}
        wait_until(lambda: all(ran()[file] >= wanted[file] for file in wanted), "all programs ran")
        assert ran() == wanted

    def close(self) -> None:
        """Whatever the test came to: nothing of the round goes on."""
        self.shell.close()
        self.let_go()
        self.node.gpushare("undrain", "all")
        for name in ("held", "here_held", "here_waits"):
            self.node.gpushare("cancel", self.named[name], check=False)
        for name in ("lease", "pauses", "resumes", "stops"):
            self.node.gpushare("stop", self.named[name], check=False)


@contextmanager
def rounds(world: World) -> Iterator[Round]:
    """A round whose jobs and leases are there."""
    made = Round(world)
    made.prepare()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def _away(world: World, restart: Restart) -> Iterator[None]:
    restart.away(world)
    try:
        yield
    finally:
        restart.back(world)


def _needs(row: Row, restart: Restart) -> bool:
    return not restart.needed or restart.needed in row.needs


def _has_noticed(typed: TypedCommand) -> bool:
    """A run in the pool is kept on its node meanwhile, and waits there as in a queue."""
    return WAITS_FOR_IT in typed.err or "pool does not answer" in typed.err or typed.code is not None


def _release(made: Round, waiting: Iterable[TypedCommand]) -> None:
    """Let what stands in a queue start: leases and jobs that were asked for with --hold."""
    for one in waiting:
        if one.row.runs:
            name = one.err.removeprefix("gpushare: ").split()[0]
            made.node.gpushare("unhold", name)


@pytest.mark.parametrize("restart", RESTARTS.values(), ids=RESTARTS)
def test_commands_hear_the_truth_whatever_restarts_behind_them(world: World, restart: Restart) -> None:
    """Those that wait, those that are attached, and those that are typed just before it and amid it."""
    with rounds(world) as made:
        waiting, attached = made.type(WAITING), made.type(ATTACHED)
        wait_for((one for one in waiting if one.row.runs), lambda one: one.err, "they stand in the queue")
        wait_for(attached, lambda one: "works" in one.out, "all are attached")
        amid = made.type(AMID)
        with _away(world, restart):
            begun = made.type(BEGUN)
            waits = [one for one in begun if _needs(one.row, restart)]
            wait_for(waits, _has_noticed, "all notice that it is away")
            in_vain = [f"{one.row.name}: {one}" for one in waits if one.code is not None]
        wait_over([*amid, *begun])
        _release(made, waiting)
        made.let_go()
        wait_over([*waiting, *attached])
        assert not in_vain, "\n".join(in_vain)
        assert not (faults := made.faults([*amid, *begun, *waiting])), faults
        made.check_ran_once()
        assert not (faults := made.faults(one for one in attached if not made.is_taken_up_again(one))), faults


REPEATED = {
    "here, the daemon is killed": ({}, RESTARTS["daemon killed"]),
    "in the pool, the daemon is killed": ({"pool": True}, RESTARTS["daemon killed"]),
    "in the pool, the coordinator is killed": ({"pool": True}, RESTARTS["coordinator killed"]),
}


@pytest.mark.parametrize(("where", "restart"), REPEATED.values(), ids=REPEATED)
def test_a_request_that_is_repeated_after_a_restart_is_accepted_once(
    world: World, where: Mapping[str, object], restart: Restart
) -> None:
    """Whoever has not heard the answer asks again by the same id, and hears of the same jobs."""
    node, image, shared = world.nodes["a"], parts.BUSYBOX_IMAGE, world.diary.directory
    file = shared / f"repeated-{secrets.token_hex(4)}"
    program = ["sh", "-c", ONCE, str(shared), file.name, "0"]
    create = {"Image": image, "Cmd": program, "HostConfig": {"Binds": [f"{shared}:{shared}"]}}
    asked = {
        "request_id": secrets.token_hex(16),
        "lease": {"gpu": "0.1"},
        "image": image,
        "create_body": b64encode(json.dumps(create).encode()).decode(),
        "array": "0-2",
        **where,
    }
    before = node.call("Jobs/Submit", asked)
    with _away(world, restart):
        pass
    assert node.call("Jobs/Submit", asked)["job_ids"] == before["job_ids"]
    node.gpushare("wait", *before["job_ids"])
    assert node.call("Jobs/Submit", asked)["job_ids"] == before["job_ids"]
    listed = node.call("Jobs/List", {"array_id": before["array_id"], "ended": True})["jobs"]
    assert sorted(job["id"] for job in listed) == sorted(before["job_ids"])
    assert file.read_text().splitlines() == ["ran"] * 3
