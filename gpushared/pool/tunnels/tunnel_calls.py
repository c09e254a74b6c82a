"""``Jobs.Tunnel`` and ``Jobs.Logs`` on the coordinator: a user's stream joined with a node's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.model.errors import GpushareError, Unavailable
from gpushared.net.http_client import EngineConnection, EngineSocket
from gpushared.pool.tunnels.coordinator_tunnels import Pipe
from gpushared.pool.tunnels.tunnel_bytes import pump
from gpushared.pool.tunnels.tunnel_frames import Chunk, Frame, frame

UserContext = grpc.aio.ServicerContext[Chunk, Chunk]
OpenPipe = Callable[[], AbstractAsyncContextManager[Pipe]]


async def splice(context: UserContext, pipe: Pipe, *, outlives_calls: bool = False) -> None:
    """Pass messages on until the node's call ends. Raises Unavailable where the node did not say the end.

    ``outlives_calls``: the end of the user's call is not the end of what the user sends.
    """
    upwards = asyncio.create_task(_upwards(context, pipe, outlives_calls=outlives_calls))
    has_ended = False
    try:
        while (data := await pipe.read()) is not None:
            has_ended = has_ended or data.end
            await context.write(data if isinstance(data, Frame) else _chunk(data))
        if not has_ended:
            raise Unavailable("the tunnel's node went away")
    finally:
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)


async def _upwards(context: UserContext, pipe: Pipe, *, outlives_calls: bool) -> None:
    while isinstance(chunk := await context.read(), Frame | jobs_pb2.TunnelChunk):
        await pipe.write(chunk if isinstance(chunk, Frame) else _data(chunk))
    if not outlives_calls:
        await pipe.write(link_pb2.TunnelData(end=True))


def _chunk(data: link_pb2.TunnelData) -> jobs_pb2.TunnelChunk:
    chunk = jobs_pb2.TunnelChunk(data=data.data, end=data.end, over=data.over)
    if data.HasField("received"):
        chunk.received = data.received
    return chunk


def _data(chunk: jobs_pb2.TunnelChunk) -> link_pb2.TunnelData:
    data = link_pb2.TunnelData(data=chunk.data, end=chunk.end, over=chunk.over)
    if chunk.HasField("received"):
        data.received = chunk.received
    return data


class GateThrough(EngineSocket):
    """A node's gate as a Docker engine, each connection through a tunnel of its own."""

    def __init__(self, open_pipe: OpenPipe, name: str, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__(name)
        self._open_pipe = open_pipe
        self._tasks = tasks

    async def connect(self) -> EngineConnection:
        stack = AsyncExitStack()
        pipe = await stack.enter_async_context(self._open_pipe())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        theirs.setblocking(False)
        task = asyncio.create_task(_run(stack, theirs, pipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return EngineConnection(ours, self.path)


async def _run(stack: AsyncExitStack, sock: socket.socket, pipe: Pipe) -> None:
    async def receive() -> bytes | memoryview | None:
        data = await pipe.read()
        return None if data is None or data.end else data.data

    async def send(data: bytes, end: bool) -> None:
        await pipe.write(link_pb2.TunnelData(end=True) if end else frame(data))

    async with stack:
        # Whoever reads the socket finds that it has ended; nobody asks this task why.
        with sock, contextlib.suppress(GpushareError):
            await pump(sock, receive, send)


@asynccontextmanager
async def gate_through(open_pipe: OpenPipe, name: str) -> AsyncIterator[EngineSocket]:
    """The same, for as long as the block runs."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield GateThrough(open_pipe, name, tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
