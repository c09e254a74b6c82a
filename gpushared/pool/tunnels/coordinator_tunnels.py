"""The coordinator's part of tunnels: it asks the node that runs a job to call, and passes the bytes on.

A node opens no port. So whoever wants to reach its gate waits here until the node, told by its link, has
opened a stream of its own, which names the tunnel by a secret that nobody else was told.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import (
    LimitReached,
    NotFound,
    PermissionRefused,
    TimedOut,
    Unavailable,
)
from gpushared.pool.link import codec
from gpushared.pool.tunnels.tunnel_frames import Data, Frame

log = logging.getLogger(__name__)

ANSWER_SECONDS = 15.0
"""How long a node may take to call."""
MAX_TUNNELS = 4096
MAX_TUNNELS_PER_REALM = MAX_TUNNELS // 2
"""A node can name as many users of its realm as it likes; those of other nodes keep room."""
MAX_TUNNELS_PER_PERSON = 128
TunnelContext = grpc.aio.ServicerContext[Data, Data]


class TunnelLink(Protocol):
    """Tells nodes to call."""

    def open_tunnel(self, node: NodeName, tunnel: link_pb2.OpenTunnel) -> None: ...


class Pipe:
    """One end of a tunnel, to write to and to read from; the other end is on the node."""

    def __init__(self, context: TunnelContext) -> None:
        self._context = context
        self.over = asyncio.Event()

    async def read(self) -> Data | None:
        """The next message from the node; None when it sends no more. Raises its refusal, Unavailable."""
        try:
            data = await self._context.read()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise Unavailable("the tunnel's node went away") from error
        if isinstance(data, Frame):
            return data
        if not isinstance(data, link_pb2.TunnelData):
            return None
        if data.error_code:
            raise codec.refused(data.error_code, data.error_message, data.error_hint)
        return data

    async def write(self, data: Data) -> None:
        """Comes back when the node's end may be sent more. Raises Unavailable."""
        try:
            await self._context.write(data)
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise Unavailable("the tunnel's node went away") from error


@dataclass(slots=True)
class _Awaited:
    node: NodeName
    person: str
    came: asyncio.Future[Pipe] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Tunnels:
    """Joins those who ask for a tunnel with the nodes that call back."""

    def __init__(self, link: Callable[[], TunnelLink]) -> None:
        """``link`` is asked for when a tunnel is opened."""
        self._link = link
        self._awaited: dict[str, _Awaited] = {}
        self._open: Counter[str] = Counter()
        """Tunnels of each person, of each ``@realm``, and (the empty name) of all."""

    @asynccontextmanager
    async def open(self, node: NodeName, wanted: link_pb2.OpenTunnel) -> AsyncIterator[Pipe]:
        """A tunnel to a node, for as long as the block runs; ``wanted`` gets its id here.

        Raises Unavailable, TimedOut, LimitReached, or what the node has against it (with the first read).
        """
        bounds = {
            wanted.person: MAX_TUNNELS_PER_PERSON,
            f"@{wanted.principal.rpartition('@')[2]}": MAX_TUNNELS_PER_REALM,
            "": MAX_TUNNELS,
        }
        if any(self._open[who] >= most for who, most in bounds.items()):
            raise LimitReached(
                f"{wanted.person} has too many connections to other nodes open, or all users together have",
                hint=f"at most {MAX_TUNNELS_PER_PERSON} a person; each attached client holds one",
            )
        self._open.update(bounds.keys())
        try:
            pipe = await self._called(node, wanted)
            try:
                yield pipe
            finally:
                pipe.over.set()
        finally:
            self._open -= Counter(bounds.keys())

    async def _called(self, node: NodeName, wanted: link_pb2.OpenTunnel) -> Pipe:
        wanted.tunnel_id = secrets.token_hex(16)
        awaited = self._awaited[wanted.tunnel_id] = _Awaited(node, wanted.person)
        try:
            self._link().open_tunnel(node, wanted)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await awaited.came
        except TimeoutError:
            raise TimedOut(
                f"node {node} did not answer in {ANSWER_SECONDS:.0f} s",
                hint="`gpushare nodes` tells whether it is connected",
            ) from None
        finally:
            del self._awaited[wanted.tunnel_id]

    async def serve(self, node: NodeName, context: TunnelContext) -> None:
        """A node calls: the stream is its end of the tunnel that its first message names.

        Raises NotFound where nobody waits for it any more, PermissionRefused for another node's, TimedOut.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                hello = await context.read()
        except TimeoutError:
            raise TimedOut("a tunnel that did not say which one it is") from None
        if not isinstance(hello, link_pb2.TunnelData):
            return
        # grpcio fails to end a call where a read was given up and nothing was sent at all.
        await context.send_initial_metadata(())
        awaited = self._awaited.get(hello.tunnel_id)
        if awaited is None or awaited.came.done():
            raise NotFound("nobody waits for this tunnel", hint="whoever asked for it has gone")
        if awaited.node != node:
            log.warning("node=%s called for a tunnel to node=%s", node, awaited.node)
            raise PermissionRefused(f"this tunnel is not to node {node}")
        if hello.error_code:
            refusal = codec.refused(hello.error_code, hello.error_message, hello.error_hint)
            awaited.came.set_exception(refusal)
            return
        pipe = Pipe(context)
        awaited.came.set_result(pipe)
        await pipe.over.wait()
