"""`gpushare run` at a terminal, or in a pipe, while its daemon dies: the real programs on real engines."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.attached import COUNT, SECONDS, AttachedCommand, FaultyConnection
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARE, DaemonProcess, wait_until

SILENT = "echo up; sleep 1000"
ENDS = {"killed": DaemonProcess.kill, "restarted": DaemonProcess.terminate}


@pytest.fixture(params=["docker_engine", "cdi_engine"])
def daemon(request: pytest.FixtureRequest, new_daemon: NewDaemon) -> DaemonProcess:
    """One on each engine of the bed."""
    engine = request.getfixturevalue(request.param)
    started = new_daemon(engine=str(engine.socket) if isinstance(engine, CdiEngine) else engine)
    started.start()
    return started


def attached(
    daemon: DaemonProcess, *command: str, rm: bool = True, terminal: bool, by_way_of: Path | None = None
) -> AttachedCommand:
    """`gpushare run` with this command. ``by_way_of``: a socket that leads to the daemon's."""
    environment = {
        **os.environ,
        "GPUSHARE_HOST": f"unix://{by_way_of or daemon.socket}",
        "PATH": f"{parts.DOCKER.parent}:{os.environ['PATH']}",
        "TERM": "xterm",
        "TMPDIR": str(daemon.directory),
    }
    environment.pop("XDG_RUNTIME_DIR", None)
    chosen = [*(["-it"] if terminal else []), *(["--rm"] if rm else []), *daemon.container_options()]
    words = [str(GPUSHARE), "run", "--gpu", "0.25", *chosen, *command]
    return AttachedCommand(words, environment, terminal=terminal)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("end", ENDS)
def test_a_run_outlives_its_daemon_and_ends_with_the_programs_code(
    daemon: DaemonProcess, end: str, terminal: bool
) -> None:
    """Its output goes on, in order and without a page of HTTP in it; what was lost on the way is said."""
    with attached(daemon, "sh", "-c", COUNT.format(upto=80), terminal=terminal) as run:
        run.until(b"n5\r\n" if terminal else b"n5\n")
        ENDS[end](daemon)
        daemon.start()
        run.until(b"again; what it wrote meanwhile may be missing here: gpushare logs l-")
        assert run.code() == 7
    numbers = run.numbers()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 80
    assert b"HTTP/" not in run.seen
    wait_until(lambda: daemon.free_permille() == [1000, 1000], "the capacity is back")


def test_the_exit_code_of_a_program_that_ended_while_the_daemon_was_away_is_found(
    daemon: DaemonProcess,
) -> None:
    command = "echo begun; sleep 2; exit 9"
    with attached(daemon, "sh", "-c", command, rm=False, terminal=False) as run:
        run.until(b"begun\n")
        container = next(iter(daemon.leases().values()))["container_id"]
        daemon.kill()
        inspect = ("inspect", "--format", "{{.State.Running}}", container)
        wait_until(lambda: parts.docker(daemon.engine, *inspect).stdout.strip() == "false", "it ends")
        daemon.start()
        assert run.code() == 9
    assert b"has ended" in run.seen


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    "request_part", [b"/attach?", b"/start ", b"/wait?"], ids=["attach", "start", "wait"]
)
def test_a_connection_that_breaks_before_its_answer_costs_the_run_nothing(
    daemon: DaemonProcess, request_part: bytes, terminal: bool
) -> None:
    """Docker asks for three things before a container runs; each is asked again, or looked up."""
    command = ("sh", "-c", "sleep 1; echo said; exit 4")
    with (
        FaultyConnection(daemon.socket, breaks_at=request_part) as way,
        attached(daemon, *command, terminal=terminal, by_way_of=way.path) as run,
    ):
        assert run.code() == 4
    assert way.has_happened
    assert b"said" in run.seen


def test_output_that_stalls_and_breaks_after_the_exit_code_is_told_as_missing(daemon: DaemonProcess) -> None:
    """As in a pool whose network goes away for good between the two."""
    command = ("sh", "-c", "echo first; sleep 1; echo second; exit 3")
    with (
        FaultyConnection(daemon.socket, stalls_after=b"first") as way,
        attached(daemon, *command, terminal=False, by_way_of=way.path) as run,
    ):
        assert run.code() == 3
    assert way.has_happened
    assert b"second" not in run.seen
    assert b"may be missing here: gpushare logs l-" in run.seen


def test_typing_goes_on_after_the_daemon_was_away(daemon: DaemonProcess) -> None:
    with attached(daemon, "sh", terminal=True) as run:
        run.type(b"echo ready $((40 + 2))\n")
        run.until(b"ready 42")
        daemon.kill()
        daemon.start()
        run.until(b"connected to l-")
        run.type(b"echo again $((40 + 3)); exit 5\n")
        run.until(b"again 43")
        assert run.code() == 5


def test_a_daemon_that_stays_away_is_told_with_the_way_back(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine)
    daemon.start()
    with attached(daemon, "sh", "-c", SILENT, terminal=False) as run:
        run.until(b"up\n")
        daemon.kill()
        assert run.code() == 125
    assert b"its program may run on: gpushare attach l-" in run.seen
    assert b"HTTP/" not in run.seen


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("code", [0, 1, 3, 125, 126])
def test_a_programs_own_code_is_the_commands(daemon: DaemonProcess, code: int, terminal: bool) -> None:
    """Also those that docker uses for its own failures, and nothing more is said."""
    with attached(daemon, "sh", "-c", f"echo said; exit {code}", terminal=terminal) as run:
        assert run.code() == code
    assert run.seen.replace(b"\r", b"").endswith(b"said\n")
    assert b"broke" not in run.seen


def beside(run: AttachedCommand) -> list[psutil.Process]:
    """The process beside docker."""
    return psutil.Process(run.process.pid).children()


def test_the_process_beside_docker_ends_with_it_and_leaves_nothing(daemon: DaemonProcess) -> None:
    """However docker ends: it is the same process as before, so signals reach it as they always did."""
    with attached(daemon, "sh", "-c", SILENT, terminal=False) as run:
        run.until(b"up\n")
        (helper,) = beside(run)
        assert list(daemon.directory.glob("gpushare-run-*"))
        run.process.kill()
        assert run.process.wait(SECONDS) == -signal.SIGKILL
        helper.wait(SECONDS)
    assert not list(daemon.directory.glob("gpushare-run-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_program_once(daemon: DaemonProcess, number: signal.Signals) -> None:
    """Also where the whole group gets it, as from `timeout` or a shell."""
    name = number.name.removeprefix("SIG")
    trap = f'trap "echo got" {name}; trap "exit 9" USR1; echo up; while :; do sleep 0.1; done'
    with attached(daemon, "sh", "-c", trap, terminal=False) as run:
        run.until(b"up\n")
        os.killpg(run.process.pid, number)
        run.until(b"got\n")
        os.killpg(run.process.pid, signal.SIGUSR1)
        assert run.code() == 9
    assert run.seen.count(b"got\n") == 1
