"""Move bytes between a socket and the messages of a tunnel, without parsing messages that are only bytes.

``TunnelChunk`` and ``TunnelData`` have their bytes in the same field. A message with that field alone is
therefore the same in both, and can pass from one call to the other unchanged. Protobuf would copy the content
four times on the way; at hundreds of megabytes a second a coordinator spends its time on that.
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
"""This is the tag of the field ``data`` of both messages: number 2, with a length before the bytes
(protobuf's wire format)."""
_MORE = 0x80
"""Each byte of a length but the last has this bit; its other bits are the length's, the lowest first."""
_MAX_LENGTH_BYTES = 5

_Message = TypeVar("_Message", jobs_pb2.TunnelChunk, link_pb2.TunnelData)
CHUNK_BYTES = 1024 * 1024
"""Bound one message. Each costs the same in every process on the way, whatever its size."""
MUCH_BYTES = 16 * 1024
"""After this many bytes at once more bytes are likely to follow: they gather in the socket for a moment, so
that they leave in few large messages. Typed input and programs' short answers never reach this size."""
BULK_BYTES = 128 * 1024
GATHER_SECONDS = 0.003
"""Gather this long after a read of ``BULK_BYTES`` or more, and for a shorter time after a smaller read."""
SOCKET_BYTES = 1 << 20

Receive = Callable[[], Awaitable[bytes | memoryview | None]]
"""Return the next bytes from the other end, possibly empty, or None after the last."""
Send = Callable[[bytes, bool], Awaitable[None]]
"""Send bytes to the other end; the flag marks the last bytes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Hold a message that has only ``data``. ``data_at`` is where its bytes begin in ``wire``."""

    wire: bytes
    data_at: int
    end: ClassVar[bool] = False
    error_code: ClassVar[str] = ""

    @property
    def data(self) -> memoryview:
        """Return a view of the bytes, not a copy."""
        return memoryview(self.wire)[self.data_at :]


Chunk = Frame | jobs_pb2.TunnelChunk
"""These messages pass between the opener of a tunnel and the coordinator."""
Data = Frame | link_pb2.TunnelData
"""These messages pass between the coordinator and the node that it requested to call."""


def frame(*pieces: bytes | memoryview) -> Frame:
    """Return the joined bytes as a message."""
    head = bytes([DATA_TAG]) + _length(sum(map(len, pieces)))
    return Frame(b"".join((head, *pieces)), len(head))


def gather_seconds(size: int) -> float:
    """Return how long to leave a socket alone after a read of so many bytes.

    A read of a whole message leaves no time: the socket may hold another one.
    """
    if not MUCH_BYTES <= size < CHUNK_BYTES:
        return 0.0
    return GATHER_SECONDS * min(1.0, size / BULK_BYTES)


def to_wire(kind: type[_Message]) -> Callable[[Frame | _Message], bytes]:
    """Return a serializer for calls with these messages."""

    def write(message: Frame | _Message) -> bytes:
        return message.wire if isinstance(message, Frame) else kind.SerializeToString(message)

    return write


def from_wire(kind: type[_Message]) -> Callable[[bytes], Frame | _Message]:
    """Return a deserializer for calls with these messages; it raises DecodeError."""

    def read(wire: bytes) -> Frame | _Message:
        data_at = _data_at(wire)
        return kind.FromString(wire) if data_at is None else Frame(wire, data_at)

    return read


def _data_at(wire: bytes) -> int | None:
    """Return the place where the bytes begin, or None if the message has any other field."""
    if not wire or wire[0] != DATA_TAG:
        return None
    length = 0
    for index, byte in enumerate(wire[1 : 1 + _MAX_LENGTH_BYTES]):
        length |= (byte & ~_MORE) << (7 * index)
        if not byte & _MORE:
            begin = 2 + index
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
    """Let a unix socket buffer more of the written bytes, as far as the system allows."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)


async def pump(sock: socket.socket, receive: Receive, send: Send) -> None:
    """Pass bytes until the other end sends no more, or the socket's peer has gone.

    The pump passes the socket's half-close on, and the other end's later answers still come back. The caller
    closes the socket, and may first write a reason on it.
    """
    loop = asyncio.get_running_loop()
    widen(sock)
    upwards = asyncio.create_task(_from_socket(loop, sock, send))
    try:
        while (data := await receive()) is not None:
            if data:
                await loop.sock_sendall(sock, data)
    except ConnectionError:
        pass  # the socket's reader has gone
    finally:
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)


async def _from_socket(loop: asyncio.AbstractEventLoop, sock: socket.socket, send: Send) -> None:
    """Send the socket's bytes, then an end. A reset also is an end: the peer left without reading all."""
    while True:
        try:
            data = await loop.sock_recv(sock, CHUNK_BYTES)
        except ConnectionError:
            data = b""
        await send(data, not data)
        if not data:
            return
        # A socket that always has data must still let other tasks run.
        await asyncio.sleep(gather_seconds(len(data)))
