"""Serve gRPC, unary JSON and the Docker API on one public unix socket.

The front reads each connection's caller from the kernel (SO_PEERCRED). It passes HTTP/2 on, byte by byte, to
the gRPC server's inner socket, from a socket whose abstract name gives the caller: grpcio does not report
peer credentials, but it does report the peer's socket name, and only this process can reach the inner socket.

All users share the kernel's queue of waiting connections: while it is full, others' connects fail. The front
therefore empties the queue before any other work, and a user with too many connections costs only a short
answer and a close.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path

from gpushared.daemon.tasks import TaskSet, until_first_ends
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    LimitReached,
    PermissionRefused,
    http_status,
)
from gpushared.domain.model.request import Caller
from gpushared.net.call_checks import peer_name
from gpushared.net.error_answers import RequestRefusal
from gpushared.net.http_server import Routes, linger, serve_http
from gpushared.net.identity import Identities, Peer, origin_of, peer_of
from gpushared.net.limits import UserShare
from gpushared.storage.audit.line import Origin

log = logging.getLogger(__name__)

HTTP2 = b"PRI"
"""The connection preface of HTTP/2 begins like this (RFC 9113, 3.4); no HTTP/1.1 method has this name."""
FIRST_BYTES_SECONDS = 30.0
COPY_BYTES = 64 * 1024
NUMBER_BITS = 63
MAX_REFUSALS_AT_ONCE = 64
"""Answer this many connections beyond users' bounds with a wait for the client; others get a short answer."""

BACKLOG = 4096
"""Request this backlog; the system may allow fewer (net.core.somaxconn)."""
ACCEPTS_PER_PASS = 128
"""Accept this many in one pass of the event loop; each costs the loop more afterwards than its accept."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_SECONDS = 1.0
"""Rest this long after the system had no room for another connection."""


class Front:
    """Accept connections, identify their callers, and pass the connections on."""

    def __init__(self, inner_socket: Path, identities: Identities, routes: Routes) -> None:
        self.secret = secrets.token_hex(8)
        self._inner_socket = inner_socket
        self._identities = identities
        self._routes = routes
        self.origins: dict[int, Origin] = {}
        """Map the numbers of connections that are passed on to gRPC to their processes."""
        self._tasks = TaskSet("a connection failed")
        self._unserved: set[socket.socket] = set()
        """Hold the sockets of tasks that have not begun; a task that is cancelled first never begins."""
        self._refusals_under_way = 0

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections as long as the block runs."""
        self._tasks.start(self._identities.subordinates.keep())
        try:
            with Acceptor(listener, self._arrived).running():
                yield
        finally:
            await self._tasks.cancel()
            for sock in self._unserved:
                sock.close()

    def _arrived(self, sock: socket.socket) -> None:
        """Start a connection without any wait: in a flood most connections get no more than this."""
        try:
            peer = peer_of(sock)
        except OSError as error:
            log.debug("connection lost: %s", error)
            sock.close()
            return
        share = self._share_of(peer)
        try:
            share.add_connection()
        except LimitReached as error:
            if self._refusals_under_way >= MAX_REFUSALS_AT_ONCE:
                _refuse_briefly(sock, error)
                return
            self._refusals_under_way += 1
            self._begin(self._refuse_connection(sock, peer, error), sock, self._refusal_ended)
        else:
            self._begin(self._serve_connection(sock, peer, share), sock, share.drop_connection)

    def _refusal_ended(self) -> None:
        self._refusals_under_way -= 1

    def _begin(
        self, work: Coroutine[None, None, None], sock: socket.socket, over: Callable[[], None]
    ) -> None:
        self._unserved.add(sock)
        self._tasks.start(work, over)

    def _take_over(self, sock: socket.socket) -> socket.socket:
        """Transfer the socket to the caller of this method, which owns it from here on."""
        self._unserved.discard(sock)
        return sock

    async def _refuse_connection(self, sock: socket.socket, peer: Peer, error: GpushareError) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=self._take_over(sock))
            await self._refuse(reader, writer, peer, error)
            writer.close()
        except OSError as lost:
            log.debug("connection lost: %s", lost)

    async def _serve_connection(self, sock: socket.socket, peer: Peer, share: UserShare) -> None:
        try:
            await share.turn()
            reader, writer = await asyncio.open_unix_connection(sock=self._take_over(sock))
            try:
                await self._serve(reader, writer, peer, origin_of(sock, peer))
            except PermissionRefused as error:
                await self._refuse(reader, writer, peer, error)
            finally:
                writer.close()
        except OSError as error:
            log.debug("connection lost: %s", error)

    async def _refuse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        error: GpushareError,
    ) -> None:
        refusal = RequestRefusal(b"", b"", http_status(error), error.message, error.code)
        self._routes.refused(refusal, await self._caller_or_number(peer), Origin(peer.pid))
        writer.write(_answer(error))  # HTTP/2 has no such answer: there the connection just ends
        await linger(reader, writer)

    async def _caller_or_number(self, peer: Peer) -> Caller:
        try:
            return await self._identities.caller(peer)
        except PermissionRefused:
            return Caller(peer.uid, peer.gid, str(peer.uid))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, origin: Origin
    ) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                prefix = await reader.readexactly(len(HTTP2))
        except (TimeoutError, asyncio.IncompleteReadError):
            return
        if prefix == HTTP2:
            # Names are public in /proc/net/unix: a process that guessed the next one could take it first.
            number = secrets.randbits(NUMBER_BITS)
            self.origins[number] = origin
            try:
                inner = await self._connect_as(peer, number)
                await self._splice(reader, writer, inner, prefix, self._share_of(peer))
            finally:
                del self.origins[number]
        else:
            caller = await self._identities.caller_behind(peer, origin)
            await serve_http(reader, writer, caller, self._routes, prefix=prefix, origin=origin)

    def _share_of(self, peer: Peer) -> UserShare:
        return self._routes.shares.of(self._identities.counted_as(peer.uid))

    async def _splice(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner: socket.socket,
        prefix: bytes,
        share: UserShare,
    ) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner)
        inner_writer.write(prefix)
        try:
            # HTTP/2 has no half-closed connections: if one direction ends, the other ends too.
            await until_first_ends(_copy(reader, inner_writer, share), _copy(inner_reader, writer, share))
        finally:
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


def _answer(error: GpushareError) -> bytes:
    """Return an answer without reading the request; both kinds of clients understand it."""
    return _written(HTTPStatus(http_status(error)), error.code, error.message, error.hint)


@lru_cache(maxsize=8)
def _written(status: HTTPStatus, code: str, message: str, hint: str) -> bytes:
    body = json.dumps({"code": code, "message": message, "details": [{"hint": hint}]}).encode()
    head = f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _refuse_briefly(sock: socket.socket, error: GpushareError) -> None:
    """Answer an error and close, without waiting for data that the client may be writing."""
    with contextlib.suppress(OSError), sock:
        sock.send(_answer(error))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: UserShare) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(COPY_BYTES):
            await share.turn()
            writer.write(data)
            await writer.drain()


def listen(path: Path, mode: int) -> socket.socket:
    """Listen at ``path``; replace a socket that a dead daemon left there.

    Raises ConfigError for a live one.
    """
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


class Acceptor:
    """Accept connections. ``arrived`` owns the sockets that it gets."""

    def __init__(self, listener: socket.socket, arrived: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._arrived = arrived
        self._resume_timer: asyncio.TimerHandle | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Accept as long as the block runs, then close the listening socket."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._begin()
        try:
            yield
        finally:
            if self._resume_timer is not None:
                self._resume_timer.cancel()
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    def _begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_PASS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(error)
                return
            sock.setblocking(False)
            self._arrived(sock)

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a while: the socket stays readable, and watching it would use a whole CPU."""
        log.error("no connection is accepted for %g s: %s", PAUSE_SECONDS, error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._resume_timer = loop.call_later(PAUSE_SECONDS, self._begin)
