"""Bound the open connections of browsers, in total and of each address."""

from __future__ import annotations

import asyncio

MAX_CONNECTIONS = 1024
MAX_OF_ADDRESS = 256
"""A browser has six for its calls and one for its stream, and a lab may stand behind one address."""


class OpenConnections:
    """Hold the tasks of open connections by address, each address's oldest first.

    When all connections are in use, a new one replaces the oldest of the address that has most.
    """

    def __init__(self, most: int = MAX_CONNECTIONS, most_of_address: int = MAX_OF_ADDRESS) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._by_address: dict[str, dict[asyncio.Task[None], None]] = {}
        self._count = 0

    def has_room(self, address: str) -> bool:
        """Return True if this address may have another connection; end another one's if that is needed."""
        own = len(self._by_address.get(address, ()))
        if own >= self._most_of_address:
            return False
        if self._count < self._most:
            return True
        busiest = max(self._by_address, key=lambda other: len(self._by_address[other]))
        if len(self._by_address[busiest]) <= own + 1:
            return False
        oldest = next(iter(self._by_address[busiest]))
        self.remove(busiest, oldest)
        oldest.cancel()
        return True

    def add(self, address: str, task: asyncio.Task[None]) -> None:
        self._by_address.setdefault(address, {})[task] = None
        self._count += 1

    def remove(self, address: str, task: asyncio.Task[None]) -> None:
        """Forget a connection; one that was forgotten already changes nothing."""
        tasks = self._by_address.get(address, {})
        if task in tasks:
            del tasks[task]
            self._count -= 1
            if not tasks:
                del self._by_address[address]
