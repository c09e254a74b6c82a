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

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        self.connections.append(sent)
        back, forth = await asyncio.open_unix_connection(self.engine)
        await asyncio.gather(_copy(reader, forth, sent), _copy(back, writer, bytearray()))
        forth.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(ConnectionError):
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
