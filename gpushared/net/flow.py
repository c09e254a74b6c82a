"""Copy bytes one way between two wires that have left HTTP, with as few wake-ups and copies as possible.

Programs write their output in small pieces, and a reader works for each piece. So pieces that follow each
other closely are sent together: a piece after a pause at once, the next ones within a millisecond.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from gpushared.net.limits import UserShare
from gpushared.net.socket_wire import Wire

FIRST_BYTES = 4 * 1024
GROWTH = 8
BUFFER_BYTES = 256 * 1024
MUCH_BYTES = 64 * 1024
"""So many bytes are sent at once."""
GATHER_SECONDS = 0.001


class End(Enum):
    """Give the reason why a flow is over."""

    SOURCE_ENDED = auto()
    SOURCE_LOST = auto()
    SINK_LOST = auto()


class Flow:
    """Copy by the event loop's callbacks. A slow sink leaves at most the buffer's bytes waiting."""

    def __init__(self, source: Wire, sink: Wire, share: UserShare) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source.sock, sink.sock
        self._share = share
        self._buffer = memoryview(bytearray(FIRST_BYTES))
        self._sent = self._filled = 0
        self._write_at = 0.0
        self._end: End | None = None
        self._done: asyncio.Future[End] = self._loop.create_future()
        self._is_blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Future[None] | None = None

    async def run(self) -> End:
        """Return when the source has ended and the sink has all bytes, or one of them is lost."""
        self._listen()
        try:
            return await self._done
        finally:
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._sink)
            self._stop_timer()
            if self._turn is not None:
                self._turn.cancel()

    def _listen(self) -> None:
        self._loop.add_reader(self._source, self._on_readable)

    def _on_readable(self) -> None:
        if self._share.take_turn():
            self._read()
        else:
            self._loop.remove_reader(self._source)
            self._turn = self._share.queue_for_turn()
            self._turn.add_done_callback(self._on_turn)

    def _on_turn(self, _: asyncio.Future[None]) -> None:
        self._turn = None
        # Once it is over, a reader would stay with the socket's number, and who has it next would hang.
        if not self._done.done() and not self._is_blocked:
            self._listen()
            self._read()

    def _read(self) -> None:
        try:
            size = self._source.recv_into(self._buffer[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            self._no_more(End.SOURCE_LOST)
            return
        if not size:
            self._no_more(End.SOURCE_ENDED)
            return
        self._filled += size
        if self._is_much() or self._loop.time() >= self._write_at:
            self._write()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._write_at, self._write)

    def _no_more(self, end: End) -> None:
        self._end = end
        self._loop.remove_reader(self._source)
        self._write()

    def _is_much(self) -> bool:
        return self._filled >= min(MUCH_BYTES, len(self._buffer))

    def _write(self) -> None:
        self._stop_timer()
        try:
            if self._filled:
                self._sent += self._sink.send(self._buffer[self._sent : self._filled])
        except BlockingIOError:
            pass
        except OSError:
            self._finish(End.SINK_LOST)
            return
        if self._sent == self._filled:
            self._empty()
        elif not self._is_blocked:
            self._is_blocked = True
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)

    def _empty(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(self._sink)
            if self._turn is None:
                self._listen()
        if self._end is not None:
            self._finish(self._end)
        elif self._filled == len(self._buffer) < BUFFER_BYTES:
            self._buffer = memoryview(bytearray(len(self._buffer) * GROWTH))
        self._sent = self._filled = 0
        self._write_at = self._loop.time() + GATHER_SECONDS

    def _finish(self, end: End) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if not self._done.done():
            self._done.set_result(end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
