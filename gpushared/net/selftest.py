"""Check before a daemon serves that gRPC really reports the caller. If not, nobody may be let in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from gpushared.domain.model.errors import ConfigError, Unavailable

SECONDS = 60.0
"""A machine that is starting everything at once is slow, and a daemon that gives up is started once more."""


async def check_identity(socket_path: str, ask: Callable[[grpc.aio.Channel], Awaitable[object]]) -> None:
    """Call the daemon itself through the front with ``ask``, as its own user, who is let in.

    Raises ConfigError when we are not, and Unavailable where there is no answer in time.
    The peer's name in ``context.peer()`` is behaviour of gRPC's core, not a promise of its API.
    """
    async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        try:
            async with asyncio.timeout(SECONDS):
                await ask(channel)
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
