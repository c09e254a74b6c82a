"""End a connection so that the other side can still read the answer."""

from __future__ import annotations

import asyncio
import contextlib

READ_BYTES = 64 * 1024
LINGER_SECONDS = 2.0


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End our side, then read and forget what the other end still sends, until it ends or for 2 s."""
    with contextlib.suppress(TimeoutError, ConnectionError, OSError):
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(READ_BYTES):
                pass
