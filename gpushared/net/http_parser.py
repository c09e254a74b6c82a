"""Parse the HTTP messages from a wire, return their bodies in large pieces, and watch if the client stays.

The parser copies each chunk four times and takes 20 us for it, which is most of the gate's cost of ``docker
cp`` and ``docker logs``. This module reads only unambiguous chunks: a size in hexadecimal digits and nothing
else, and that many bytes with a line's end after them. It leaves all other bytes, the end of the body too, to
the parser, which has then seen a body of fewer chunks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import h11

from gpushared.net.socket_wire import Piece, Wire

EVENTS_AT_ONCE = 16
"""Take this many events at once: a body may come in thousands of pieces of one byte."""
HEAD_END = re.compile(rb"\n\r?\n")
"""The parser finds the end of a head by this pattern."""

Step = Callable[[], Awaitable[None]]
CHUNK_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,6})\r\n")
PART_OF_SIZE = re.compile(rb"(?:[1-9a-fA-F][0-9a-fA-F]{0,6}\r?)?")
LINE_END = b"\r\n"
CHUNKS_AT_ONCE = 64
"""Take apart this many chunks at once, because one read may hold more and everybody waits meanwhile."""
FIRST_BYTES = 16 * 1024
READ_BYTES = 256 * 1024

SMALL_READ_BYTES = 4096
SMALL_READS_IN_A_ROW = 4
GATHER_SECONDS = 0.001
"""Gather for this long after many reads in quick succession that brought little: the engine sends each line
of a log by itself, and each costs the same in every process on the way, whatever its size."""
WATCH_AFTER_SECONDS = 0.05
"""Begin the watch after this time: most answers are ready sooner, and cost less than a watch."""


class Incoming:
    """Read one direction of a connection. Raises ``ConnectionError``, ``h11.RemoteProtocolError``."""

    def __init__(
        self,
        http: h11.Connection,
        wire: Wire,
        turn: Step,
        *,
        early: bytes = b"",
        before_reading: Step | None = None,
        read_bytes: int,
    ) -> None:
        """``early`` was read already; ``turn`` is awaited after each piece that is read."""
        self.unfed = early
        """These bytes were read, and not passed to the parser yet."""
        self._http = http
        self._wire = wire
        self._turn = turn
        self._before_reading = before_reading
        self._read_bytes = read_bytes
        self._events = 0
        self._is_new = False
        self._plain: PlainChunks | None = None

    @property
    def unparsed(self) -> bytes:
        """Return all bytes that were read and are in no message so far."""
        return self._http.trailing_data[0] + self.unfed

    async def event(self) -> h11.Event:
        """Return the parser's next event."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._count()
            if not self.unfed:
                await self._read()
            self._feed()
        await self._count()
        assert not isinstance(event, type)
        if isinstance(event, h11.Request | h11.Response):
            self._is_new = _is_chunked(event) and not self._http.trailing_data[0]
        return event

    async def piece(self) -> Piece | None:
        """Return the next piece of the body, valid until the next call; None at its end."""
        if self._http.their_state is not h11.SEND_BODY:
            return None
        if self._is_new:
            self._is_new = False
            # An answer to a HEAD ends where other answers begin their chunks.
            if self._http.next_event() is not h11.NEED_DATA:
                return None
            await self._begin_chunks()
        if self._plain is not None:
            if piece := await self._plain.next():
                return piece
            self.unfed, self._plain = self._plain.rest, None
        event = await self.event()
        return event.data if isinstance(event, h11.Data) else None

    async def _begin_chunks(self) -> None:
        if not self.unfed and self._before_reading is not None:
            await self._before_reading()
        self._plain = PlainChunks(self._wire, self.unfed, self._turn)
        self.unfed = b""

    async def _read(self) -> None:
        if self._before_reading is not None:
            await self._before_reading()
        self.unfed = await self._wire.read(self._read_bytes)
        await self._turn()

    def _feed(self) -> None:
        """Pass a head alone to the parser, so that the bytes after it need not go through the parser."""
        size = len(self.unfed)
        if self._http.their_state in {h11.IDLE, h11.SEND_RESPONSE} and (end := HEAD_END.search(self.unfed)):
            size = end.end()
        fed, self.unfed = self.unfed[:size], self.unfed[size:]
        self._http.receive_data(fed)

    async def _count(self) -> None:
        self._events += 1
        if self._events % EVENTS_AT_ONCE == 0:
            await self._turn()


def _is_chunked(head: h11.Request | h11.Response) -> bool:
    """Return True for a chunked body; the parser has refused all other transfer encodings."""
    return any(name == b"transfer-encoding" for name, _ in head.headers)


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
        """This many bytes are left of the begun chunk, without its line's end."""
        self._in_chunk = False
        self._needs_parser = False
        self._read_at = 0.0
        self._small_reads = 0

    @property
    def rest(self) -> bytes:
        """Return the bytes that were read and not returned; after the last piece they are the parser's."""
        return bytes(self._buffer[self._start : self._end])

    async def next(self) -> memoryview:
        """Return the data of one read, valid until the next call; empty if the parser must go on.

        Raises ``ConnectionError``, and ``h11.RemoteProtocolError`` for a malformed body.
        """
        if piece := self._take():
            await self._turn()
            return piece
        while not piece and not self._needs_parser:
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
        match = CHUNK_SIZE.match(self._bytes, self._start, self._end)
        if match is None:
            self._needs_parser = self._needs_parser or not PART_OF_SIZE.fullmatch(
                self._bytes, self._start, self._end
            )
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
        rest = self.rest
        if self._end == len(self._buffer):
            self._bytes = bytearray(FIRST_BYTES if self._end < FIRST_BYTES else READ_BYTES)
            self._buffer = memoryview(self._bytes)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        if self._small_reads >= SMALL_READS_IN_A_ROW:
            await asyncio.sleep(GATHER_SECONDS)
        size = await self._wire.read_into(self._buffer[len(rest) :])
        self._note_size(size)
        self._end += size
        if not size:
            if self._in_chunk:
                raise h11.RemoteProtocolError("the body ends in the middle of a chunk")
            self._needs_parser = True
        await self._turn()

    def _note_size(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        is_small = size < SMALL_READ_BYTES and now - self._read_at < GATHER_SECONDS
        self._small_reads = self._small_reads + 1 if is_small else 0
        self._read_at = now


class HangUpWatch:
    """Cancel ``task`` when the client has hung up. Meanwhile read some of the client's data ahead."""

    def __init__(self, incoming: Incoming, wire: Wire, ahead_bytes: int) -> None:
        self.gone = False
        self.is_full = False
        """This is True if more bytes came than the read-ahead bound."""
        self.task: asyncio.Task[None] | None = None
        self._incoming = incoming
        self._wire = wire
        self._ahead_bytes = ahead_bytes
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    def watch_soon(self) -> None:
        """Begin to watch in a moment, because the request is complete."""
        self.is_full = False
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._begin)

    async def stop(self) -> None:
        """End the watch; it reads nothing any more after this returns."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
            self._watcher = None

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Read ahead, within the bound, until the end; detect a hang-up behind unread bytes, too."""
        while len(self._incoming.unfed) <= self._ahead_bytes:
            try:
                data = await self._wire.read()
            except ConnectionError:
                data = b""
            if not data:
                break
            self._incoming.unfed += data
        else:
            self.is_full = True
        await self._wire.hung_up()
        if self.task is not None:
            self.gone = True
            self.task.cancel()
