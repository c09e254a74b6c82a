"""Use a connection as a bare socket that does not block, and copy bytes from one to another.

asyncio's streams copy all bytes three times, read on before a caller wants the bytes, and are closed by their
first failed write, which loses the unread bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, TypeVar, cast

from gpushared.net.limits import UserShare

_T = TypeVar("_T")

Piece = bytes | memoryview
"""A ``memoryview`` is valid only until the next read."""

READ_BYTES = 64 * 1024
HANGUP_POLL_SECONDS = 1.0
LINGER_SECONDS = 2.0
FIRST_BYTES = 4 * 1024
GROWTH = 8
BUFFER_BYTES = 256 * 1024
GATHERED_BYTES = 64 * 1024
"""Send this many bytes at once."""
GATHER_SECONDS = 0.001


class Wire:
    """Read and write both directions of one connection. A read that is cancelled has read nothing.

    One task at a time may read and one may write. The methods raise ``ConnectionError``.
    """

    def __init__(self, sock: socket.socket, *, reset_is_end: bool = False) -> None:
        """Count a reset as an end if ``reset_is_end``: a unix socket's peer closed without reading all."""
        self.sock = sock
        self.closing = False
        self._reset_is_end = reset_is_end
        self._loop = asyncio.get_running_loop()

    async def read(self, limit_bytes: int = READ_BYTES) -> bytes:
        """Return the bytes of one read, empty at the end."""
        buffer = await self._once_ready(lambda: self.sock.recv(limit_bytes))
        return buffer or b""

    async def read_into(self, buffer: memoryview) -> int:
        """Read into the buffer and return the number of bytes; 0 at the end."""
        return await self._once_ready(lambda: self.sock.recv_into(buffer)) or 0

    async def write(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces; return when the kernel has them all."""
        unsent = [memoryview(piece) for piece in pieces if len(piece)]
        while unsent:
            try:
                sent = self.sock.sendmsg(unsent)
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            else:
                unsent = _after(unsent, sent)

    def write_eof(self) -> None:
        self._shut(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End both directions; waiting reads and writes return."""
        self.closing = True
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Call this only when no task reads or writes any more."""
        self.closing = True
        self.sock.close()

    async def hung_up(self) -> None:
        """Return when the other end is closed in both directions, not when it only ends its own data.

        The kernel reports a full close of a unix socket's other end as POLLHUP, a half-close only as
        POLLRDHUP (unix(7), poll(2)), and the event loop waits for neither.
        """
        poll = select.poll()
        while not self.closing:
            poll.register(self.sock.fileno(), 0)
            if poll.poll(0):
                return
            await asyncio.sleep(HANGUP_POLL_SECONDS)

    async def linger(self) -> None:
        """End our side, then read and drop the other end's data, until it ends or for 2 s.

        Closing with unread data resets a unix socket's other end, which may not have read the answer yet.
        """
        self.write_eof()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self.read():
                    pass

    async def _once_ready(self, receive: Callable[[], _T]) -> _T | None:
        while True:
            try:
                return receive()
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            except ConnectionError:
                if self._reset_is_end:
                    return None
                raise

    async def _ready(self, add: Callable[..., Any], remove: Callable[[int], bool]) -> None:
        ready = self._loop.create_future()
        descriptor = self.sock.fileno()
        add(descriptor, _wake, ready)
        try:
            await ready
        finally:
            remove(descriptor)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(how)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _after(pieces: list[memoryview], sent: int) -> list[memoryview]:
    """Return the rest of the pieces after ``sent`` bytes."""
    for number, piece in enumerate(pieces):
        if sent < len(piece):
            return [piece[sent:], *pieces[number + 1 :]]
        sent -= len(piece)
    return []


async def taken_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Wire, bytes]:
    """Return the wire of a connection without any write yet, and the bytes that its streams have read.

    The streams do nothing any more; the owner of the writer closes it in the end. Raises ``OSError``.
    """
    transport = cast("asyncio.Transport", writer.transport)
    early = b""
    while True:
        # Each read may resume the reader.
        transport.pause_reading()
        try:
            async with asyncio.timeout(0):
                data = await reader.read(READ_BYTES)
        except TimeoutError:
            break
        if not data:
            break
        early += data
    return Wire(writer.get_extra_info("socket").dup()), early


class End(Enum):
    """Give the reason why a flow is over."""

    SOURCE_ENDED = auto()
    SOURCE_LOST = auto()
    SINK_LOST = auto()


class Flow:
    """Copy by the event loop's callbacks. A slow sink leaves at most the buffer's bytes waiting.

    Programs write their output in small pieces, and a reader works for each piece. Pieces that follow each
    other closely are therefore sent together: a piece after a pause at once, the next ones within a
    millisecond.
    """

    def __init__(self, source: Wire, sink: Wire, share: UserShare) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source.sock, sink.sock
        self._share = share
        self._buffer = memoryview(bytearray(FIRST_BYTES))
        self._sent = self._filled = 0
        self._write_at = 0.0
        self._end: End | None = None
        self._done: asyncio.Future[End] = self._loop.create_future()
        self._is_blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Future[None] | None = None

    async def run(self) -> End:
        """Return when the source has ended and the sink has all bytes, or one of them is lost."""
        self._listen()
        try:
            return await self._done
        finally:
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._sink)
            self._stop_timer()
            if self._turn is not None:
                self._turn.cancel()

    def _listen(self) -> None:
        self._loop.add_reader(self._source, self._on_readable)

    def _on_readable(self) -> None:
        if self._share.take_turn():
            self._read()
        else:
            self._loop.remove_reader(self._source)
            self._turn = self._share.queue_for_turn()
            self._turn.add_done_callback(self._on_turn)

    def _on_turn(self, _: asyncio.Future[None]) -> None:
        self._turn = None
        # After the end, a reader would stay with the socket's number, and the number's next owner would hang.
        if not self._done.done() and not self._is_blocked:
            self._listen()
            self._read()

    def _read(self) -> None:
        try:
            size = self._source.recv_into(self._buffer[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            self._no_more(End.SOURCE_LOST)
            return
        if not size:
            self._no_more(End.SOURCE_ENDED)
            return
        self._filled += size
        if self._has_gathered() or self._loop.time() >= self._write_at:
            self._write()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._write_at, self._write)

    def _no_more(self, end: End) -> None:
        self._end = end
        self._loop.remove_reader(self._source)
        self._write()

    def _has_gathered(self) -> bool:
        return self._filled >= min(GATHERED_BYTES, len(self._buffer))

    def _write(self) -> None:
        self._stop_timer()
        try:
            if self._filled:
                self._sent += self._sink.send(self._buffer[self._sent : self._filled])
        except BlockingIOError:
            pass
        except OSError:
            self._finish(End.SINK_LOST)
            return
        if self._sent == self._filled:
            self._empty()
        elif not self._is_blocked:
            self._is_blocked = True
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)

    def _empty(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(self._sink)
            if self._turn is None:
                self._listen()
        if self._end is not None:
            self._finish(self._end)
        elif self._filled == len(self._buffer) < BUFFER_BYTES:
            self._buffer = memoryview(bytearray(len(self._buffer) * GROWTH))
        self._sent = self._filled = 0
        self._write_at = self._loop.time() + GATHER_SECONDS

    def _finish(self, end: End) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if not self._done.done():
            self._done.set_result(end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
