"""A client that speaks bare HTTP/2 (RFC 9113), to say what no gRPC library would say.

It keeps to the windows that the server gives, and to nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
FIRST_WINDOW = 65_535
FRAME_BYTES = 16_384

Headers = Sequence[tuple[str, str]]


class Http2:
    """One connection. ``answers``: by stream the bytes of its headers and data; ``ended``: by stream how."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answers: defaultdict[int, bytes] = defaultdict(bytes)
        self.ended: dict[int, str] = {}
        self.is_gone = False
        self._reader = reader
        self._writer = writer
        self._next = 1
        self._window = FIRST_WINDOW
        self._first_window = FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._news = asyncio.Event()

    async def begin(self) -> None:
        self._writer.write(PREFACE + _frame(SETTINGS, 0, 0, b""))
        await self._writer.drain()

    async def listen(self) -> None:
        """Until the server hangs up."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(9)
                (size,) = struct.unpack(">I", b"\0" + head[:3])
                (stream,) = struct.unpack(">I", head[5:])
                self._heard(head[3], head[4], stream & 0x7FFFFFFF, await self._reader.readexactly(size))
                self._news.set()
        self.is_gone = True
        self._news.set()

    def _heard(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._widen(stream, *struct.unpack(">I", body))
        elif kind == SETTINGS and not flags & ACK:
            self._set(body)
        elif kind == PING and not flags & ACK:
            self._writer.write(_frame(PING, ACK, 0, body))
        elif kind in {HEADERS, DATA}:
            self.answers[stream] += body
            if flags & END_STREAM:
                self.ended[stream] = "end"
        elif kind == RST_STREAM:
            self.ended[stream] = "reset"
        elif kind == GOAWAY:
            self.is_gone = True

    def _widen(self, stream: int, more: int) -> None:
        if stream:
            self._windows[stream] = self._windows.get(stream, self._first_window) + more
        else:
            self._window += more

    def _set(self, body: bytes) -> None:
        for at in range(0, len(body), 6):
            name, value = struct.unpack(">HI", body[at : at + 6])
            if name == INITIAL_WINDOW_SIZE:
                self._first_window = value
        self._writer.write(_frame(SETTINGS, ACK, 0, b""))

    async def call(self, path: str, headers: Headers = ()) -> int:
        """The headers of a gRPC call, and nothing of its message; the number of its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows.setdefault(stream, self._first_window)
        said = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "pool")]
        said += [("content-type", "application/grpc"), ("te", "trailers"), *headers]
        block = b"".join(b"\0" + _word(name) + _word(value) for name, value in said)
        self._writer.write(_frame(HEADERS, END_HEADERS, stream, block))
        await self._writer.drain()
        return stream

    async def say(self, stream: int, size: int, *, seconds: float) -> int:
        """Bytes of a message, as far as the server takes them in the time; how many it took."""
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while sent < size and stream not in self.ended and not self.is_gone:
                    now = min(size - sent, FRAME_BYTES, self._window, self._windows[stream])
                    if now <= 0:
                        self._news.clear()
                        await self._news.wait()
                        continue
                    self._window -= now
                    self._windows[stream] -= now
                    self._writer.write(_frame(DATA, 0, stream, bytes(now)))
                    await self._writer.drain()
                    sent += now
        return sent

    async def announce(self, stream: int, size: int) -> None:
        """The head of a gRPC message of so many bytes."""
        self._window -= 5
        self._windows[stream] -= 5
        self._writer.write(_frame(DATA, 0, stream, b"\0" + struct.pack(">I", size)))
        await self._writer.drain()

    async def over(self, stream: int, seconds: float) -> str:
        """How the server ended a stream; empty where it did not in the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while stream not in self.ended and not self.is_gone:
                    self._news.clear()
                    await self._news.wait()
        return self.ended.get(stream, "gone" if self.is_gone else "")


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _word(text: str) -> bytes:
    """As a literal of HPACK (RFC 7541, section 5.2), which is at most 126 bytes or has a longer number."""
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, number = len(data) - 127, bytearray([127])
    while rest >= 128:
        number.append(rest % 128 + 128)
        rest //= 128
    return bytes([*number, rest]) + data


@asynccontextmanager
async def http2(port: int, address: str = "127.0.0.1") -> AsyncIterator[Http2]:
    """A connection by TLS from an address to a port of this machine; whose it is is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(address, 0))
    made = Http2(reader, writer)
    await made.begin()
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        listening.cancel()
        writer.transport.abort()
        await asyncio.gather(listening, return_exceptions=True)
