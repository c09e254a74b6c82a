"""The live line on a real terminal (a pty)."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.answers import QUEUED, RESERVED
from tests.cli.process import GPUSHARE, Gpushare
from tests.cli.standin import Reply, StandIn, ok


class Terminal:
    """The other end of the terminal that the command sees."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self.shown = ""

    def read_until(self, words: str) -> str:
        while words not in self.shown:
            piece = self._read()
            assert piece, f"{words!r} never came: {self.shown!r}"
            self.shown += piece
        return self.shown

    def read_all(self) -> str:
        while piece := self._read():
            self.shown += piece
        return self.shown

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def close(self) -> None:
        """As a closed window, or a lost ssh connection."""
        if self._end >= 0:
            os.close(self._end)
        self._end = -1

    def _read(self) -> str:
        try:
            return os.read(self._end, 4096).decode()
        except OSError:  # EIO: the last process on the terminal is gone
            return ""


@contextmanager
def terminal(gpushare: Gpushare, *words: str, columns: int = 60) -> Iterator[Terminal]:
    """Starts the command as the foreground of a terminal of its own."""
    end, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        ["setsid", "--ctty", *GPUSHARE, *words],
        env=gpushare.environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=gpushare.folder,
    )
    os.close(theirs)
    screen = Terminal(process, end)
    try:
        yield screen
    finally:
        process.kill()
        process.wait()
        screen.close()


@pytest.fixture(autouse=True)
def queue(standin: StandIn, docker_recorder: Path) -> None:
    soon = time.time() + 12 * 60
    waiting = {**QUEUED["waiting"], "start_from": soon, "start_to": soon + 13 * 60}
    standin.answers["/images/busybox/json"] = ok({})
    standin.answers["Leases/Request"] = ok({**QUEUED, "waiting": waiting})
    standin.answers["Leases/Release"] = ok({})


LONG = (
    "needs 39.4 GiB and 0.5 of the compute on one GPU; best is GPU 0 with 31.5 GiB and 0.4 free "
    "(alice-with-a-long-name holds 47.3 GiB for at most 1h more)"
)
REWRITE = re.compile(r"\r(?:\x1b\[(\d+)A)?\x1b\[J")
"""How the lines are cleared that the next ones take the place of: up so many lines, and away."""


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_waiting_shows_state_and_start_and_then_the_whole_reason(
    gpushare: Gpushare, standin: StandIn, columns: int
) -> None:
    """The lines fit the terminal, are cleared at the grant, and leave one line of what was granted."""
    soon = time.time() + 12 * 60
    waiting = {**QUEUED["waiting"], "start_from": soon, "start_to": soon + 13 * 60, "text": LONG}
    standin.answers["Leases/Request"] = ok({**QUEUED, "waiting": waiting})
    standin.answers["Leases/Wait"] = [ok({**QUEUED, "waiting": waiting, "token": "t2"}), ok(RESERVED)]
    with terminal(gpushare, "run", "--gpu", "1", "busybox", columns=columns) as screen:
        shown = screen.read_all().replace("\r\n", "\n")
        assert screen.process.wait(60) == 7
    first, again, after = [part for part in REWRITE.split(shown)[::2] if part]
    state, *reason = first.split("\n")
    assert first == again
    assert state.startswith("gpushare: l-7f3k queued, position 3 of 5, start about ")
    assert state.endswith("(12-25 min)") or columns == 60
    assert f"why: {LONG}" in " ".join(line.strip() for line in reason)
    assert all(len(line) < columns for line in (state, *reason))
    above = str(first.count("\n"))
    assert REWRITE.findall(shown)[1:] == [above, above], "the lines before are cleared, and no others"
    assert after.startswith("gpushare: l-7f3k granted: ")
    assert after.count("\n") == 1


def test_ctrl_c_leaves_the_queue(gpushare: Gpushare, standin: StandIn) -> None:
    held = threading.Event()
    standin.answers["Leases/Wait"] = Reply(hold=held)
    with terminal(gpushare, "run", "busybox", columns=200) as screen:
        screen.read_until("why: needs 24 GiB")
        standin.wait_for("Leases/Wait")
        screen.type(b"\x03")
        shown = screen.read_all()
        assert screen.process.wait(60) == 130
    held.set()
    assert "left the queue (SIGINT)" in shown
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]


def test_a_closed_terminal_leaves_the_queue(gpushare: Gpushare, standin: StandIn) -> None:
    held = threading.Event()
    standin.answers["Leases/Wait"] = Reply(hold=held)
    with terminal(gpushare, "run", "busybox") as screen:
        standin.wait_for("Leases/Wait")
        screen.close()
        assert screen.process.wait(60) == 129
    held.set()
    assert standin.asked("Leases/Release") == [{"lease_id": "l-7f3k"}]


def test_ctrl_c_beside_a_result_file_goes_to_docker_alone(
    gpushare: Gpushare, standin: StandIn, tmp_path: Path
) -> None:
    """The terminal sends it to both; the parent stays to write the result."""
    standin.answers["Leases/Request"] = ok(RESERVED)
    standin.answers["Leases/Get"] = ok({**RESERVED, "state": "ended", "outcome": {"kind": "finished"}})
    (tmp_path / "script").write_text('trap "exit 42" INT\necho up\nwhile :; do sleep 0.05; done\n')
    with terminal(gpushare, "run", "--result-file", "r.json", "busybox") as screen:
        screen.read_until("up\r\n")
        screen.type(b"\x03")
        screen.read_all()
        assert screen.process.wait(60) == 42
    assert '"exit_code": 42' in (tmp_path / "r.json").read_text()
