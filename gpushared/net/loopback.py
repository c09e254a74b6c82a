"""Open the daemon's own HTTP server from inside: a connection as a given caller, past the public socket.

The daemon's work for a user (a job's container, a tunnel from another node, logs) goes through the same gate
as the user's own connections, with the same checks. Each connection is a pair of unix sockets, so that
backpressure, half-closes and hang-ups are the kernel's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.model.errors import LimitReached, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.net.http_client import EngineConnection, EngineSocket
from gpushared.net.http_server import Routes, is_here, serve_http
from gpushared.storage.audit.line import Origin

log = logging.getLogger(__name__)

MAX_CONNECTIONS_PER_USER = 1024
SOCKET_BYTES = 1 << 20
"""Let this many bytes be on their way to the client, if the system allows it: this makes larger reads."""
NAME = "the node's own gate"


class LoopbackGate:
    """Open connections from inside. Before ``serve``, which needs the routes, all are refused."""

    def __init__(self) -> None:
        self._routes: Routes | None = None
        self._open: Counter[int] = Counter()
        self._tasks = TaskSet("an inner connection failed")

    def serve(self, routes: Routes) -> None:
        """Serve connections by these routes from now on."""
        self._routes = routes

    async def open_as(self, caller: Caller) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the client's end of a new connection as streams. Raises LimitReached, Unavailable."""
        return await asyncio.open_unix_connection(sock=self.socket_as(caller))

    def socket_as(self, caller: Caller, is_away: Callable[[], bool] = is_here) -> socket.socket:
        """Return the client's end as a bare socket that does not block; the caller closes it.

        ``is_away`` returns True if the client behind the socket seems to be gone.
        """
        if self._routes is None:
            raise Unavailable("the daemon does not serve yet", hint="try again in a moment")
        if self._open[caller.uid] >= MAX_CONNECTIONS_PER_USER:
            raise LimitReached(
                f"{caller.name} has {MAX_CONNECTIONS_PER_USER} connections to the daemon already",
                hint="each attached client holds one",
            )
        server_end, client_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        server_end.setblocking(False)
        client_end.setblocking(False)
        with contextlib.suppress(OSError):
            server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._open[caller.uid] += 1
        self._tasks.start(
            _serve(server_end, caller, self._routes, is_away),
            over=partial(self._finished, server_end, caller),
        )
        return client_end

    def gate_as(self, caller: Caller) -> EngineSocket:
        """Return the gate as a Docker engine for this caller, with one connection a call."""
        return _GateAs(self, caller)

    async def close(self) -> None:
        """End all connections, and refuse new ones."""
        self._routes = None
        await self._tasks.cancel()

    def _finished(self, sock: socket.socket, caller: Caller) -> None:
        sock.close()
        self._open[caller.uid] -= 1
        if not self._open[caller.uid]:
            del self._open[caller.uid]


async def _serve(sock: socket.socket, caller: Caller, routes: Routes, is_away: Callable[[], bool]) -> None:
    origin = Origin(os.getpid(), sys.executable)
    try:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        await serve_http(reader, writer, caller, routes, origin=origin, is_away=is_away)
    except OSError as error:
        log.debug("inner connection lost: %s", error)


class _GateAs(EngineSocket):
    def __init__(self, loopback_gate: LoopbackGate, caller: Caller) -> None:
        super().__init__(NAME)
        self._loopback_gate = loopback_gate
        self._caller = caller

    async def connect(self) -> EngineConnection:
        return EngineConnection(self._loopback_gate.socket_as(self._caller), self.path)
