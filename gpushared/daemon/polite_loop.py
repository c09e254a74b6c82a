"""Run an event loop that lets the process's threads work however busy it is.

A loop that has work in each pass asks the kernel for ready files without waiting, and so gives CPython's lock
up for an instant only: a thread that waits for the lock is woken, finds it taken again, and sleeps on. Nor
does the thread ask for the lock after the usual 5 ms, for it was woken in between (`take_gil` in CPython's
Python/ceval_gil.c). A user that keeps the loop busy would hold up all work of others in threads.
"""

from __future__ import annotations

import asyncio
import selectors
import time

BUSY_SECONDS = 0.002
"""The loop may go so long without waiting."""
REST_SECONDS = 0.00005
"""Then the loop waits so long: a thread of another core needs about half of it to wake up."""


class PoliteSelector(selectors.EpollSelector):
    """Wait a little in `select` if the loop has not waited for long."""

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
    """Make the loop, for ``asyncio.Runner``."""
    return asyncio.SelectorEventLoop(PoliteSelector())
