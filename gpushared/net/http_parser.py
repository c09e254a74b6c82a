"""Parse the HTTP messages from a wire, and give their bodies in pieces as large as they come."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import h11

from gpushared.net.chunked_bodies import PlainChunks
from gpushared.net.socket_wire import Piece, Wire

EVENTS_AT_ONCE = 16
"""So many events are taken at once: a body may come in thousands of pieces of one byte."""
HEAD_END = re.compile(rb"\n\r?\n")
"""The parser finds the end of a head by this pattern."""

Step = Callable[[], Awaitable[None]]


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
        """``early`` was read already; ``turn`` is waited for after each piece that is read."""
        self.unfed = early
        """These bytes were read, and not given to the parser yet."""
        self._http = http
        self._wire = wire
        self._turn = turn
        self._before_reading = before_reading
        self._read_bytes = read_bytes
        self._events = 0
        self._is_new = False
        self._plain: PlainChunks | None = None

    @property
    def held(self) -> bytes:
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
        """Return the next piece of the body, good until the next call; None at its end."""
        if self._http.their_state is not h11.SEND_BODY:
            return None
        if self._is_new:
            self._is_new = False
            # An answer to a HEAD is over where others begin their chunks.
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
        """Give the parser a head alone, so that the bytes after it need not go through the parser."""
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
