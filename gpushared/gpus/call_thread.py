"""Make blocking calls on one thread of their own, so that a driver that hangs blocks nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushared.daemon.troubles import answer_with
from gpushared.domain.model.errors import GpusUnavailable, TimedOut

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _DriverCall:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]
    even_unawaited: bool = False


class CallThread:
    """Make blocking calls in order on one daemon thread; each is awaited for a limited time.

    A call into a driver cannot be interrupted. So when one does not return in time, its caller gets
    ``TimedOut``, and later callers get ``GpusUnavailable`` at once until the thread is back; then calls are
    served again. A daemon thread never delays the exit of the process, as the threads of
    ``concurrent.futures`` would.
    """

    def __init__(self, subject: str, *, timeout_seconds: float, max_waiting: int = 16) -> None:
        """Take ``subject``, which begins the sentences of the errors, such as "The NVIDIA driver"."""
        self._subject = subject
        self._timeout_seconds = timeout_seconds
        self._max_waiting = max_waiting
        # The queue has room for two calls more than callers may make, so that close() always finds room.
        self._jobs: queue.Queue[_DriverCall | None] = queue.Queue(max_waiting + 2)
        self._thread: threading.Thread | None = None
        self._closed = False
        # The thread writes this: the job that it is busy with.
        self._running: _DriverCall | None = None
        # The event loop writes this: the job that ran when a caller's time was over.
        self._overdue: _DriverCall | None = None

    async def call(self, work: Callable[[], T]) -> T:
        """Return or raise the result of ``work``. Errors of its own: ``TimedOut``, ``GpusUnavailable``."""
        self._refuse_unless_ready()
        result: T = await self._wait(self._enqueue(work))
        return result

    async def close(self, last: Callable[[], None]) -> None:
        """Do ``last`` on the thread and end it; if the thread hangs, both happen once it is back."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            return
        answer = self._enqueue(last, even_unawaited=True)
        self._jobs.put_nowait(None)
        if not self._hangs():
            with contextlib.suppress(TimedOut):
                await self._wait(answer)

    def _refuse_unless_ready(self) -> None:
        if self._closed:
            raise GpusUnavailable("The GPUs are closed", hint="the daemon is stopping")
        if self._hangs():
            raise GpusUnavailable(
                f"{self._subject} hangs: an earlier call has not come back yet",
                hint="calls are served again once it does; `dmesg` may tell why (NVRM, Xid)",
            )
        if self._jobs.qsize() >= self._max_waiting:
            raise GpusUnavailable(
                f"{self._subject} is slow: {self._max_waiting} calls wait for it already",
                hint="try again in a few seconds",
            )

    def _hangs(self) -> bool:
        return self._overdue is not None and self._overdue is self._running

    def _enqueue(self, work: Callable[[], Any], *, even_unawaited: bool = False) -> asyncio.Future[Any]:
        job = _DriverCall(work, asyncio.get_running_loop().create_future(), even_unawaited)
        self._jobs.put_nowait(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpus", daemon=True)
            self._thread.start()
        return job.answer

    async def _wait(self, answer: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except TimeoutError:
            self._overdue = self._running
            raise TimedOut(
                f"{self._subject} did not answer within {self._timeout_seconds:g} s",
                hint="it may hang; `dmesg` may tell why (NVRM, Xid)",
            ) from None

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._running = job
            if job.even_unawaited or not job.answer.cancelled():
                answer_with(job.work, job.answer)
            self._running = None
