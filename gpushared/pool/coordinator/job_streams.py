"""Join the streams of ``Jobs`` on a coordinator: a user's tunnel or log with the node that runs the job.

A node opens no port. A caller of a node's gate therefore waits here until the node, notified over its link,
has opened its own stream. That stream names the tunnel by a secret that only this node received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.daemon.tasks import TaskSet
from gpushared.domain.jobs.job import Job, NodeName, Owner
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    PermissionRefused,
    TimedOut,
    Unavailable,
)
from gpushared.jobs.job_logs import JobPlace, job_logs, output_of, place_of
from gpushared.net.http_client import EngineConnection, EngineSocket
from gpushared.pool.link import codec
from gpushared.pool.tunnels.tunnel_frames import Chunk, Data, Frame, frame, pump

log = logging.getLogger(__name__)

ANSWER_SECONDS = 15.0
"""Give a node this long to call."""
MAX_TUNNELS = 4096
MAX_TUNNELS_PER_REALM = MAX_TUNNELS // 2
"""A node can name any number of users of its realm; this bound keeps room for users of other nodes."""
MAX_TUNNELS_PER_PERSON = 128
TunnelContext = grpc.aio.ServicerContext[Data, Data]
UserContext = grpc.aio.ServicerContext[Chunk, Chunk]


class TunnelLink(Protocol):
    """Request nodes to call."""

    def open_tunnel(self, node: NodeName, tunnel: link_pb2.OpenTunnel) -> None: ...


def _node_went_away() -> Unavailable:
    return Unavailable(
        "the tunnel's node went away",
        hint="`gpushare nodes` tells whether it is connected; the job goes on there meanwhile",
    )


class Pipe:
    """Read and write one end of a tunnel; the other end is on the node."""

    def __init__(self, context: TunnelContext) -> None:
        self._context = context
        self.over = asyncio.Event()

    async def read(self) -> Data | None:
        """Return the node's next message, or None after the last one. Raises its refusal, Unavailable."""
        try:
            data = await self._context.read()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise _node_went_away() from error
        if isinstance(data, Frame):
            return data
        if not isinstance(data, link_pb2.TunnelData):
            return None
        if data.error_code:
            raise codec.refused(data.error_code, data.error_message, data.error_hint)
        return data

    async def write(self, data: Data) -> None:
        """Write, and return when the node's end can receive more. Raises Unavailable."""
        try:
            await self._context.write(data)
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise _node_went_away() from error


@dataclass(slots=True)
class _PendingTunnel:
    """Hold a tunnel that waits for its node to call."""

    node: NodeName
    answered: asyncio.Future[Pipe] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Tunnels:
    """Join callers that want a tunnel with the nodes that call back."""

    def __init__(self, link: Callable[[], TunnelLink]) -> None:
        """Each new tunnel calls ``link``."""
        self._link = link
        self._pending: dict[str, _PendingTunnel] = {}
        self._open: Counter[str] = Counter()
        """Count the tunnels of each person, of each ``@realm``, and (by the empty name) of all."""

    @asynccontextmanager
    async def open(self, node: NodeName, request: link_pb2.OpenTunnel) -> AsyncIterator[Pipe]:
        """Open a tunnel to a node while the block runs; this method sets the id in ``request``.

        Raises Unavailable, TimedOut, LimitReached, or the node's refusal (with the first read).
        """
        bounds = {
            request.person: MAX_TUNNELS_PER_PERSON,
            f"@{request.principal.rpartition('@')[2]}": MAX_TUNNELS_PER_REALM,
            "": MAX_TUNNELS,
        }
        if any(self._open[holder] >= most for holder, most in bounds.items()):
            raise LimitReached(
                f"{request.person} has too many connections to other nodes open, or all users together have",
                hint=f"at most {MAX_TUNNELS_PER_PERSON} a person; each attached client holds one",
            )
        self._open.update(bounds.keys())
        try:
            pipe = await self._pipe_to(node, request)
            try:
                yield pipe
            finally:
                pipe.over.set()
        finally:
            self._open -= Counter(bounds.keys())

    async def _pipe_to(self, node: NodeName, request: link_pb2.OpenTunnel) -> Pipe:
        request.tunnel_id = secrets.token_hex(16)
        pending = self._pending[request.tunnel_id] = _PendingTunnel(node)
        try:
            self._link().open_tunnel(node, request)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await pending.answered
        except TimeoutError:
            raise TimedOut(
                f"node {node} did not answer in {ANSWER_SECONDS:.0f} s",
                hint="`gpushare nodes` tells whether it is connected",
            ) from None
        finally:
            del self._pending[request.tunnel_id]

    async def serve(self, node: NodeName, context: TunnelContext) -> None:
        """Serve a call of a node: the stream is its end of the tunnel that its first message names.

        Raises NotFound if nobody waits for the tunnel any more, PermissionRefused for another node's,
        TimedOut.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                opening = await context.read()
        except TimeoutError:
            raise TimedOut("a tunnel that did not say which one it is") from None
        if not isinstance(opening, link_pb2.TunnelData):
            return
        # grpcio fails to end a call if a read was cancelled and the server has sent nothing at all.
        await context.send_initial_metadata(())
        pending = self._pending.get(opening.tunnel_id)
        if pending is None or pending.answered.done():
            raise NotFound("nobody waits for this tunnel", hint="its client has gone")
        if pending.node != node:
            log.warning("node=%s called for a tunnel to node=%s", node, pending.node)
            raise PermissionRefused(f"this tunnel is not to node {node}")
        if opening.error_code:
            refusal = codec.refused(opening.error_code, opening.error_message, opening.error_hint)
            pending.answered.set_exception(refusal)
            return
        pipe = Pipe(context)
        pending.answered.set_result(pipe)
        await pipe.over.wait()


OpenPipe = Callable[[], AbstractAsyncContextManager[Pipe]]


async def splice(context: UserContext, pipe: Pipe, *, outlives_calls: bool = False) -> None:
    """Pass messages on until the node's call ends. Raises Unavailable if the node sent no end.

    With ``outlives_calls`` the user's data may continue in another call after this call ends.
    """
    upwards = asyncio.create_task(_upwards(context, pipe, outlives_calls=outlives_calls))
    has_ended = False
    try:
        while (data := await pipe.read()) is not None:
            has_ended = has_ended or data.end
            await context.write(data if isinstance(data, Frame) else _chunk(data))
        if not has_ended:
            raise _node_went_away()
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
    """Provide a node's gate as a Docker engine, with a tunnel for each connection."""

    def __init__(self, open_pipe: OpenPipe, name: str, tasks: TaskSet) -> None:
        super().__init__(name)
        self._open_pipe = open_pipe
        self._tasks = tasks

    async def connect(self) -> EngineConnection:
        stack = AsyncExitStack()
        pipe = await stack.enter_async_context(self._open_pipe())
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        near.setblocking(False)
        far.setblocking(False)
        self._tasks.start(_run(stack, far, pipe))
        return EngineConnection(near, self.path)


async def _run(stack: AsyncExitStack, sock: socket.socket, pipe: Pipe) -> None:
    async def receive() -> bytes | memoryview | None:
        data = await pipe.read()
        return None if data is None or data.end else data.data

    async def send(data: bytes, end: bool) -> None:
        await pipe.write(link_pb2.TunnelData(end=True) if end else frame(data))

    async with stack:
        # The socket's reader sees that the socket ended; nobody retrieves this task's error.
        with sock, contextlib.suppress(GpushareError):
            await pump(sock, receive, send)


@asynccontextmanager
async def gate_through(open_pipe: OpenPipe, name: str) -> AsyncIterator[EngineSocket]:
    """Provide the gate while the block runs."""
    tasks = TaskSet()
    try:
        yield GateThrough(open_pipe, name, tasks)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await tasks.cancel()


class JobStreams:
    """Serve streams of a job. The caller of this class has checked that the user may see the job."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels

    async def tunnel(self, job: Job, first: jobs_pb2.TunnelChunk, owner: Owner, context: UserContext) -> None:
        """Pass bytes between the caller and the gate of the job's node until either ends."""
        place = place_of(job, first.rank, first.attempt)
        request = _tunnel_request(place, owner)
        request.stream_id = first.stream_id
        if first.HasField("received"):
            request.received = first.received
        async with self._tunnels.open(place.node, request) as pipe:
            await splice(context, pipe, outlives_calls=bool(first.stream_id))

    async def logs(
        self, job: Job, message: jobs_pb2.LogsRequest, owner: Owner
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Yield the logs from the beginning, or the last ``tail`` lines.

        Raises StateConflict or Unavailable.
        """
        place = output_of(job, message.rank, message.attempt)
        async with gate_through(lambda: self._open(place, owner), f"node {place.node}") as gate:
            async for chunk in job_logs(gate, place.key, follow=message.follow, tail=message.tail):
                yield chunk

    def _open(self, place: JobPlace, owner: Owner) -> AbstractAsyncContextManager[Pipe]:
        return self._tunnels.open(place.node, _tunnel_request(place, owner))


def _tunnel_request(place: JobPlace, owner: Owner) -> link_pb2.OpenTunnel:
    return link_pb2.OpenTunnel(
        job_id=place.key.job,
        attempt=place.key.number,
        kind="docker",
        principal=owner.principal,
        person=owner.person,
        admin=owner.admin,
    )
