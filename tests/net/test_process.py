"""A busy event loop, and what threads get done beside it."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from gpushared.daemon.process import new_polite_loop

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
