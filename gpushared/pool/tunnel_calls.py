"""``Jobs.Tunnel`` and ``Jobs.Logs`` on the coordinator: a user's stream joined with a node's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.gate.engine import EngineConnection, EngineSocket
from gpushared.pool.tunnel_bytes import pump
from gpushared.pool.tunnel_frames import Chunk, Frame, frame
from gpushared.pool.tunnels import Pipe

UserContext = grpc.aio.ServicerContext[Chunk, Chunk]
OpenPipe = Callable[[], AbstractAsyncContextManager[Pipe]]


async def splice(context: UserContext, pipe: Pipe) -> None:
    """Pass bytes on until the node's end sends no more; the user's half-close goes to the node."""
    upwards = asyncio.create_task(_upwards(context, pipe))
    try:
        while (data := await pipe.read()) is not None and not data.end:
            await context.write(data if isinstance(data, Frame) else jobs_pb2.TunnelChunk(data=data.data))
        await context.write(jobs_pb2.TunnelChunk(end=True))
    finally:
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)


async def _upwards(context: UserContext, pipe: Pipe) -> None:
    while isinstance(chunk := await context.read(), Frame | jobs_pb2.TunnelChunk) and not chunk.end:
        await pipe.write(chunk if isinstance(chunk, Frame) else link_pb2.TunnelData(data=chunk.data))
    await pipe.write(link_pb2.TunnelData(end=True))


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
        with sock:
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
