"""Read a container's output through a gate, as its user may read it."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import h11

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.model.errors import EngineUnavailable, StateConflict
from gpushared.net.http_client import EngineConnection, EngineSocket

STDERR = 2
HEADER = struct.Struct(">BxxxI")
"""The header has the stream's number and the length of the following bytes (Docker Engine API,
ContainerAttach, "Stream format")."""


async def container_output(
    gate: EngineSocket, container: str, *, follow: bool, tail: int
) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
    """Yield the output from its beginning, or its last ``tail`` lines; with ``follow`` until it ends.

    Raises StateConflict if there is no such container (any more), or EngineUnavailable.
    """
    name = quote(container, safe="", errors="replace")
    answer = await gate.call("GET", f"/containers/{name}/json".encode())
    if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
        raise StateConflict(
            "docker shows no such container", hint="a container's output goes with the container"
        )
    terminal = bool(value_in(answer.json(), "Config", "Tty"))
    lines = str(tail) if tail > 0 else "all"
    target = f"/containers/{name}/logs?stdout=1&stderr=1&follow={int(follow)}&tail={lines}"
    connection = await gate.connect()
    try:
        with suppress(ConnectionError):  # the read of the answer shows if the node hung up
            await connection.send(
                h11.Request(
                    method="GET", target=target, headers=[("Host", "docker"), ("Connection", "close")]
                ),
                h11.EndOfMessage(),
            )
        head = await connection.response()
        if head.status_code != HTTPStatus.OK:
            raise EngineUnavailable(f"docker does not give the output: status {head.status_code}")
        chunks = _plain(connection) if terminal else _demultiplexed(connection)
        async for chunk in chunks:
            yield chunk
    finally:
        connection.close()


def value_in(answer: Any, *keys: int | str) -> Any:
    """Return a value in a gate's answer, which may lack the keys. Raises EngineUnavailable."""
    try:
        for key in keys:
            answer = answer[key]
    except (LookupError, TypeError) as error:
        raise EngineUnavailable("the node does not answer as Docker does") from error
    return answer


async def _plain(connection: EngineConnection) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
    async for data in connection.chunks():
        yield jobs_pb2.LogChunk(data=data)


async def _demultiplexed(connection: EngineConnection) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
    """Yield each piece as it comes; a header's length is the node's claim, so nothing is buffered for it."""
    waiting, stderr, remaining = bytearray(), False, 0
    async for data in connection.chunks():
        waiting += data
        while waiting and (remaining or len(waiting) >= HEADER.size):
            if not remaining:
                stream, remaining = HEADER.unpack_from(waiting)
                stderr = stream == STDERR
                del waiting[: HEADER.size]
            if piece := bytes(waiting[:remaining]):
                yield jobs_pb2.LogChunk(data=piece, stderr=stderr)
            del waiting[:remaining]
            remaining -= len(piece)
