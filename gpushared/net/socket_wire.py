"""Use a connection as a bare socket that does not block: bytes are read directly into the buffer for them.

asyncio's streams copy all bytes three times, read on before anybody asks, and are closed by their first
failed write, which loses the bytes that were still to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

Piece = bytes | memoryview
"""A ``memoryview`` is only good until the next is read."""

READ_BYTES = 64 * 1024
HANGUP_POLL_SECONDS = 1.0
LINGER_SECONDS = 2.0


class Wire:
    """Read and write both directions of one connection. A read that is cancelled has read nothing.

    One task at a time may read and one may write. The methods raise ``ConnectionError``.
    """

    def __init__(self, sock: socket.socket, *, reset_is_end: bool = False) -> None:
        """``reset_is_end``: a unix socket reports a reset where its peer closed without reading all."""
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
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            try:
                sent = self.sock.sendmsg(left)
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            else:
                left = _after(left, sent)

    def write_eof(self) -> None:
        self._shut(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End both directions; whoever reads or writes comes back."""
        self.closing = True
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; only when nobody reads or writes any more."""
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
        """End our side, then read and forget what the other end still sends, until it ends or for 2 s.

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
        # Each read may make the reader go on.
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
