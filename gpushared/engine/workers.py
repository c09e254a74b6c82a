"""Open clients of the Docker SDK, and make their blocking calls on a few daemon threads.

``concurrent.futures`` would do, but joins its threads when the interpreter ends: a ``stop`` with ten minutes
of grace, or an engine that hangs, would then keep the daemon from ending. These threads just end with the
daemon. Threads are started when needed and end, with their client, after a while without work.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException

from gpushared.domain.model.errors import EngineGone, EngineUnavailable, GpushareError, TimedOut

OLDEST_API_VERSION = "1.41"
UNIX_SCHEME = "unix://"
START_HINT = "start the engine, for example with `systemctl start docker`, or configure another socket"
ACCESS_HINT = "run the daemon as root or as a member of the group that owns the socket"
HANG_HINT = "look into the engine's log, for example with `journalctl -u docker`; it is asked again"
T = TypeVar("T")
Work = Callable[[APIClient], T]

ENDED_ERRNOS = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)
BROKEN_OFF = (http.client.RemoteDisconnected, http.client.IncompleteRead, urllib3.exceptions.ProtocolError)
"""An engine that ends closes its connections without an answer, or within one."""
WAITING_LIMIT = 1000
IDLE_SECONDS = 60.0
CLOSED = "the connection to the Docker engine is closed"


class Connector:
    """Open clients for one engine.

    ``generation`` grows whenever the engine was lost: clients of an older generation must not be used any
    more, because the engine that comes back may be another version that speaks another API version.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url if "://" in url else UNIX_SCHEME + url
        self.timeout_seconds = timeout_seconds
        self.generation = 0

    @property
    def address(self) -> str:
        """Return the engine's place as people write it: a path, or the URL of anything but a unix socket."""
        return self.url.removeprefix(UNIX_SCHEME)

    def dial(self) -> None:
        """Raise ``OSError`` if nothing listens; the SDK would leave a socket open behind its own error."""
        if self.url.startswith(UNIX_SCHEME):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(self.timeout_seconds)
                probe.connect(self.address)

    def open(self) -> APIClient:
        """Return a client that speaks the engine's API version.

        This calls the engine, so it may raise as every call may.
        """
        self.dial()
        # The SDK can find the version by itself, but when that fails nothing closes the half-made client.
        with self._client(OLDEST_API_VERSION) as scout:
            answer = scout.version(api_version=False)
        version = answer.get("ApiVersion") if isinstance(answer, dict) else None
        if not isinstance(version, str):
            raise EngineUnavailable(f"what answers on {self.address} is no Docker engine", hint=START_HINT)
        return self._client(version)

    def _client(self, api_version: str) -> APIClient:
        # The stubs require whole seconds; the SDK passes the figure on to the socket, which takes fractions.
        client = APIClient(self.url, version=api_version, timeout=self.timeout_seconds)  # type: ignore[arg-type]
        client.trust_env = False  # otherwise requests looks for proxies and a .netrc before each call
        return client

    @contextmanager
    def translated(self, action: str) -> Iterator[None]:
        """Raise errors of ours only, and start a new generation of clients when the engine was lost."""
        try:
            yield
        except (OSError, DockerException) as error:  # requests derives its own from OSError
            self.generation += 1
            raise self._translation(error, action) from error

    def timed_out(self, action: str, seconds: float) -> TimedOut:
        return TimedOut(
            f"the Docker engine on {self.address} did not {action} within {seconds:g} s", hint=HANG_HINT
        )

    def _translation(self, error: BaseException, action: str) -> GpushareError:
        for cause in _causes(error):
            if isinstance(cause, requests.Timeout | TimeoutError):
                return self.timed_out(action, self.timeout_seconds)
            if isinstance(cause, APIError):
                text = cause.explanation or str(cause)
                return EngineUnavailable(f"the Docker engine on {self.address} could not {action}: {text}")
            if isinstance(cause, OSError) and cause.errno is not None:
                hint = ACCESS_HINT if isinstance(cause, PermissionError) else START_HINT
                reason = cause.strerror or str(cause)
                kind = EngineGone if cause.errno in ENDED_ERRNOS else EngineUnavailable
                return kind(f"no Docker engine answers on {self.address}: {reason}", hint=hint)
        *_, deepest = causes = list(_causes(error))
        kind = EngineGone if any(isinstance(cause, BROKEN_OFF) for cause in causes) else EngineUnavailable
        return kind(f"lost the Docker engine on {self.address}: {deepest}", hint=START_HINT)


def unknown_words(verb: str, error: Exception) -> EngineUnavailable:
    """Return the error for an answer that gpushared cannot read; ``verb`` says what the engine did."""
    return EngineUnavailable(
        f"the Docker engine {verb} in unknown words: {error!r}",
        hint=f"gpushared needs a Docker engine with API {OLDEST_API_VERSION} or later",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors inside: its cause, its context, or (urllib3's way) its arguments."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = (current.__cause__, current.__context__, *current.args)
        pending.extend(inner for inner in wrapped if isinstance(inner, BaseException))


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

    async def call(self, action: str, work: Work[T], timeout_seconds: float) -> T:
        """Return the work's result, or raise an error of ours.

        The error is ``TimedOut`` also if no thread was free in time.
        """
        job = _EngineCall(action, work)
        self._submit(job)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise self._connector.timed_out(action, timeout_seconds) from None

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

    def __init__(self, action: str, work: Work[T]) -> None:
        self._action = action
        self._work = work
        self.future: Future[T] = Future()

    def run(self, client: _Client, connector: Connector) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            with connector.translated(self._action):
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
