"""How a connection ends: whether the other side is still there, and letting it read what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from dataclasses import dataclass, field

READ_BYTES = 64 * 1024
HANGUP_POLL_SECONDS = 1.0
LINGER_SECONDS = 2.0


@dataclass(slots=True)
class Stream:
    """The raw two-way stream that is left of a connection after a protocol switch."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    early: bytes = field(repr=False)
    """What the client had already sent."""
    at_eof: bool = False


async def hung_up(writer: asyncio.StreamWriter) -> None:
    """Comes back when the other end is closed in both directions, not when it only has no more to say.

    Needed after an end of file: asyncio stops listening then. The kernel reports a full close of a unix
    socket's other end as POLLHUP, a half-close only as POLLRDHUP (unix(7), poll(2)).
    """
    sock: socket.socket = writer.get_extra_info("socket")
    poll = select.poll()
    while not writer.is_closing():
        with contextlib.suppress(KeyError):
            poll.unregister(sock.fileno())
        poll.register(sock.fileno(), 0)
        if poll.poll(0):
            return
        await asyncio.sleep(HANGUP_POLL_SECONDS)


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End our side, then read and forget what the other end still sends, until it ends or for 2 s."""
    with contextlib.suppress(TimeoutError, ConnectionError, OSError):
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(READ_BYTES):
                pass
