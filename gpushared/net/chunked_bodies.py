"""Read the plain chunks of chunked bodies (RFC 9112, 7.1) in large pieces, past the HTTP parser.

The parser copies each chunk four times and takes 20 us for it, which is most of the gate's cost of ``docker
cp`` and ``docker logs``. Only chunks that leave no choice are read here: a size in hexadecimal digits and
nothing else, and that many bytes with a line's end after them. All other bytes, the end of the body too, are
left to the parser, which has then seen a body of fewer chunks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import h11

from gpushared.net.socket_wire import Wire

SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,6})\r\n")
PART_OF_SIZE = re.compile(rb"(?:[1-9a-fA-F][0-9a-fA-F]{0,6}\r?)?")
LINE_END = b"\r\n"
CHUNKS_AT_ONCE = 64
"""One read may hold more chunks, and everybody waits while they are taken apart."""
FIRST_BYTES = 16 * 1024
READ_BYTES = 256 * 1024

LITTLE_BYTES = 4096
LITTLE_IN_A_ROW = 4
GATHER_SECONDS = 0.001
"""After so many reads so close together that brought so little, more gathers before the next: the engine
sends each line of a log by itself, and each costs the same in every process on the way, whatever its size."""


class PlainChunks:
    """Read a body's chunks from its beginning, as long as they are plain."""

    def __init__(self, wire: Wire, early: bytes, turn: Callable[[], Awaitable[None]]) -> None:
        """``early`` are bytes of the body that were read already."""
        self._wire = wire
        self._turn = turn
        self._bytes = bytearray(early)
        self._buffer = memoryview(self._bytes)
        self._start, self._end = 0, len(early)
        self._left = 0
        """So many bytes are left of the chunk that was begun, without its line's end."""
        self._in_chunk = False
        self._odd = False
        self._read_at = 0.0
        self._little = 0

    @property
    def rest(self) -> bytes:
        """Return the bytes that were read and not given out; after the last piece they are the parser's."""
        return bytes(self._buffer[self._start : self._end])

    async def next(self) -> memoryview:
        """Return the data of one read, good until the next call; empty if the parser must go on.

        Raises ``ConnectionError``, and ``h11.RemoteProtocolError`` for a malformed body.
        """
        if piece := self._take():
            await self._turn()
            return piece
        while not piece and not self._odd:
            await self._read()
            piece = self._take()
        return piece

    def _take(self) -> memoryview:
        """Return the data of the chunks in the buffer, moved together."""
        begin = end = self._start
        for _ in range(CHUNKS_AT_ONCE):
            if not self._in_chunk and not self._begin_chunk():
                break
            size = min(self._left, self._end - self._start)
            if begin == end:
                begin = end = self._start
            elif end != self._start:
                self._buffer[end : end + size] = self._buffer[self._start : self._start + size]
            end += size
            self._start += size
            self._left -= size
            if self._left or not self._end_chunk():
                break
        return self._buffer[begin:end]

    def _begin_chunk(self) -> bool:
        match = SIZE.match(self._bytes, self._start, self._end)
        if match is None:
            self._odd = self._odd or not PART_OF_SIZE.fullmatch(self._bytes, self._start, self._end)
            return False
        self._start = match.end()
        self._left = int(match[1], 16)
        self._in_chunk = True
        return True

    def _end_chunk(self) -> bool:
        if self._bytes.startswith(LINE_END, self._start, self._end):
            self._start += len(LINE_END)
            self._in_chunk = False
            return True
        if not LINE_END.startswith(self._bytes[self._start : self._end]):
            raise h11.RemoteProtocolError("a chunk is longer than it says")
        return False

    async def _read(self) -> None:
        kept = self.rest
        if self._end == len(self._buffer):
            self._bytes = bytearray(FIRST_BYTES if self._end < FIRST_BYTES else READ_BYTES)
            self._buffer = memoryview(self._bytes)
        self._buffer[: len(kept)] = kept
        self._start, self._end = 0, len(kept)
        if self._little >= LITTLE_IN_A_ROW:
            await asyncio.sleep(GATHER_SECONDS)
        got = await self._wire.read_into(self._buffer[len(kept) :])
        self._look(got)
        self._end += got
        if not got:
            if self._in_chunk:
                raise h11.RemoteProtocolError("the body ends in the middle of a chunk")
            self._odd = True
        await self._turn()

    def _look(self, got: int) -> None:
        now = asyncio.get_running_loop().time()
        is_little = got < LITTLE_BYTES and now - self._read_at < GATHER_SECONDS
        self._little = self._little + 1 if is_little else 0
        self._read_at = now
