"""Serve ``GET /metrics`` on TCP, and nothing else there: few connections, short heads, no wait for idle ones."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import NotFound
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import (
    Exchange,
    Limits,
    MetricsHandler,
    Routes,
    WebReply,
    WebRequest,
    serve_http,
)
from gpushared.net.moving_listener import ListenPlace, MovingListener, listen_tcp, tcp_words

log = logging.getLogger(__name__)

PART = "metrics"
MAX_CONNECTIONS = 16
BUSY_SECONDS = 10.0
"""A connection whose page was asked for so recently is not closed for another; Prometheus gives up after as long."""
FRESH_SECONDS = 1.0
LIMITS = Limits(head_bytes=8 * 1024, head_seconds=5.0, idle_seconds=90.0, body_seconds=5.0)
"""Prometheus keeps its connection between two scrapes, which are seldom more than a minute apart."""
SCRAPER = Caller(-1, -1, "metrics")


class KeptPages:
    """Keep each page for a moment: a page takes long to make, and any client may ask for it again and again."""

    def __init__(self) -> None:
        self._pages: dict[Hashable, tuple[float, WebReply]] = {}

    def page(self, key: Hashable, make: Callable[[], WebReply]) -> WebReply:
        """Return the page that is kept under the key, or else the one that ``make`` returns."""
        oldest = time.monotonic() - FRESH_SECONDS
        self._pages = {other: entry for other, entry in self._pages.items() if entry[0] > oldest}
        if key not in self._pages:
            self._pages[key] = time.monotonic(), make()
        return self._pages[key][1]


@dataclass(slots=True)
class _Connection:
    peer: str
    busy_until: float = 0.0
    task: asyncio.Task[None] | None = None


class MetricsListener:
    """Listen at the address that ``address`` returns now, or nowhere if that is None.

    An address that cannot be had raises a trouble, and is tried again.
    """

    def __init__(
        self, address: Callable[[], tuple[str, int] | None], page: MetricsHandler, troubles: Troubles
    ) -> None:
        listen_place = ListenPlace(
            PART, "metrics", address, partial(listen_tcp, backlog=MAX_CONNECTIONS), tcp_words
        )
        self._listener = MovingListener(listen_place, self._arrived, troubles, _log_address)
        self._page = page
        self._routes = Routes(_no_call, _no_path, json_prefix=b"\n")
        self._tasks = TaskSet("a scrape failed")
        self._open: dict[socket.socket, _Connection] = {}

    def reload(self) -> None:
        """Ask for the address again."""
        self._listener.reload()

    async def run(self) -> None:
        """Serve for ever."""
        try:
            await self._listener.run()
        finally:
            await self._tasks.cancel()

    def _arrived(self, sock: socket.socket) -> None:
        """Serve a connection. Of too many an idle one is closed, if possible of the same peer, else this one."""
        connection = _Connection(_peer_of(sock))
        if len(self._open) >= MAX_CONNECTIONS and not self._close_idle(connection.peer):
            sock.close()
            return
        self._open[sock] = connection
        connection.task = self._tasks.start(
            self._serve_connection(sock, connection), partial(self._ended, sock)
        )

    def _close_idle(self, peer: str) -> bool:
        now = time.monotonic()
        idle = [sock for sock, connection in self._open.items() if connection.busy_until <= now]
        if not idle:
            return False
        task = self._open.pop(min(idle, key=lambda sock: self._open[sock].peer != peer)).task
        assert task is not None, "it is open"
        task.cancel()
        return True

    def _ended(self, sock: socket.socket) -> None:
        self._open.pop(sock, None)
        sock.close()

    async def _serve_connection(self, sock: socket.socket, connection: _Connection) -> None:
        routes = replace(self._routes, metrics=partial(self._page_for, connection))
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
            await serve_http(reader, writer, SCRAPER, routes, limits=LIMITS)
        except OSError as error:
            log.debug("scrape lost: %s", error)

    def _page_for(self, connection: _Connection, caller: Caller, accept: str) -> WebReply:
        connection.busy_until = time.monotonic() + BUSY_SECONDS
        return self._page(caller, accept)


def _peer_of(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:  # it is gone already
        return ""


def _log_address(address: tuple[str, int]) -> None:
    log.info("serving metrics address=%s port=%d", *address)


async def _no_call(_: WebRequest) -> WebReply:
    raise NotFound("only metrics are served here", hint="GET /metrics")


async def _no_path(_: Exchange) -> None:
    raise NotFound("only metrics are served here", hint="GET /metrics")
