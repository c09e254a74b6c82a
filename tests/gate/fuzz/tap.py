"""Between the gate and a real engine: both go on as they would, and what the gate sends is kept."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tap:
    engine: str
    path: str = ""
    connections: list[bytearray] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        self.connections.append(sent)
        self.tasks.append(asyncio.create_task(self._carry(reader, writer, sent)))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytearray
    ) -> None:
        back, forth = await asyncio.open_unix_connection(self.engine)
        # A way that breaks ends the other one, which would else wait for an end that does not come.
        with contextlib.closing(forth), contextlib.closing(writer):
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_copy(reader, forth, sent))
                    ways.create_task(_copy(back, writer, bytearray()))
            except* ConnectionError:
                pass

    async def close(self) -> None:
        """Break what is still open."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    while data := await reader.read(65536):
        kept += data
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def tapping(engine: str) -> AsyncIterator[Tap]:
    with tempfile.TemporaryDirectory(prefix="tap-") as directory:
        tap = Tap(engine, str(Path(directory) / "s"))
        server = await asyncio.start_unix_server(tap.connected, tap.path)
        try:
            yield tap
        finally:
            server.close()
            await tap.close()
