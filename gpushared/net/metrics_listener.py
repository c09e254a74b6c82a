"""Serve ``GET /metrics`` on TCP, and nothing else there: few connections, short heads, no wait for idle ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial

from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import NotFound
from gpushared.domain.model.request import Caller
from gpushared.net.front import Acceptor
from gpushared.net.http_server import (
    Exchange,
    Limits,
    MetricsHandler,
    Routes,
    WebReply,
    WebRequest,
    serve_http,
)

log = logging.getLogger(__name__)

PART = "metrics"
RETRY_SECONDS = 10.0
MAX_CONNECTIONS = 16
LIMITS = Limits(head_bytes=8 * 1024, head_seconds=5.0, idle_seconds=90.0, body_seconds=5.0)
"""Prometheus keeps its connection between two scrapes, which are seldom more than a minute apart."""
SCRAPER = Caller(-1, -1, "metrics")


class MetricsListener:
    """Listen at the address that ``address`` returns now, or nowhere if that is None.

    An address that cannot be had raises a trouble, and is tried again.
    """

    def __init__(
        self, address: Callable[[], tuple[str, int] | None], page: MetricsHandler, troubles: Troubles
    ) -> None:
        self._address = address
        self._troubles = troubles
        self._routes = Routes(_no_call, _no_path, json_prefix=b"\n", metrics=page)
        self._tasks = TaskSet("a scrape failed")
        self._open: dict[socket.socket, asyncio.Task[None]] = {}
        self._reloaded = asyncio.Event()

    def reload(self) -> None:
        """Ask for the address again."""
        self._reloaded.set()

    async def run(self) -> None:
        """Serve for ever."""
        try:
            while True:
                self._reloaded.clear()
                await self._serve(self._address())
        finally:
            await self._tasks.cancel()

    async def _serve(self, address: tuple[str, int] | None) -> None:
        """Serve at an address until another one is wanted; return after a pause if it cannot be had."""
        if address is None:
            self._troubles.cleared(PART)
            await self._reloaded.wait()
            return
        try:
            listener = _listen(address)
        except OSError as error:
            where = f"{address[0]} port {address[1]}"
            self._troubles.raised(PART, f"metrics cannot be served at {where}: {error.strerror}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._reloaded.wait()
            return
        self._troubles.cleared(PART)
        log.info("serving metrics address=%s port=%d", *address)
        with Acceptor(listener, self._arrived).running():
            while self._address() == address:
                self._reloaded.clear()
                await self._reloaded.wait()

    def _arrived(self, sock: socket.socket) -> None:
        """Serve a connection; of too many the oldest goes, so that idle ones cannot keep a scraper out."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._open.pop(next(iter(self._open))).cancel()
        self._open[sock] = self._tasks.start(self._converse(sock), partial(self._ended, sock))

    def _ended(self, sock: socket.socket) -> None:
        self._open.pop(sock, None)
        sock.close()

    async def _converse(self, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
            await serve_http(reader, writer, SCRAPER, self._routes, limits=LIMITS)
        except OSError as error:
            log.debug("scrape lost: %s", error)


def _listen(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=MAX_CONNECTIONS)


async def _no_call(_: WebRequest) -> WebReply:
    raise NotFound("only metrics are served here", hint="GET /metrics")


async def _no_path(_: Exchange) -> None:
    raise NotFound("only metrics are served here", hint="GET /metrics")
