"""What must not happen at one time to one container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """A container is not started through the gate while files are copied."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, container: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(container, asyncio.Lock())
        async with lock:
            yield
