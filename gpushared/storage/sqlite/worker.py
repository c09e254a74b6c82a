"""Run one job after another on one thread, with a bound on the waiting jobs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Run a daemon thread behind a bounded queue.

    The standard executor is not used because its queue has no bound and because it waits for a hung call when
    the interpreter ends.
    """

    def __init__(self, name: str, *, limit: int) -> None:
        # Any: each future has the type of its own work; submit() gives it back to the caller.
        self._jobs: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue(limit)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue a job. Raises ``queue.Full`` at once if ``limit`` jobs wait already."""
        future: Future[T] = Future()
        self._jobs.put_nowait((future, work))
        return future

    def finish(self) -> None:
        """Let the thread end after the queued jobs; does not wait. Raises ``queue.Full``."""
        self._jobs.put_nowait(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the future carries it to the caller
                future.set_exception(error)
