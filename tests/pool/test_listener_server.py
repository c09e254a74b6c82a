"""The coordinator's gRPC servers: what each listener takes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gpushared.net.call_checks import MAX_CALLS_PER_CONNECTION
from gpushared.pool.coordinator.running_parts import Listener, Service
from gpushared.pool.coordinator.service_factories import ListenerServer


async def test_calls_of_some_users_of_a_node_that_wait_do_not_keep_its_others_from_being_answered() -> None:
    """All calls of a node, its tunnels too, come over one connection."""
    came = asyncio.Semaphore(0)

    async def wait(_: bytes, __: object) -> bytes:
        came.release()
        await asyncio.Event().wait()
        return b""

    def add(server: grpc.aio.Server) -> None:
        handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Waits", handlers),))

    server = ListenerServer(Listener.NODES, "127.0.0.1:0", None)
    service = Service("test.Waits", frozenset({Listener.NODES}), add)
    async with (
        server.serving([service]),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call_it: Any = channel.unary_unary("/test.Waits/Wait")
        number = MAX_CALLS_PER_CONNECTION + 10
        waits = [call_it(b"") for _ in range(number)]
        for _ in range(MAX_CALLS_PER_CONNECTION):
            await came.acquire()
        stub = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        answer = await stub.Check(asked, timeout=20)  # type: ignore[attr-defined]  # its stubs name no calls
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for call in waits:
            call.cancel()
