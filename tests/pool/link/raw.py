"""A stream by hand, for what no node of this version says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from gpushared.api.v1 import link_pb2, link_pb2_grpc
from gpushared.pool.member.link_session import Call
from tests.pool.link.coordinator import WAIT_SECONDS, Coordinator, Credentials


@asynccontextmanager
async def stream(coordinator: Coordinator, credentials: Credentials) -> AsyncIterator[Call]:
    options = [("grpc.ssl_target_name_override", credentials.server_name)]
    async with grpc.aio.secure_channel(coordinator.address, credentials.channel(), options) as channel:
        yield link_pb2_grpc.NodeLinkStub(channel).Connect()


async def answer(call: Call) -> link_pb2.Down:
    """The next word of the coordinator."""
    async with asyncio.timeout(WAIT_SECONDS):
        down = await call.read()
    assert isinstance(down, link_pb2.Down)
    return down


async def first_answer(
    coordinator: Coordinator, credentials: Credentials, hello: link_pb2.Hello
) -> link_pb2.Down:
    """What a registration is answered with."""
    async with stream(coordinator, credentials) as call:
        await call.write(link_pb2.Up(hello=hello))
        return await answer(call)
