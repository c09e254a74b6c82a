"""One end of a tunnel's connection, which outlives the calls that carry it.

A tunnel runs over two calls by way of the coordinator, and breaks with either. So each end counts what has
come from the other, and keeps what it sent until the other end says that it came. When there is a call
again, the two tell each other their counts and go on from there: no byte is lost, and none comes twice.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Any, Protocol

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.pool.tunnels.tunnel_frames import (
    CHUNK_BYTES,
    GATHER_SECONDS,
    MUCH_BYTES,
    Chunk,
    Data,
    Frame,
    frame,
    widen,
)

WINDOW_BYTES = 4 << 20
"""One end keeps so much at most: then it does not read its socket until the other end has told what came."""
TELL_BYTES = 512 * 1024
"""An end tells what came after so much. Terminals, which have less, cost no messages beside their bytes."""
MAX_KEPT_BYTES = 256 << 20
"""All connections of a node that wait for a call keep no more than this together."""
PARTING_SECONDS = 10.0
"""The other end may take this long to acknowledge the end."""
LOOK_SECONDS = 1.0
"""An end looks this often if its client has hung up, while it reads nothing from the client."""

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


class KeptBytes:
    """Count the bytes that some connections keep together."""

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
        is_over: nobody takes the connection up again, and the other end knows it.
        is_kept_there: the other end keeps what it sends, so that the connection can be taken up again.
        stuck: set while no call carries the connection and it keeps as much as it may.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        opened_here: bool,
        is_kept_there: bool = False,
        kept: KeptBytes | None = None,
    ) -> None:
        """``opened_here``: whoever wanted the tunnel is behind this socket, and decides when it is over."""
        widen(sock)
        self.received = 0
        self.is_over = False
        self.is_kept_there = is_kept_there
        self.stuck = asyncio.Event()
        self._sock = sock
        self._opened_here = opened_here
        self._counted = kept or KeptBytes()
        self._kept = bytearray()
        self._kept_from = 0
        """The number of the first byte that is kept; earlier ones have come to the other end."""
        self._has_forgotten = False
        """Bytes that may not have come are kept no more, as the other end seems to be of an old version."""
        self._told = 0
        self._has_read_all = False
        self._takes_no_more = False
        """Nobody reads the socket any more."""
        self._done = asyncio.Event()
        """Whoever wanted the tunnel has gone, or has all that there is."""
        self._is_carried = False
        self._alone_since = asyncio.get_running_loop().time()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._reading = asyncio.create_task(self._read_socket())

    @property
    def is_done(self) -> bool:
        """Return True if whoever wanted the tunnel needs it no more, whether or not the other end knows."""
        return self._done.is_set()

    def seconds_alone(self) -> float:
        """Return for how long no call has carried the connection."""
        return 0.0 if self._is_carried else asyncio.get_running_loop().time() - self._alone_since

    async def carry(self, call: Carrier, sent_from: int = 0) -> None:
        """Pass bytes on until the connection is over, or the call ends. Raises CALL_ERRORS.

        ``sent_from``: so many bytes the other end has; it was told what came here. One call at a time. Where
        the connection is done and not over afterwards, the other end has to be told by another call: this
        one may be full of bytes that nobody reads.
        """
        self._forget(sent_from)
        self._told = self.received
        self._is_carried = True
        self.stuck.clear()
        self._room.set()
        upwards = asyncio.create_task(self._send(call, sent_from))
        downwards = asyncio.create_task(self._receive(call))
        done = asyncio.create_task(self._done.wait())
        try:
            # Whether or not the call can still be written to, what it brought is still to be read. A read
            # that is cancelled would cancel the call, and with it the word that the connection is over.
            await asyncio.wait({downwards, done}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({downwards}, timeout=PARTING_SECONDS)
            if downwards.done() and not self.is_over:
                downwards.result()
        finally:
            for task in (upwards, downwards, done):
                task.cancel()
            await asyncio.gather(upwards, downwards, done, return_exceptions=True)
            self._is_carried = False
            self._alone_since = asyncio.get_running_loop().time()
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
        """Read until there is an end, and then look for a hang-up: a client that half-closes may still go."""
        loop = asyncio.get_running_loop()
        while not self._has_read_all and await self._has_room():
            try:
                data = await loop.sock_recv(self._sock, CHUNK_BYTES)
            except OSError:  # a unix socket whose peer left without reading all is reset
                data = b""
            self._kept += data
            self._counted.bytes += len(data)
            self._has_read_all = not data
            self._wake.set()
            if data:
                # Also a socket that always has data must let others have a turn.
                await asyncio.sleep(GATHER_SECONDS if len(data) >= MUCH_BYTES else 0)
        if self._opened_here:
            while not _has_hung_up(self._sock):  # noqa: ASYNC110 - the event loop tells of no hang-up
                await asyncio.sleep(LOOK_SECONDS)
            self._finish()

    async def _has_room(self) -> bool:
        """Wait until more may be read; False where the client has hung up before."""
        while len(self._kept) >= WINDOW_BYTES or (not self._is_carried and self._counted.is_full):
            if self._opened_here and _has_hung_up(self._sock):
                return False
            if not self._is_carried:
                self.stuck.set()
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._room.wait()
        return True

    async def _send(self, call: Carrier, place: int) -> None:
        """Send the bytes from this place on, until the connection is over."""
        has_ended = False
        while not self.is_done:
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
        self._finish()

    def _lose_reader(self) -> None:
        self._takes_no_more = True
        self._finish()

    def _finish(self) -> None:
        if self._opened_here:
            self._done.set()
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
