"""Tell a waiting client that its answer is still to come, and an attached client why its container ended.

Many clients hang up after a minute of silence. An interim answer (RFC 9110, 15.2) is no answer yet: a client
that reads one goes on reading, and counts the silence anew.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Coroutine
from typing import Any, TypeVar

from gpushared.domain.model.errors import RequestError, Unavailable
from gpushared.net.http_server import Exchange

MOST = 99
"""At one more interim answer Python's ``http.client`` of 2026 gives up, even if told to wait for hours."""
READS_ON = re.compile(rb"python|aiohttp|httpx|\bnode\b|undici|axios", re.IGNORECASE)
"""Clients with these names are known to read on after any number of interim answers up to ``MOST``.

Go's client gives up after five, and without them would have waited for ever. Programs in Go have names of
their own, so no list could exclude them; this list includes the others.
"""
OLD_HTTP = b"1.0"

LOOK_SECONDS = 5.0
"""The interval at which the gate checks that the client can still be seen."""

_T = TypeVar("_T")


async def while_waiting(exchange: Exchange, work: Coroutine[Any, Any, _T], *, may_queue: bool = True) -> _T:
    """Return the result of ``work``, or raise its error; until then no part of the answer is sent.

    ``may_queue``: the work may wait in the queue. Then raises Unavailable, RequestError if nobody can be seen
    to wait for the answer any more.
    """
    step = min(LOOK_SECONDS, exchange.interim_seconds)
    looks_between = round(exchange.interim_seconds / step)
    looks_left = looks_between * MOST if reads_on(exchange) else 0
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=step))[0]:
            if may_queue:
                _check_client(exchange)
            if looks_left:
                looks_left -= 1
                if looks_left % looks_between == 0:
                    await exchange.go_on_waiting()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check_client(exchange: Exchange) -> None:
    """Raise if the client is away or cannot be seen: a request in the queue keeps room from others."""
    if exchange.is_away():
        raise Unavailable(
            "the way to the machine of this request's client was broken for too long, so it left the queue",
            hint="ask again",
        )
    if exchange.is_hidden:
        raise RequestError(
            "too much was sent behind a request that waits in the queue",
            hint="wait for its answer, or use a connection for each request",
        )


def reads_on(exchange: Exchange) -> bool:
    """Return True if the client takes interim answers. A client without a name is mostly a Node program."""
    name = exchange.header(b"user-agent")
    return exchange.http_version != OLD_HTTP and (not name or READS_ON.search(name) is not None)


_STANDARD_ERROR = 2
_FRAME = struct.Struct(">BxxxL")
"""In Docker's attach protocol the stream and the size come before each piece of output."""


def as_output(text: str, *, terminal: bool) -> bytes:
    """Return the text as output of the container: on its terminal, or framed as its standard error."""
    if not text:
        return b""
    if terminal:
        return "".join(f"\r\n{line}" for line in text.splitlines()).encode() + b"\r\n"
    line = f"{text}\n".encode()
    return _FRAME.pack(_STANDARD_ERROR, len(line)) + line
