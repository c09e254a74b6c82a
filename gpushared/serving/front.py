"""The door: one public unix socket for gRPC, unary JSON and the Docker API.

Each connection's caller is read from the kernel (SO_PEERCRED). HTTP/2 is passed on, byte by byte, to the
gRPC server's inner socket, from a socket whose abstract name says who the caller is: grpcio does not tell
peer credentials, but it does tell the peer's socket name, and only this process can reach the inner socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpushared.audit.line import Origin
from gpushared.domain.errors import ConfigError, LimitReached
from gpushared.gate.answers import http_status
from gpushared.gate.ends import linger
from gpushared.gate.http import Routes, serve_http
from gpushared.gate.limits import Share
from gpushared.gate.refusals import Refusal
from gpushared.serving.doors import peer_name
from gpushared.serving.identity import Identities, Peer, origin_of, peer_of

log = logging.getLogger(__name__)

HTTP2 = b"PRI"
"""How the connection preface of HTTP/2 begins (RFC 9113, 3.4); no HTTP/1.1 method is called so."""
FIRST_BYTES_SECONDS = 30.0
COPY_BYTES = 64 * 1024
NUMBER_BITS = 63
BACKLOG = 1024


class Front:
    """Accepts, asks who it is, and hands over."""

    def __init__(self, inner_socket: Path, identities: Identities, routes: Routes) -> None:
        self.secret = secrets.token_hex(8)
        self._inner_socket = inner_socket
        self._identities = identities
        self._routes = routes
        self.origins: dict[int, Origin] = {}
        """The processes behind the connections that are passed on to gRPC, by their numbers."""
        # asyncio keeps only weak references to the tasks of connections.
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections as long as the block runs."""
        server = await asyncio.start_unix_server(self._accepted, sock=listener, backlog=BACKLOG)
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection failed", exc_info=error)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sock = writer.get_extra_info("socket")
            peer = peer_of(sock)
            with self._routes.shares.of(peer.uid).connection():
                await self._serve(reader, writer, peer, origin_of(sock, peer))
        except LimitReached as error:
            refusal = Refusal(b"", b"", http_status(error), error.message)
            self._routes.refused(refusal, await self._identities.caller(peer), Origin(peer.pid))
            writer.write(_too_many(error))  # HTTP/2 has no word for it: there the connection just ends
            await linger(reader, writer)
        except OSError as error:
            log.debug("connection lost: %s", error)
        finally:
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, origin: Origin
    ) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                prefix = await reader.readexactly(len(HTTP2))
        except (TimeoutError, asyncio.IncompleteReadError):
            return
        if prefix == HTTP2:
            # Names stand in /proc/net/unix for everybody: who foresaw the next one could take it first.
            number = secrets.randbits(NUMBER_BITS)
            self.origins[number] = origin
            try:
                inner = await self._connect_as(peer, number)
                await self._splice(reader, writer, inner, prefix, self._routes.shares.of(peer.uid))
            finally:
                del self.origins[number]
        else:
            caller = await self._identities.caller(peer)
            await serve_http(reader, writer, caller, self._routes, prefix=prefix, origin=origin)

    async def _splice(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner: socket.socket,
        prefix: bytes,
        share: Share,
    ) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner)
        inner_writer.write(prefix)
        ways = [
            asyncio.create_task(_copy(reader, inner_writer, share)),
            asyncio.create_task(_copy(inner_reader, writer, share)),
        ]
        try:
            # HTTP/2 has no half-closed connections: when one way ends, so does the other.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner_writer.close()

    async def _connect_as(self, peer: Peer, number: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.bind("\0" + peer_name(self.secret, number, peer))
            await asyncio.get_running_loop().sock_connect(sock, str(self._inner_socket))
        except BaseException:
            sock.close()
            raise
        return sock


def _too_many(error: LimitReached) -> bytes:
    """The answer to a client of whom nothing was read; both kinds of clients understand it."""
    words = {"code": error.code, "message": error.message, "details": [{"hint": error.hint}]}
    body = json.dumps(words).encode()
    head = b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: Share) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(COPY_BYTES):
            await share.turn()
            writer.write(data)
            await writer.drain()


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at ``path``; one that a dead daemon left there is replaced, a live one is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        if _answers(path):
            raise ConfigError(
                f"another gpushared serves {path}", hint="stop it, or choose another --runtime-dir"
            )
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(path))
        os.chmod(path, mode)  # noqa: PTH101 - the socket's own path, right after bind
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{path} cannot be listened on: {error.strerror}", hint="is it too long?"
        ) from error
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
