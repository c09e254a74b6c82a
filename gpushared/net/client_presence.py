"""Watch the client of a complete request: when the client has hung up, the work on the request ends."""

from __future__ import annotations

import asyncio

from gpushared.net.http_parser import Incoming
from gpushared.net.socket_wire import Wire

WATCH_AFTER_SECONDS = 0.05
"""The watch begins after so long: most answers are ready sooner, and cost less than a watch."""


class ClientPresence:
    """``task`` is cancelled when the client has hung up. Of what it sends meanwhile, some is read ahead."""

    def __init__(self, incoming: Incoming, wire: Wire, ahead_bytes: int) -> None:
        self.gone = False
        self.is_full = False
        """True if more bytes came than are read ahead."""
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
        """End the watch; nothing is read any more after the return."""
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
        """Read ahead, within the bound, until there is an end; a hang-up is seen behind unread bytes, too."""
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
