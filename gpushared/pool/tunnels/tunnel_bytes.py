"""Bytes between a socket and the messages of a tunnel, both ways, with the backpressure of both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

CHUNK_BYTES = 512 * 1024
"""Of one message at most. Each costs the same in every process on the way, whatever its size."""
MUCH_BYTES = 16 * 1024
GATHER_SECONDS = 0.001
"""After so much at once there is likely to be more: it gathers in the socket for a moment, so that it goes in
few large messages. What people type and programs answer is never so much."""
SOCKET_BYTES = 1 << 20

Receive = Callable[[], Awaitable[bytes | memoryview | None]]
"""The next bytes from the other end, which may be none of them; None when it sends no more."""
Send = Callable[[bytes, bool], Awaitable[None]]
"""Bytes to the other end, and whether they are the last."""


def widen(sock: socket.socket) -> None:
    """Let a unix socket hold more of what is written to it, as far as the system allows it."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)


async def pump(sock: socket.socket, receive: Receive, send: Send) -> None:
    """Until the other end sends no more, or the socket's peer has gone.

    The socket's half-close is passed on, and what the other end still answers to it comes back. Whoever
    calls closes the socket, and may say on it before why there is no more.
    """
    loop = asyncio.get_running_loop()
    widen(sock)
    upwards = asyncio.create_task(_from_socket(loop, sock, send))
    try:
        while (data := await receive()) is not None:
            if data:
                await loop.sock_sendall(sock, data)
    except ConnectionError:
        pass  # whoever reads the socket has gone
    finally:
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)


async def _from_socket(loop: asyncio.AbstractEventLoop, sock: socket.socket, send: Send) -> None:
    """A unix socket reports a reset where its peer left without reading all: that is an end as well."""
    while True:
        try:
            data = await loop.sock_recv(sock, CHUNK_BYTES)
        except ConnectionError:
            data = b""
        await send(data, not data)
        if not data:
            return
        # Also a socket that always has data must let others have a turn.
        await asyncio.sleep(GATHER_SECONDS if len(data) >= MUCH_BYTES else 0)
