"""Run one end of a tunnel's connection, which outlives the calls that carry it.

A tunnel runs over two calls by way of the coordinator, and breaks with either. Each end therefore counts the
bytes received from the other, and keeps its sent bytes until the other end acknowledges them. Over the next
call the two ends exchange their counts and go on from there: no byte is lost, and none comes twice.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Any, Protocol

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.pool.tunnels.kept_bytes import KeptBytes, SentBytes
from gpushared.pool.tunnels.tunnel_frames import (
    CHUNK_BYTES,
    Chunk,
    Data,
    Frame,
    frame,
    gather_seconds,
    widen,
)

WINDOW_BYTES = 4 << 20
"""Bound the bytes that one end keeps. At the bound it stops reading its socket until an acknowledgement."""
ACKNOWLEDGE_BYTES = WINDOW_BYTES // 4
"""Acknowledge after this many bytes. Each acknowledgement costs all processes on the way as much as a message
of bytes; but the rarer they are, the less of the window is on the way over a slow network."""
PARTING_SECONDS = 10.0
"""Give the other end this long to acknowledge the end."""
LOOK_SECONDS = 1.0
"""Check this often if the client has hung up, while reading nothing from the client."""

Message = Chunk | Data
Kind = type[jobs_pb2.TunnelChunk | link_pb2.TunnelData]
CALL_ERRORS = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""A call that is broken, or that has ended, raises one of these."""


class Carrier(Protocol):
    """Carry a connection over a call. The methods raise CALL_ERRORS."""

    async def read(self) -> Message | None:
        """Return the next message, or None after the last."""
        ...

    async def write(self, *pieces: bytes | memoryview, **fields: Any) -> None:
        """Write either bytes, or ``fields`` of TunnelChunk."""
        ...


class CallCarrier:
    """Carry a connection over a call with messages of the type ``kind``."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any], kind: Kind) -> None:
        self.call = call
        self._kind = kind

    async def read(self) -> Message | None:
        message = await self.call.read()
        return message if isinstance(message, Frame | self._kind) else None

    async def write(self, *pieces: bytes | memoryview, **fields: Any) -> None:
        await self.call.write(self._kind(**fields) if fields else frame(*pieces))


class TunnelStream:
    """Read the socket from the start, whether a call carries the connection or not.

    Attributes:
        received: this many bytes of the other end have been written to the socket.
        is_over: nobody resumes the connection, and the other end knows that.
        is_kept_there: the other end keeps its sent bytes, so that the connection can be resumed.
        stuck: is set while no call carries the connection and it keeps as many bytes as it may.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        opened_here: bool,
        is_kept_there: bool = False,
        kept_bytes: KeptBytes | None = None,
    ) -> None:
        """``opened_here`` means that the tunnel's opener is behind this socket and decides on its end."""
        widen(sock)
        self.received = 0
        self.is_over = False
        self.is_kept_there = is_kept_there
        self.stuck = asyncio.Event()
        self._sock = sock
        self._opened_here = opened_here
        self._counted = kept_bytes or KeptBytes()
        self._sent = SentBytes(self._counted)
        self._has_forgotten = False
        """The stream dropped unacknowledged bytes, because the other end seems to be of an old version."""
        self._acknowledged = 0
        self._has_read_all = False
        self._takes_no_more = False
        """The socket has no reader any more."""
        self._finished = asyncio.Event()
        """This event is set when the opener of the tunnel has gone, or has all bytes."""
        self._is_carried = False
        self._alone_since = asyncio.get_running_loop().time()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._reading = asyncio.create_task(self._read_socket())

    @property
    def is_done(self) -> bool:
        """Return True if the opener needs the tunnel no more, whether or not the other end knows."""
        return self._finished.is_set()

    def seconds_alone(self) -> float:
        """Return for how long no call has carried the connection."""
        return 0.0 if self._is_carried else asyncio.get_running_loop().time() - self._alone_since

    async def carry(self, call: Carrier, sent_from: int = 0) -> None:
        """Pass bytes on until the connection is over, or the call ends. Raises CALL_ERRORS.

        ``sent_from`` is how many bytes the other end has; it already knows this end's count. The stream
        carries one call at a time. If the connection is done and not over afterwards, another call must tell
        the other end: this call may be full of bytes that nobody reads.
        """
        self._forget(sent_from)
        self._acknowledged = self.received
        self._is_carried = True
        self.stuck.clear()
        self._room.set()
        upwards = asyncio.create_task(self._send(call, sent_from))
        downwards = asyncio.create_task(self._receive(call))
        finished = asyncio.create_task(self._finished.wait())
        try:
            # Read the messages that came, whether or not the call can still be written to. A cancelled read
            # would cancel the call, and with it the message that the connection is over.
            await asyncio.wait({downwards, finished}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({downwards}, timeout=PARTING_SECONDS)
            if downwards.done() and not self.is_over:
                downwards.result()
        finally:
            for task in (upwards, downwards, finished):
                task.cancel()
            await asyncio.gather(upwards, downwards, finished, return_exceptions=True)
            self._is_carried = False
            self._alone_since = asyncio.get_running_loop().time()
            self._room.set()

    async def close(self) -> None:
        """Drop all kept bytes, and close the socket."""
        self._reading.cancel()
        try:
            await asyncio.gather(self._reading, return_exceptions=True)
        finally:
            self._forget(self._sent.end)
            # Otherwise the event loop would take the next socket of this number for one that it watches
            # already.
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()

    # --- from the socket to the call -----------------------------------------------------------------------

    async def _read_socket(self) -> None:
        """Read until there is an end, then watch for a hang-up: a half-closed client may still leave."""
        loop = asyncio.get_running_loop()
        while not self._has_read_all and await self._has_room():
            try:
                data = await loop.sock_recv(self._sock, CHUNK_BYTES)
            except OSError:  # a unix socket whose peer left without reading all is reset
                data = b""
            self._sent.append(data)
            self._has_read_all = not data
            self._wake.set()
            if data:
                # A socket that always has data must still let other tasks run.
                await asyncio.sleep(gather_seconds(len(data)))
        if self._opened_here:
            while not _has_hung_up(self._sock):  # noqa: ASYNC110 - the event loop tells of no hang-up
                await asyncio.sleep(LOOK_SECONDS)
            self._finish()

    async def _has_room(self) -> bool:
        """Wait until more may be read; return False if the client hangs up first."""
        while len(self._sent) >= WINDOW_BYTES or (not self._is_carried and self._counted.is_full):
            if self._opened_here and _has_hung_up(self._sock):
                return False
            if not self._is_carried:
                self.stuck.set()
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._room.wait()
        return True

    async def _send(self, call: Carrier, position: int) -> None:
        """Send the bytes from this position on, until the connection is over."""
        has_ended = False
        while not self.is_done:
            self._wake.clear()
            if self.received - self._acknowledged >= ACKNOWLEDGE_BYTES:
                self._acknowledged = self.received
                await call.write(received=self.received)
            if pieces := self._sent.since(position, CHUNK_BYTES):
                await call.write(*pieces)
                position += sum(map(len, pieces))
                self._forget_for_old_versions(position)
            elif self._has_read_all and not has_ended:
                has_ended = True
                await call.write(end=True)
            else:
                await self._wake.wait()
        await call.write(over=True)

    def _forget_for_old_versions(self, position: int) -> None:
        """Drop kept bytes for an old peer: a newer peer announces early that it keeps its bytes."""
        if not self.is_kept_there and len(self._sent) >= WINDOW_BYTES:
            self._has_forgotten = True
            self._forget(position)

    def _forget(self, position: int) -> None:
        """Drop all bytes before this one, which the other end has."""
        self._sent.forget(position)
        self._room.set()

    # --- from the call to the socket -----------------------------------------------------------------------

    async def _receive(self, call: Carrier) -> None:
        """Receive until the call ends, or the other end reports that the connection is over."""
        while (message := await call.read()) is not None:
            if isinstance(message, Frame):
                await self._deliver(message.data)
                continue
            if message.HasField("received"):
                self.is_kept_there = not self._has_forgotten
                self._forget(message.received)
            await self._deliver(memoryview(message.data))
            if message.end:
                self._end()
            if message.over:
                self.is_over = True
                return

    async def _deliver(self, data: memoryview) -> None:
        """Write to the socket. If cancelled on its way, count exactly the bytes that the socket accepted."""
        while data:
            try:
                size = len(data) if self._takes_no_more else self._sock.send(data)
            except BlockingIOError:
                await _writable(self._sock)
                continue
            except OSError:
                self._lose_reader()
                continue
            data = data[size:]
            self.received += size
        if self.received - self._acknowledged >= ACKNOWLEDGE_BYTES:
            self._wake.set()

    def _end(self) -> None:
        """Close the writing side: the other end has sent all, so that the opener has all bytes."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose_reader()
        self._finish()

    def _lose_reader(self) -> None:
        self._takes_no_more = True
        self._finish()

    def _finish(self) -> None:
        if self._opened_here:
            self._finished.set()
        self._wake.set()


def _has_hung_up(sock: socket.socket) -> bool:
    """Return True if the socket's peer has closed both directions, not only one."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
