"""Hold tasks that run beside the code that started them, and wait for events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class TaskSet:
    """Hold tasks until they end, because asyncio keeps only weak references to them.

    ``failed`` is logged with the error of a task, such as "a connection failed". Without it, errors are left
    to the code that awaits the tasks.
    """

    def __init__(self, failed: str = "") -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], over: Callable[[], None] = lambda: None) -> asyncio.Task[T]:
        """Start a task. ``over`` is called after its end, also if it was cancelled before it began."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, over))
        return task

    async def wait(self) -> None:
        """Wait until the tasks that are under way now have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _ended(self, over: Callable[[], None], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        over()
        if self._failed and not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s", self._failed, exc_info=error)


async def until_first_ends(*work: Coroutine[Any, Any, object]) -> None:
    """Run all until the first ends, then cancel the others and wait for them; errors of theirs are dropped."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def within(event: asyncio.Event, timeout_seconds: float) -> bool:
    """Wait for an event; return False if the time is over first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            return await event.wait()
    return False
