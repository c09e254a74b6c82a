"""What processes make of signals, as the kernel tells it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushared.domain.leases.stop_order import ClientStopOrder, ContainerEnd, order_of
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.processes import members, read_process

CATCHES = "signal.signal(signal.SIGTERM, lambda *_: None)"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
BLOCKS = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
NOTHING = ""
TERM = 1 << (signal.SIGTERM - 1)


@contextmanager
def running(body: str) -> Iterator[int]:
    """A Python program that has done this and waits; its PID."""
    code = f"import signal, subprocess, sys\n{body}\nprint('ready', flush=True)\nsys.stdin.read()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    ("body", "caught", "ignored", "blocked"),
    [
        (CATCHES, True, False, False),
        (IGNORES, False, True, False),
        (BLOCKS, False, False, True),
        (NOTHING, False, False, False),
    ],
    ids=["catches", "ignores", "blocks", "nothing"],
)
def test_what_a_program_makes_of_a_signal_is_read(
    body: str, caught: bool, ignored: bool, blocked: bool
) -> None:
    with running(body) as pid:
        found = read_process(pid)
    assert found is not None
    assert (bool(found.caught & TERM), bool(found.ignored & TERM), bool(found.blocked & TERM)) == (
        caught,
        ignored,
        blocked,
    )
    assert not found.first


def test_a_program_behind_an_init_is_read_too() -> None:
    child = f"import signal,sys; {CATCHES}; print('up', flush=True); sys.stdin.read()"
    body = (
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, "
        f"stdout=subprocess.PIPE)\nc.stdout.readline()\n{BLOCKS}"
    )
    with running(body) as pid:
        found = read_process(pid)
    assert found is not None
    assert order_of(ContainerEnd(signal.SIGTERM, 10), found) is ClientStopOrder.CLIENTS_LAST


def test_a_process_that_has_ended_tells_nothing() -> None:
    with running(NOTHING) as pid:
        pass
    assert read_process(pid) is None


def test_a_containers_processes_are_found_by_their_cgroups(tmp_path: Path) -> None:
    ours, other = ContainerId("a" * 64), ContainerId("b" * 64)
    stat = f"1 (x) {'0 ' * 30}"
    for pid, container in ((11, ours), (12, ours), (13, other), (14, None)):
        directory = tmp_path / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(stat)
        (directory / "cgroup").write_text(f"0::/docker/{container}\n" if container else "0::/user.slice\n")
    (tmp_path / "self").mkdir()
    assert members(ours, tmp_path) == {11, 12}
    assert members(ContainerId("c" * 64), tmp_path) == frozenset()


def test_what_is_no_status_is_no_process(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "status").write_text("Name:\tx\n")
    assert read_process(5, tmp_path) is None
