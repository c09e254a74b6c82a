"""Before the daemon serves: does gRPC really report who is calling? If not, nobody may be let in."""

from __future__ import annotations

import asyncio
import os

import grpc

from gpushared.api.v1 import node_pb2, node_pb2_grpc
from gpushared.domain.model.errors import ConfigError, Unavailable

SECONDS = 60.0
"""A machine that is starting everything at once is slow, and a daemon that gives up is started once more."""


async def check_identity(socket_path: str) -> None:
    """Call ourselves through the front and see that we are recognised.

    Raises ConfigError when we are not, and Unavailable where there is no answer in time.
    The peer's name in ``context.peer()`` is behaviour of gRPC's core, not a promise of its API.
    """
    async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        try:
            async with asyncio.timeout(SECONDS):
                status = await node_pb2_grpc.NodeStub(channel).Status(node_pb2.NodeStatusRequest())
        except TimeoutError as error:
            raise Unavailable(
                f"the daemon did not answer itself within {SECONDS:.0f} s",
                hint="is the machine overloaded? systemd starts the daemon again",
            ) from error
        except grpc.aio.AioRpcError as error:
            raise ConfigError(
                f"gRPC does not tell who is calling, so nobody can be let in: {error}",
                hint="install the grpcio version that this gpushared was tested with",
            ) from error
    if status.caller_uid != os.getuid():
        raise ConfigError("gRPC reports the wrong caller", hint="please report this with grpcio's version")
