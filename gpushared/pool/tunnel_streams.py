"""One end of a tunnel's connection, which outlives the calls that carry it.

A tunnel runs over two calls by way of the coordinator, and breaks with either. So each end counts what has
come from the other, and keeps what it sent until the other end says that it came. When there is a call
again, the two tell each other their counts and go on from there: no byte is lost, and none comes twice.
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any, Protocol

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.pool.tunnel_bytes import CHUNK_BYTES, GATHER_SECONDS, MUCH_BYTES, widen
from gpushared.pool.tunnel_frames import Chunk, Data, Frame, frame

WINDOW_BYTES = 4 << 20
"""One end keeps so much at most: then it does not read its socket until the other end has told what came."""
TELL_BYTES = 512 * 1024
"""An end tells what came after so much. Terminals, which have less, cost no messages beside their bytes."""
MAX_KEPT_BYTES = 256 << 20
"""All connections of a node that wait for a call keep no more than this together."""
PARTING_SECONDS = 10.0

Message = Chunk | Data
Kind = type[jobs_pb2.TunnelChunk | link_pb2.TunnelData]
CALL_ERRORS = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""A call that is broken, or that has ended, raises one of these."""


class Carrier(Protocol):
    """A call that carries a connection. Its methods raise CALL_ERRORS."""

    async def read(self) -> Message | None:
        """None when the call brings no more."""
        ...

    async def write(self, data: bytes = b"", **fields: Any) -> None:
        """``fields``: those of TunnelChunk that stand beside the bytes."""
        ...


class CallCarrier:
    """A call of messages of the type ``kind``."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Any],
        kind: type[jobs_pb2.TunnelChunk | link_pb2.TunnelData],
    ) -> None:
        self.call = call
        self._kind = kind

    async def read(self) -> Message | None:
        message = await self.call.read()
        return message if isinstance(message, Frame | self._kind) else None

    async def write(self, data: bytes = b"", **fields: Any) -> None:
        await self.call.write(self._kind(data=data, **fields) if fields else frame(data))


class Kept:
    """How many bytes some connections keep together."""

    def __init__(self, limit: int = MAX_KEPT_BYTES) -> None:
        self._limit = limit
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._limit


class TunnelStream:
    """Reads its socket from the start, whether a call carries it or not.

    Attributes:
        received: so many bytes of the other end have been written to the socket.
        is_over: nobody takes the connection up again.
        is_kept_there: the other end keeps what it sends, so that the connection can be taken up again.
        stuck: set while no call carries the connection and it keeps as much as it may.
    """

    def __init__(
        self, sock: socket.socket, *, opened_here: bool, is_kept_there: bool = False, kept: Kept | None = None
    ) -> None:
        """``opened_here``: whoever wanted the tunnel is behind this socket, and decides when it is over."""
        widen(sock)
        self.received = 0
        self.is_over = False
        self.is_kept_there = is_kept_there
        self.stuck = asyncio.Event()
        self._sock = sock
        self._opened_here = opened_here
        self._counted = kept or Kept()
        self._kept = bytearray()
        self._kept_from = 0
        """The number of the first byte that is kept; earlier ones have come to the other end."""
        self._has_forgotten = False
        """Bytes that may not have come are kept no more, as the other end seems to be of an old version."""
        self._told = 0
        self._has_read_all = False
        self._takes_no_more = False
        """Nobody reads the socket any more."""
        self._is_done = False
        """Whoever wanted the tunnel has gone, or has all that there is."""
        self._is_carried = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._reading = asyncio.create_task(self._read_socket())

    async def carry(self, call: Carrier, sent_from: int = 0) -> None:
        """Pass bytes on until the connection is over, or the call ends. Raises CALL_ERRORS.

        ``sent_from``: so many bytes the other end has; it was told what came here. One call at a time.
        """
        self._forget(sent_from)
        self._told = self.received
        self._is_carried = True
        self.stuck.clear()
        self._room.set()
        upwards = asyncio.create_task(self._send(call, sent_from))
        downwards = asyncio.create_task(self._receive(call))
        try:
            await asyncio.wait({upwards, downwards}, return_when=asyncio.FIRST_COMPLETED)
            # Whether or not the call can still be written to, what it brought is still to be read. A read
            # that is cancelled would cancel the call, and with it the word that the connection is over.
            await asyncio.wait({downwards}, timeout=PARTING_SECONDS if self.is_over else None)
            if downwards.done() and not self.is_over:
                downwards.result()
        finally:
            for task in (upwards, downwards):
                task.cancel()
            await asyncio.gather(upwards, downwards, return_exceptions=True)
            self._is_carried = False
            self._room.set()

    async def close(self) -> None:
        """Forget everything, and close the socket."""
        self._reading.cancel()
        try:
            await asyncio.gather(self._reading, return_exceptions=True)
        finally:
            self._forget(self._kept_from + len(self._kept))
            # Else the event loop would take the next socket of this number for one that it looks at already.
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()

    # --- from the socket to the call -----------------------------------------------------------------------

    async def _read_socket(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room()
            try:
                data = await loop.sock_recv(self._sock, CHUNK_BYTES)
            except OSError:  # a unix socket whose peer left without reading all is reset
                data = b""
            self._kept += data
            self._counted.bytes += len(data)
            self._has_read_all = not data
            self._is_done = self._is_done or (not data and self._opened_here and _has_hung_up(self._sock))
            self._wake.set()
            if not data:
                return
            # Also a socket that always has data must let others have a turn.
            await asyncio.sleep(GATHER_SECONDS if len(data) >= MUCH_BYTES else 0)

    async def _wait_for_room(self) -> None:
        while len(self._kept) >= WINDOW_BYTES or (not self._is_carried and self._counted.is_full):
            if not self._is_carried:
                self.stuck.set()
            self._room.clear()
            await self._room.wait()

    async def _send(self, call: Carrier, place: int) -> None:
        """From the byte of that number on, until the connection is over."""
        has_ended = False
        while not self._is_done:
            self._wake.clear()
            if self.received - self._told >= TELL_BYTES:
                self._told = self.received
                await call.write(received=self.received)
            if data := self._from(place):
                await call.write(data)
                place += len(data)
                self._forget_for_old_versions(place)
            elif self._has_read_all and not has_ended:
                has_ended = True
                await call.write(end=True)
            else:
                await self._wake.wait()
        self.is_over = True
        await call.write(over=True)

    def _from(self, place: int) -> bytes:
        begin = max(0, place - self._kept_from)
        with memoryview(self._kept) as kept, kept[begin : begin + CHUNK_BYTES] as piece:
            return bytes(piece)

    def _forget_for_old_versions(self, place: int) -> None:
        """A peer that keeps what it sends says so before it takes anything."""
        if not self.is_kept_there and len(self._kept) >= WINDOW_BYTES:
            self._has_forgotten = True
            self._forget(place)

    def _forget(self, place: int) -> None:
        """The other end has all bytes before this one."""
        size = max(0, min(place - self._kept_from, len(self._kept)))
        del self._kept[:size]
        self._kept_from += size
        self._counted.bytes -= size
        self._room.set()

    # --- from the call to the socket -----------------------------------------------------------------------

    async def _receive(self, call: Carrier) -> None:
        """Until the call ends, or the other end says that all is over."""
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
        """Cancelled on its way, it has counted what the socket took, and no more."""
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
        if self.received - self._told >= TELL_BYTES:
            self._wake.set()

    def _end(self) -> None:
        """The other end has said all. Whoever wanted the tunnel has all that there is then."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose_reader()
        self._is_done = self._opened_here
        self._wake.set()

    def _lose_reader(self) -> None:
        self._takes_no_more = True
        self._is_done = self._opened_here
        self._wake.set()


def _has_hung_up(sock: socket.socket) -> bool:
    """Whether the socket's peer has closed it altogether, and not only one way."""
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
