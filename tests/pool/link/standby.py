"""Other coordinators beside the leader: one that stands by, and a machine that is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from gpushared.api.v1 import link_pb2_grpc
from gpushared.jobs.standby import Standby
from gpushared.net.call_checks import OPTIONS
from tests.pool.link.coordinator import Coordinator

DEAD = "127.0.0.1:1"


class OtherCoordinator:
    """Has the leader's certificates and stands by; once it ``leads``, it is the same coordinator elsewhere."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._identity = coordinator.trust.identity
        self.standby = Standby("dgx2", lambda: 0.0)
        self.standby.led_by("dgx1", 1)
        self._leads = False
        self.link = coordinator.other_service()
        self.link.standby = self._standby
        self.asked = 0
        self.port = 0

    def _standby(self) -> Standby | None:
        self.asked += 1
        return None if self._leads else self.standby

    def lead(self) -> None:
        self._leads = True
        self.standby.end()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[OtherCoordinator]:
        server = grpc.aio.server(options=OPTIONS)
        link_pb2_grpc.add_NodeLinkServicer_to_server(self.link, server)
        self.port = server.add_secure_port("127.0.0.1:0", self._identity.for_nodes())
        await server.start()
        try:
            yield self
        finally:
            await self.link.close()
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
