"""A client whose request waits in the queue hears now and then that its answer is still to come.

Many clients hang up after a minute of silence. An interim answer (RFC 9110, 15.2) is no answer yet: who
reads one goes on reading, and counts the silence anew.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from gpushared.gate.http import Exchange

MOST = 99
"""At one more Python's ``http.client`` of 2026 gives up, also where it was told to wait for hours."""
READS_ON = re.compile(rb"python|aiohttp|httpx|\bnode\b|undici|axios", re.IGNORECASE)
"""What clients call themselves that are known to read on after any number up to ``MOST``.

Go's client gives up after five, and would have waited for ever. Programs in Go have names of their own, so
that it is no list of theirs that is asked.
"""
OLD_HTTP = b"1.0"

_T = TypeVar("_T")


async def while_waiting(exchange: Exchange, work: Coroutine[Any, Any, _T]) -> _T:
    """What comes of ``work``, before which nothing of the answer is sent; its error is raised."""
    if not reads_on(exchange):
        return await work
    task = asyncio.create_task(work)
    try:
        for _ in range(MOST):
            done, _waiting = await asyncio.wait({task}, timeout=exchange.interim_seconds)
            if done:
                break
            await exchange.go_on_waiting()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def reads_on(exchange: Exchange) -> bool:
    """Whether the client takes interim answers; one that does not say what it is mostly stands on Node."""
    name = exchange.header(b"user-agent")
    return exchange.http_version != OLD_HTTP and (not name or READS_ON.search(name) is not None)
