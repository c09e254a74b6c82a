"""Other coordinators beside the leader: one that refuses, one that holds calls, and a machine that is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from gpushared.api.v1 import link_pb2_grpc
from gpushared.domain.model.errors import NotLeader
from gpushared.net.call_checks import OPTIONS, abort
from gpushared.pool.coordinator.node_links import TunnelContext, accept
from gpushared.pool.coordinator.node_stream import Context
from tests.pool.link.coordinator import Coordinator

DEAD = "127.0.0.1:1"


class Standby(link_pb2_grpc.NodeLinkServicer):
    """Has the leader's certificates; once it ``leads``, it is the same coordinator at another address."""

    def __init__(self, coordinator: Coordinator, *, holds: bool = False) -> None:
        self.coordinator = coordinator
        self.holds = holds
        self.asked = 0
        self.leads = asyncio.Event()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Connect(  # type: ignore[override]  # noqa: N802 - gRPC's name
        self, requests: object, context: Context
    ) -> None:
        self.asked += 1
        if self.holds:
            await accept(context)
            await self.leads.wait()
        if not self.leads.is_set():
            await abort(context, NotLeader("dgx2 stands by: dgx1 leads the pool lab", hint="ask dgx1"))
        await self.coordinator.link.Connect(requests, context)

    async def Serve(  # type: ignore[override]  # noqa: N802 - gRPC's name
        self, _: object, context: TunnelContext
    ) -> None:
        await abort(context, NotLeader("dgx2 stands by", hint="ask dgx1"))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Standby]:
        server = grpc.aio.server(options=OPTIONS)
        link_pb2_grpc.add_NodeLinkServicer_to_server(self, server)
        self.port = server.add_secure_port("127.0.0.1:0", self.coordinator.trust.identity.for_nodes())
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)


@asynccontextmanager
async def frozen() -> AsyncIterator[str]:
    """Its kernel accepts connections, and nobody reads them."""
    ended = asyncio.Event()

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.transport.abort()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()
