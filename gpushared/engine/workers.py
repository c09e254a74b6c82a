"""Make the SDK's blocking calls on a few daemon threads, each with a client of its own.

``concurrent.futures`` would do, but joins its threads when the interpreter ends: a ``stop`` with ten minutes
of grace, or an engine that hangs, would then keep the daemon from ending. These threads just go with the
daemon. Threads are started when needed and end, with their client, when there was nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from docker import APIClient

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.engine.connection import Connector

T = TypeVar("T")
Work = Callable[[APIClient], T]

WAITING_LIMIT = 1000
IDLE_SECONDS = 60.0
CLOSED = "the connection to the Docker engine is closed"


class Workers:
    """Run at most ``limit`` threads; at most ``WAITING_LIMIT`` calls wait for one of them."""

    def __init__(self, connector: Connector, name: str, limit: int) -> None:
        self._connector = connector
        self._name = name
        self._limit = limit
        self._jobs: deque[_EngineCall[Any]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._closed = False

    async def call(self, what: str, work: Work[T], timeout_seconds: float) -> T:
        """Return the work's result, or raise an error of ours.

        The error is ``TimedOut`` also if no thread was free in time.
        """
        job = _EngineCall(what, work)
        self._submit(job)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise self._connector.timed_out(what, timeout_seconds) from None

    def close(self) -> None:
        """End idle threads now, busy ones after their call; calls that still wait for a thread fail."""
        with self._changed:
            self._closed = True
            waiting, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in waiting:
            job.refuse(EngineUnavailable(CLOSED))

    def _submit(self, job: _EngineCall[T]) -> None:
        with self._changed:
            if self._closed:
                raise EngineUnavailable(CLOSED)
            if len(self._jobs) >= WAITING_LIMIT:
                raise EngineUnavailable(f"{WAITING_LIMIT} calls already wait for the Docker engine")
            self._jobs.append(job)
            if self._idle < len(self._jobs) and self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            else:
                self._changed.notify()

    def _run(self) -> None:
        client = _Client(self._connector)
        while job := self._next():
            job.run(client, self._connector)
        client.close()

    def _next(self) -> _EngineCall[Any] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed, timeout=IDLE_SECONDS)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads -= 1
            return None


class _EngineCall(Generic[T]):
    """Hold a call and its result. A caller that gave up before the call began has cancelled it."""

    def __init__(self, what: str, work: Work[T]) -> None:
        self._what = what
        self._work = work
        self.future: Future[T] = Future()

    def run(self, client: _Client, connector: Connector) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            with connector.translated(self._what):
                self.future.set_result(self._work(client.get()))
        except BaseException as error:  # noqa: BLE001 - belongs to whoever awaits the call
            self.future.set_exception(error)

    def refuse(self, error: EngineUnavailable) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class _Client:
    """Hold a thread's client: opened at first use, and anew after the engine was lost."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._client: APIClient | None = None
        self._generation = -1

    def get(self) -> APIClient:
        if self._client is None or self._generation != self._connector.generation:
            self.close()
            self._generation = self._connector.generation
            self._client = self._connector.open()
        else:
            self._connector.dial()
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
