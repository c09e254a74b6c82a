"""A TCP proxy between a node and its coordinator that can be cut, half-opened and slowed, each way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

COPY_BYTES = 16 * 1024


class Direction:
    """One direction of all connections."""

    def __init__(self) -> None:
        self.lossy = False
        """What comes is swallowed: the connection stays open, and nobody hears anything."""
        self.delay_seconds = 0.0
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Read nothing more, so that the sender's buffers fill up."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._open.wait()
                data = await reader.read(COPY_BYTES)
                if not data:
                    return
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if not self.lossy:
                    writer.write(data)
                    await writer.drain()


class Proxy:
    """``up`` is from those who connect, ``down`` to them."""

    def __init__(self, port: int) -> None:
        """``port``: where it leads, on this machine; may be changed."""
        self.target = port
        self.port = 0
        self.up = Direction()
        self.down = Direction()
        self.refuses = False
        self.connections = 0
        self.connected_at: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def cut(self) -> None:
        """Reset all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await self.cut()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuses:
                return
            self.connections += 1
            self.connected_at.append(asyncio.get_running_loop().time())
            with contextlib.suppress(ConnectionError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
                try:
                    await self._both_ways(reader, writer, far_reader, far_writer)
                finally:
                    far_writer.transport.abort()
        finally:
            writer.transport.abort()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        ways = [
            asyncio.create_task(self.up.copy(reader, far_writer)),
            asyncio.create_task(self.down.copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
