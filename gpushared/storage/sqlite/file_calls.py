"""Call a file that a separate thread owns, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gpushared.domain.model.errors import TimedOut, Unavailable
from gpushared.storage.sqlite.file import FileTexts

T = TypeVar("T")

MAX_WAITING_CALLS = 256
MAX_READS = 64
"""Let this many reads wait in the thread's queue; others wait before it, so that a flood leaves room for
commits."""


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
        """Let the thread end after the queued jobs, without waiting. Raises ``queue.Full``."""
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


class Calls:
    """Offer a file's methods as coroutines.

    ``open_seconds`` bounds the first call, if that is more than ``timeout_seconds``.
    """

    def __init__(
        self, name: str, path: Path, texts: FileTexts, *, timeout_seconds: float, open_seconds: float = 0.0
    ) -> None:
        self._path = path
        self._texts = texts
        self._timeout_seconds = timeout_seconds
        self._open_seconds = open_seconds
        self._worker = Worker(name, limit=MAX_WAITING_CALLS)
        self._reads = asyncio.Semaphore(MAX_READS)
        self._answered = False
        self._closed = False

    async def _close(self, close: Callable[[], None]) -> None:
        """Finish the earlier calls, then release the file. Later calls are refused."""
        if self._closed:
            return
        self._closed = True
        await self._in_thread(close)
        # The queue is full if as many calls came back late as it holds; the daemon thread ends with the
        # process.
        with suppress(queue.Full):
            self._worker.finish()

    async def _read(self, work: Callable[[], T]) -> T:
        async with self._reads:
            return await self._call(work)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise self._texts.error(f"{self._texts.noun} is closed", hint="the daemon is stopping")
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            future = self._worker.submit(work)
        except queue.Full:
            raise self._too_slow(f"{MAX_WAITING_CALLS} calls wait for {self._texts.noun}") from None
        seconds = self._timeout_seconds if self._answered else max(self._open_seconds, self._timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                answer = await asyncio.wrap_future(future)
                self._answered = True
                return answer
        except TimeoutError:
            if future.cancel():
                raise self._too_slow(f"{self._texts.noun} is busy with an earlier call") from None
            raise TimedOut(
                f"{self._texts.noun} did not answer in {seconds:g} s", hint=self._disk_hint
            ) from None

    @property
    def _disk_hint(self) -> str:
        return f"is the disk of {self._path} healthy? see `dmesg`"

    def _too_slow(self, message: str) -> Unavailable:
        return self._texts.error(message, hint=self._disk_hint)
