"""Lock containers and volumes against actions that must not overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """Keep a container from being started through the gate while files are copied.

    A volume is neither made nor removed through the gate while a container with it is being created: until
    the engine has that container, and keeps the volume for it, another user could make one of the same name.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, container: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(container, asyncio.Lock())
        async with lock:
            yield

    @asynccontextmanager
    async def of_all(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Take the locks one after the other, in one order for all callers, so that there is no deadlock."""
        async with AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self.of(name))
            yield
