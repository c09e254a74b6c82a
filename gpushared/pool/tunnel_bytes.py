"""Bytes between a socket and the messages of a tunnel, both ways, with the backpressure of both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

CHUNK_BYTES = 512 * 1024
"""Of one message. Larger ones are quicker, up to what a socket gives at once."""
SOCKET_BYTES = 1 << 20

Receive = Callable[[], Awaitable[bytes | None]]
"""The next bytes from the other end, which may be none of them; None when it sends no more."""
Send = Callable[[bytes, bool], Awaitable[None]]
"""Bytes to the other end, and whether they are the last."""


async def pump(sock: socket.socket, receive: Receive, send: Send) -> None:
    """Until the other end sends no more, or the socket's peer has gone.

    The socket's half-close is passed on, and what the other end still answers to it comes back. Whoever
    calls closes the socket, and may say on it before why there is no more.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
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
        # A socket that always has data would never let anybody else have a turn.
        await asyncio.sleep(0)
