"""Whether a client whose request is complete is still there: for one that has hung up nobody works on."""

from __future__ import annotations

import asyncio

from gpushared.gate.incoming import Incoming
from gpushared.gate.wire import Wire

WATCH_AFTER_SECONDS = 0.05
"""Most answers are ready sooner; watching for the client's end costs more than they do."""


class Presence:
    """``task`` is cancelled when the client has hung up. Of what it sends meanwhile, some is read ahead."""

    def __init__(self, incoming: Incoming, wire: Wire, ahead_bytes: int) -> None:
        self.gone = False
        self.is_full = False
        """More came than is read ahead."""
        self.task: asyncio.Task[None] | None = None
        self._incoming = incoming
        self._wire = wire
        self._ahead_bytes = ahead_bytes
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    def watch_soon(self) -> None:
        """From a moment on; the request is complete."""
        self.is_full = False
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._begin)

    async def stop(self) -> None:
        """Nothing is read any more when it comes back."""
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
