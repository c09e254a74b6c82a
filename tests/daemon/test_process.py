"""A daemon's loop lets its threads work, and its lines reach journald."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpushared.daemon.process import new_polite_loop
from gpushared.daemon.systemd import Journald, encoded

CALLS = 50
PASS_SECONDS = 0.0001
MOST_PASSES = 2000
"""asyncio's own loop takes some tens of thousands for as many calls, or never lets the thread end."""


def test_a_thread_gets_its_work_done_beside_a_loop_that_never_waits() -> None:
    done = threading.Event()

    def work() -> None:
        for _ in range(CALLS):
            os.stat("/")  # noqa: PTH116 - one call that gives CPython's lock up, and nothing else
        done.set()

    async def be_busy() -> int:
        passes = 0
        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set() and passes < MOST_PASSES:
            until = time.perf_counter() + PASS_SECONDS
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)
            passes += 1
        await asyncio.to_thread(thread.join)
        return passes

    with asyncio.Runner(loop_factory=new_polite_loop) as runner:
        assert runner.run(be_busy()) < MOST_PASSES


def test_timers_signals_and_children_are_as_with_any_loop() -> None:
    async def live() -> tuple[int, bytes]:
        await asyncio.sleep(0.01)
        process = await asyncio.create_subprocess_exec("echo", "said", stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        return process.returncode or 0, said

    with asyncio.Runner(loop_factory=new_polite_loop) as runner:
        assert runner.run(live()) == (0, b"said\n")


def test_an_entry_is_written_as_journald_reads_it() -> None:
    """Values with line breaks go with their length: nobody adds fields by what he is called."""
    entry = encoded({"MESSAGE": "one\nGPUSHARE_UID=0", "GPUSHARE_UID": "1000"})
    assert entry == b"MESSAGE\n\x12\0\0\0\0\0\0\0one\nGPUSHARE_UID=0\nGPUSHARE_UID=1000\n"


LOGS = """
import logging
from gpushared.config.model import LogConfig
from gpushared.daemon.process import set_up_logging
set_up_logging(LogConfig())
logging.getLogger("x").warning("here")
"""


@pytest.mark.parametrize(("adds_time", "prefix"), [(True, ""), (False, "[0-9-]+ [0-9:,]+ ")])
def test_a_log_line_has_the_time_unless_journald_adds_it(
    tmp_path: Path, adds_time: bool, prefix: str
) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        status = os.fstat(stderr.fileno())
        stream = f"{status.st_dev}:{status.st_ino}" if adds_time else ""
        environment = os.environ | {"JOURNAL_STREAM": stream}
        subprocess.run([sys.executable, "-c", LOGS], stderr=stderr, env=environment, check=True)
    assert re.fullmatch(prefix + "WARNING x: here\n", log.read_text())


def test_a_line_is_there_at_once_or_refused_at_once(tmp_path: Path) -> None:
    """A journald that is away, or takes no more, holds nobody up."""
    path = tmp_path / "socket"
    sender = Journald(path)
    assert not sender.send({"MESSAGE": "away"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(path))
        sent = 0
        while sender.send({"MESSAGE": str(sent)}):
            sent += 1
        assert sent > 0
        assert journald.recv(100) == b"MESSAGE=0\n"
        assert sender.send({"MESSAGE": "room again"})
    sender.close()
