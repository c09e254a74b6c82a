"""Move bytes between a socket and the messages of a tunnel, without parsing messages that are only bytes.

``TunnelChunk`` and ``TunnelData`` have their bytes in the same field. So a message with that field alone is
the same in both, and can be passed from one call to the other as it came. Protobuf copies what it holds
four times on such a way; at hundreds of megabytes a second that is what a coordinator's time goes to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from google.protobuf.message import DecodeError

from gpushared.api.v1 import jobs_pb2, link_pb2

DATA_TAG = 0x12
"""This is the tag of the field ``data`` of both messages: number 2, with a length before it (protobuf's
wire format)."""
_MORE = 0x80
"""Set in each byte of a length but the last, which have seven bits of it each, the lowest first."""
_MAX_LENGTH_BYTES = 5

_Message = TypeVar("_Message", jobs_pb2.TunnelChunk, link_pb2.TunnelData)
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


@dataclass(frozen=True, slots=True)
class Frame:
    """A message that has ``data`` and no other field. ``data_at``: where in ``wire`` its bytes begin."""

    wire: bytes
    data_at: int
    end: ClassVar[bool] = False
    error_code: ClassVar[str] = ""

    @property
    def data(self) -> memoryview:
        """Not a copy."""
        return memoryview(self.wire)[self.data_at :]


Chunk = Frame | jobs_pb2.TunnelChunk
"""Between whoever opens a tunnel and the coordinator."""
Data = Frame | link_pb2.TunnelData
"""Between the coordinator and the node that was asked to call."""


def frame(data: bytes) -> Frame:
    """Some bytes as a message."""
    head = bytes([DATA_TAG]) + _length(len(data))
    return Frame(head + data, len(head))


def to_wire(message: type[_Message]) -> Callable[[Frame | _Message], bytes]:
    """A serializer for calls of such messages."""

    def write(one: Frame | _Message) -> bytes:
        return one.wire if isinstance(one, Frame) else message.SerializeToString(one)

    return write


def from_wire(message: type[_Message]) -> Callable[[bytes], Frame | _Message]:
    """The deserializer for them; it raises DecodeError."""

    def read(wire: bytes) -> Frame | _Message:
        data_at = _data_at(wire)
        return message.FromString(wire) if data_at is None else Frame(wire, data_at)

    return read


def _data_at(wire: bytes) -> int | None:
    """Return the place where the bytes begin, or None if the message has any other field."""
    if not wire or wire[0] != DATA_TAG:
        return None
    length = 0
    for place, byte in enumerate(wire[1 : 1 + _MAX_LENGTH_BYTES]):
        length |= (byte & ~_MORE) << (7 * place)
        if not byte & _MORE:
            begin = 2 + place
            return begin if begin + length == len(wire) else None
    raise DecodeError("a tunnel's message has a length without an end")


def _length(number: int) -> bytes:
    written = bytearray()
    while number >= _MORE:
        written.append(number & ~_MORE & 0xFF | _MORE)
        number >>= 7
    written.append(number)
    return bytes(written)


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
