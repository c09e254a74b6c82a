"""Connections on which nobody says anything for long, with the options that servers and clients have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import pytest

from gpushared.client.pipeline.pool_address import PoolAddress as ClientDoor
from gpushared.pool.coordinator import service_factories
from gpushared.pool.coordinator.running_parts import Listener, Service
from gpushared.pool.coordinator.service_factories import ListenerServer
from gpushared.pool.member.dial import KEEPALIVE_SECONDS, channel_options

SILENT_SECONDS = 600.0
"""Ten minutes have thirty pings; a server that refuses them ends the connection at the third or fourth."""
FASTER = 100
Options = list[tuple[str, Any]]
CLIENTS: dict[str, tuple[Listener, Options]] = {
    "a node": (Listener.NODES, [*channel_options("x")]),
    "a program": (Listener.USERS, [*ClientDoor("x").options]),
}


def faster(options: Iterable[tuple[str, Any]], times: int) -> Options:
    """The same options with all their times shorter."""
    return [(name, value // times if name.endswith("_ms") else value) for name, value in options]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("times", [FASTER, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_silent_stream_outlives_as_many_pings_as_ten_minutes_have(
    monkeypatch: pytest.MonkeyPatch, times: int, client: str
) -> None:
    for name in ("OPTIONS", "_OPTIONS_FOR_NODES"):
        monkeypatch.setattr(service_factories, name, faster(getattr(service_factories, name), times))
    came, ask = asyncio.Event(), asyncio.Event()

    async def silent(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        came.set()
        await ask.wait()
        await context.write(b"still here")

    def add(server: grpc.aio.Server) -> None:
        handlers: dict[str, Any] = {"Wait": grpc.stream_stream_rpc_method_handler(silent)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Silent", handlers),))

    listener, options = CLIENTS[client]
    server = ListenerServer(listener, "127.0.0.1:0", None)
    async with (
        server.serving([Service("test.Silent", frozenset({listener}), add)]),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", faster(options, times)) as channel,
    ):
        stream: Any = channel.stream_stream("/test.Silent/Wait")
        call = stream()
        await came.wait()
        assert dict(options)["grpc.keepalive_time_ms"] == KEEPALIVE_SECONDS * 1000
        await asyncio.sleep(SILENT_SECONDS / times)
        ask.set()
        assert await call.read() == b"still here"
