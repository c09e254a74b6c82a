"""Keep the bytes that one end of a tunnel's connection sent, until the other end acknowledges them."""

from __future__ import annotations

from collections import deque

MAX_KEPT_BYTES = 256 << 20
"""Bound the bytes that all connections of a node without a call keep together."""
SMALL_BYTES = 64 * 1024
"""Join neighbours up to this size, so that single bytes do not each cost an object."""


class KeptBytes:
    """Count the bytes that some connections keep together."""

    def __init__(self, limit: int = MAX_KEPT_BYTES) -> None:
        self._limit = limit
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._limit


class SentBytes:
    """Hold the bytes as they were read: a connection with much to send copies none of them here.

    Attributes:
        begin: the number of the first kept byte; the other end has acknowledged earlier ones.
        end: the number of the byte that comes next.
    """

    def __init__(self, counted: KeptBytes) -> None:
        self.begin = 0
        self.end = 0
        self._counted = counted
        self._pieces: deque[bytes | memoryview] = deque()

    def __len__(self) -> int:
        return self.end - self.begin

    def append(self, data: bytes) -> None:
        if not data:
            return
        if self._pieces and len(self._pieces[-1]) + len(data) <= SMALL_BYTES:
            self._pieces[-1] = b"".join((self._pieces[-1], data))
        else:
            self._pieces.append(data)
        self.end += len(data)
        self._counted.bytes += len(data)

    def since(self, position: int, most: int) -> list[bytes | memoryview]:
        """Return the bytes from this number on, at most so many, as pieces to be joined."""
        position = max(position, self.begin)
        pieces: list[bytes | memoryview] = []
        begin = self.end
        for piece in reversed(self._pieces):  # a sender is mostly near the end
            if begin <= position:
                break
            begin -= len(piece)
            pieces.append(piece)
        pieces.reverse()
        return _cut(pieces, position - begin, most)

    def forget(self, position: int) -> None:
        """Drop all bytes before this number, which the other end has."""
        position = min(position, self.end)
        if position <= self.begin:
            return
        self._counted.bytes -= position - self.begin
        while position > self.begin:
            piece = self._pieces.popleft()
            if len(piece) > position - self.begin:
                self._pieces.appendleft(memoryview(piece)[position - self.begin :])
                self.begin = position
            else:
                self.begin += len(piece)


def _cut(pieces: list[bytes | memoryview], skip: int, most: int) -> list[bytes | memoryview]:
    """Return the pieces without their first ``skip`` bytes, and at most so many bytes of the rest."""
    cut: list[bytes | memoryview] = []
    for piece in pieces:
        part = memoryview(piece)[skip : skip + most] if skip or len(piece) > most else piece
        skip = 0
        most -= len(part)
        cut.append(part)
        if not most:
            break
    return cut
