"""The newest changes of a store, for those who follow it; older ones are forgotten."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence

from gpushared.pool.store import Change, Conflict, StoreUnavailable

MAX_CHANGES = 4096
MAX_CHANGE_BYTES = 16 * 1024 * 1024


class ChangeLog:
    """Lives on one event loop. ``base``: the revision that everything in it came after."""

    def __init__(self, base: int, *, limit: int = MAX_CHANGES, limit_bytes: int = MAX_CHANGE_BYTES) -> None:
        self._base = base
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._newest: deque[Change] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, changes: Sequence[Change]) -> None:
        """Add the changes of one transaction."""
        for change in changes:
            self._newest.append(change)
            self._bytes += _size(change)
        while self._newest and (len(self._newest) > self._limit or self._bytes > self._limit_bytes):
            self._forget_oldest()
        self._wake()

    def close(self) -> None:
        """Followers get StoreUnavailable."""
        self._closed = True
        self._wake()

    async def follow(self, prefix: str, after: int) -> AsyncIterator[Change]:
        """Follow the changes below a prefix, as ``Store.watch`` does."""
        while True:
            changed = self._changed
            for change in self._since(after):
                after = change.revision
                if change.key.startswith(prefix):
                    yield change
            if changed is self._changed:
                await changed.wait()

    def _since(self, after: int) -> list[Change]:
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="the daemon is stopping")
        if after < self._base:
            raise Conflict(f"changes after revision {after} are not kept any more", hint="load again")
        return [change for change in self._newest if change.revision > after]

    def _forget_oldest(self) -> None:
        """All of one transaction's: half of it would be worth nothing."""
        self._base = self._newest[0].revision
        while self._newest and self._newest[0].revision == self._base:
            self._bytes -= _size(self._newest.popleft())

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def changes_of(puts: Mapping[str, bytes], deleted: Sequence[str], revision: int) -> tuple[Change, ...]:
    """Return the changes of one transaction."""
    return (
        *(Change(key, value, revision) for key, value in puts.items()),
        *(Change(key, None, revision) for key in deleted),
    )


def _size(change: Change) -> int:
    return len(change.key) + len(change.value or b"")
