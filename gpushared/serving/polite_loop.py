"""An event loop that lets the process's threads work however busy it is.

A loop that has something to do in each pass asks the kernel what is ready without waiting, and so gives
CPython's lock up for an instant only: a thread that waits for the lock is woken, finds it taken again, and
sleeps on. Nor does it ask for the lock after the usual 5 ms, for it was woken in between (`take_gil` in
CPython's Python/ceval_gil.c). Whoever keeps the loop busy would hold up all that others have done by threads.
"""

from __future__ import annotations

import asyncio
import selectors
import time

BUSY_SECONDS = 0.002
"""So long the loop may go without waiting;"""
REST_SECONDS = 0.00005
"""then it waits this long: a thread of another core needs about half of it to wake up."""


class PoliteSelector(selectors.EpollSelector):
    """Waits a little in its `select` where it has not waited for long."""

    def __init__(self) -> None:
        super().__init__()
        self._waited_at = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        begin = time.monotonic()
        if begin - self._waited_at >= BUSY_SECONDS:
            time.sleep(REST_SECONDS)
            self._waited_at = begin = time.monotonic()
        ready = super().select(timeout)
        end = time.monotonic()
        if end - begin >= REST_SECONDS:
            self._waited_at = end
        return ready


def new_polite_loop() -> asyncio.AbstractEventLoop:
    """For ``asyncio.Runner``."""
    return asyncio.SelectorEventLoop(PoliteSelector())
