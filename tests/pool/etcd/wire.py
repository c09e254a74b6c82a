"""A wire between a store and a member of etcd, on which a test may hold back bytes in either direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Wire:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.requests, self.answers = asyncio.Event(), asyncio.Event()
        """Bytes pass while these are set."""
        self.held = 0
        """How many pieces were held back up to now."""
        self.awaited, self.sent, self.arrived = b"", asyncio.Event(), asyncio.Event()
        """Requests are held back from these bytes on. The events are set then, and when the bytes have gone on."""
        self.requests.set()
        self.answers.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = self._silent = 0
        self.endpoint = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def silence(self) -> None:
        """Lose all that comes on the present connections, without a word; later ones are well."""
        self._silent = self._connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        number = self._connections
        task.add_done_callback(self._tasks.discard)
        from_etcd, to_etcd = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, to_etcd, self.requests, number))
                both.create_task(self._pass_on(from_etcd, writer, self.answers, number))
        finally:
            for end in (writer, to_etcd):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, passes: asyncio.Event, number: int
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                is_awaited = passes is self.requests and bool(self.awaited) and self.awaited in data
                if is_awaited and not self.sent.is_set():
                    passes.clear()
                    self.sent.set()
                if not passes.is_set():
                    self.held += 1
                    data = await self._held_back(source, data, passes)
                if number <= self._silent:
                    continue
                target.write(data)
                await target.drain()
                if is_awaited:
                    self.arrived.set()
            target.write_eof()

    async def _held_back(self, source: asyncio.StreamReader, data: bytes, passes: asyncio.Event) -> bytes:
        """Return these bytes and those that come until bytes pass again."""
        free = asyncio.ensure_future(passes.wait())
        try:
            while not passes.is_set():
                more = asyncio.ensure_future(source.read(65536))
                await asyncio.wait({free, more}, return_when=asyncio.FIRST_COMPLETED)
                if not more.done():
                    more.cancel()
                    await asyncio.wait({more})
                elif more.result():
                    data += more.result()
                else:  # the other end has closed
                    await free
        finally:
            free.cancel()
        return data
