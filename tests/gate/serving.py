"""The gate on a socket of its own in the test's event loop, and clients to throw at it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from gpushared.net.http_server import Limits, Routes, WebReply, WebRequest, is_here, serve_http

ROOT = Caller(0, 0, "root", trusted=True)
ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")


class Connections:
    """Holds a strong reference to the task of each connection; the event loop itself holds only weak ones."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Cancel what is still open and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)


@dataclass
class ServedSocket:
    """An address, and what goes on behind it."""

    path: Path
    connections: Connections

    @property
    def url(self) -> str:
        return f"unix://{self.path}"


@asynccontextmanager
async def serving(
    routes: Routes,
    caller: Caller = ROOT,
    limits: Limits | None = None,
    is_away: Callable[[], bool] = is_here,
) -> AsyncIterator[ServedSocket]:
    """A socket whose every client is ``caller``; no connection may have ended by an error of ours."""
    connections = Connections()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # As the daemon's front: the first bytes are read to tell the protocols apart.
        prefix = await reader.read(3)
        if not prefix:
            writer.close()
            return
        work = serve_http(reader, writer, caller, routes, prefix=prefix, limits=limits, is_away=is_away)
        connections.spawn(work)

    with tempfile.TemporaryDirectory(prefix="gate-") as directory:
        path = Path(directory) / "s"
        server = await asyncio.start_unix_server(connected, path)
        try:
            yield ServedSocket(path, connections)
        finally:
            server.close()
            await connections.close()
            assert connections.failures == []


@asynccontextmanager
async def serving_gate(
    gate: Gate,
    caller: Caller = ROOT,
    limits: Limits | None = None,
    is_away: Callable[[], bool] = is_here,
) -> AsyncIterator[ServedSocket]:
    async with serving(Routes(json=answer_json, docker=gate.handle), caller, limits, is_away) as served:
        yield served
    await gate.close()
    await gate.pins.sweep()


async def answer_json(request: WebRequest) -> WebReply:
    """An echo of what the handler is given."""
    told = {"path": request.path, "uid": request.caller.uid, "body": request.body.decode()}
    return WebReply(200, json.dumps(told).encode())


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def all_gone(served: ServedSocket, before: int) -> None:
    """Wait until no connection is left, and no more descriptors are open than before."""
    async with asyncio.timeout(30):
        # No event announces that the kernel has closed a descriptor.
        while len(served.connections) > 0 or descriptors() > before:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> str:
        return str(json.loads(self.body)["message"])


@dataclass
class RawClient:
    """Bytes on a unix socket, with just enough HTTP to read an answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: list[bytes] = field(default_factory=list)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def reply(self) -> Reply:
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, await self._chunked())
        return Reply(status, headers, await self.reader.readexactly(int(headers.get("content-length", 0))))

    async def _chunked(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def raw_client(served: ServedSocket) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_unix_connection(served.path)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


async def ask(served: ServedSocket, data: bytes) -> Reply:
    """One request as bytes, and its answer."""
    async with raw_client(served) as client:
        await client.send(data)
        async with asyncio.timeout(30):
            return await client.reply()


def request(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: docker", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
