"""Connect to the engine's unix socket: one connection for each request, closed after it.

A connection is never used twice: after a refused upgrade the engine continues HTTP on it, and bytes that were
half read or half written for one caller must never meet the request of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import h11

from gpushared.domain.model.errors import EngineUnavailable, TimedOut
from gpushared.net.http_parser import Incoming
from gpushared.net.socket_wire import Piece, Wire

READ_BYTES = 256 * 1024
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.02
SWITCHING_PROTOCOLS = 101
HEAD_BYTES = 256 * 1024
ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Hold a whole response of the engine."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body. Raises ``EngineUnavailable`` if it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise EngineUnavailable("the Docker engine answered with something that is not JSON") from error


def message_of(answer: EngineAnswer) -> str:
    """Return the sentence of an error, or an empty text."""
    try:
        return str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""


class EngineConnection:
    """Stream one request to the engine and its response. Methods that write raise ``ConnectionError``."""

    def __init__(self, sock: socket.socket, socket_path: str) -> None:
        self.wire = Wire(sock, reset_is_end=True)
        self._socket_path = socket_path
        self.turn: Callable[[], Awaitable[None]] = _any_turn
        """The connection awaits this after each piece; at least it lets the event loop run once."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._incoming = Incoming(self._http, self.wire, self._take_turn, read_bytes=READ_BYTES)

    async def send(self, *events: h11.Event) -> None:
        pieces = [piece for event in events for piece in self._http.send_with_data_passthrough(event) or ()]
        await self.wire.write(pieces)

    async def send_data(self, data: Piece) -> None:
        """Send a part of the body."""
        await self.send(h11.Data(data=cast("bytes", data)))

    async def write(self, data: bytes) -> None:
        """Send raw bytes."""
        await self.wire.write([data])

    async def response(self) -> h11.Response | h11.InformationalResponse:
        """Read the response's head, informational only for a protocol switch. Raises EngineUnavailable."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING_PROTOCOLS:
                return event

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the response's body as it arrives. Raises ``EngineUnavailable`` if it is cut off."""
        async for piece in self.pieces():
            yield bytes(piece)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the body without a copy: each piece is valid only until the next."""
        with self._as_engine_errors():
            while (piece := await self._incoming.piece()) is not None:
                yield piece

    def peer_pid(self) -> int:
        """Return the process that listens on the socket, 0 if the daemon does not see its PID namespace."""
        size = struct.calcsize("3i")
        peer = self.wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = struct.unpack("3i", peer)
        return int(pid)

    def early(self) -> bytes:
        """Return the bytes after the head of a connection that is no longer HTTP."""
        return self._incoming.unparsed

    def hang_up(self) -> None:
        """End both directions; waiting reads and writes return."""
        self.wire.hang_up()

    def close(self) -> None:
        """Close the connection. Call this only when no task reads or writes any more."""
        self.wire.close()

    async def _take_turn(self) -> None:
        await self.turn()

    async def _event(self) -> h11.Event:
        with self._as_engine_errors():
            event = await self._incoming.event()
        if isinstance(event, h11.ConnectionClosed):
            raise EngineUnavailable(
                f"the Docker engine on {self._socket_path} hung up", hint="it may be restarting; try again"
            )
        return event

    @contextlib.contextmanager
    def _as_engine_errors(self) -> Iterator[None]:
        try:
            yield
        except h11.RemoteProtocolError as error:
            raise EngineUnavailable(
                f"the Docker engine on {self._socket_path} broke off its answer",
                hint="it may be restarting; try again",
            ) from error


async def _any_turn() -> None:
    await asyncio.sleep(0)


class EngineSocket:
    """Call the engine at its address. Raises ``EngineUnavailable``, ``TimedOut``."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def connect(self) -> EngineConnection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _connect(sock, self.path)
        except OSError as error:  # TimeoutError is one
            sock.close()
            raise EngineUnavailable(
                f"the Docker engine does not answer on {self.path}",
                hint="is it running? `systemctl status docker` tells",
            ) from error
        except BaseException:
            sock.close()
            raise
        return EngineConnection(sock, self.path)

    async def peer_pid(self) -> int:
        """Return the process that opened the socket: the engine, or the first process for systemd."""
        connection = await self.connect()
        try:
            return connection.peer_pid()
        finally:
            connection.close()

    async def call(
        self, method: str, target: bytes, body: bytes | None = None, *, timeout_seconds: float = 30.0
    ) -> EngineAnswer:
        """Make a small request of the gate's own, or of a client whose body was checked."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._call(method, target, body)
        except TimeoutError:
            raise TimedOut(
                f"the Docker engine on {self.path} took longer than {timeout_seconds:.0f} s",
                hint="try again later",
            ) from None

    async def _call(self, method: str, target: bytes, body: bytes | None) -> EngineAnswer:
        connection = await self.connect()
        try:
            headers = [(b"Host", b"docker"), (b"Connection", b"close")]
            if body is not None:
                headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
            with contextlib.suppress(ConnectionError):  # the answer may still have come
                await connection.send(
                    h11.Request(method=method, target=target, headers=headers),
                    *([h11.Data(data=body)] if body else ()),
                    h11.EndOfMessage(),
                )
            head = await connection.response()
            pieces = [piece async for piece in _bounded(connection.chunks(), self.path)]
            return EngineAnswer(head.status_code, tuple(head.headers.raw_items()), b"".join(pieces))
        finally:
            connection.close()


async def _connect(sock: socket.socket, path: str) -> None:
    """Connect, and retry while the listener's queue is full.

    A unix socket then reports "try again", which asyncio takes for success.
    """
    while True:
        await asyncio.get_running_loop().sock_connect(sock, path)
        try:
            sock.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _bounded(chunks: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > ANSWER_BYTES:
            raise EngineUnavailable(
                f"the Docker engine on {path} answered with more than {ANSWER_BYTES} bytes"
            )
        yield chunk
