"""The listener for metrics: how often a page is made, and which connection goes when there are too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import WebReply
from gpushared.net.metrics_listener import MAX_CONNECTIONS, KeptPages, MetricsListener

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 20_000_000
"""More than the kernel takes from the sender before its receiver reads."""


@asynccontextmanager
async def serving(page: Callable[[Caller, str], WebReply]) -> AsyncIterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    listener = asyncio.create_task(MetricsListener(lambda: ("127.0.0.1", port), page, Troubles()).run())
    await asyncio.sleep(0)
    try:
        yield port
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def asked(port: int, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connected(port, source)
    writer.write(ASK)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def connected(
    port: int, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.5):
            return await reader.read(1) == b""
    except TimeoutError:
        return False


def test_a_page_is_kept_for_a_moment_for_each_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pages = KeptPages()

    def ask(key: str) -> None:
        pages.page(key, lambda: made.append(key) or WebReply(200, b""))  # type: ignore[func-returns-value]

    for moment, key in ((0.0, "a"), (0.5, "a"), (0.5, "b"), (0.9, "b"), (1.1, "a"), (1.2, "b")):
        now[0] = moment
        ask(key)
    assert made == ["a", "b", "a"]


async def test_a_page_under_way_is_not_cut_short_by_idle_connections() -> None:
    async with serving(lambda *_: WebReply(200, LARGE)) as port:
        reader, writer = await asked(port)
        idle = [await connected(port, "127.0.0.2") for _ in range(2 * MAX_CONNECTIONS)]
        assert await is_closed(idle[0][0])
        assert len(await reader.readexactly(len(LARGE))) == len(LARGE)
        for _, each in (*idle, (reader, writer)):
            each.close()


async def test_of_idle_connections_those_of_the_same_peer_go_first() -> None:
    async with serving(lambda *_: WebReply(200, b"page")) as port:
        older, newer = await connected(port), await connected(port, "127.0.0.2")
        crowd = [await connected(port, "127.0.0.2") for _ in range(MAX_CONNECTIONS)]
        assert await is_closed(newer[0])
        assert not await is_closed(older[0])
        for _, each in (*crowd, older, newer):
            each.close()


async def test_while_all_connections_are_busy_a_further_one_is_closed() -> None:
    async with serving(lambda *_: WebReply(200, LARGE)) as port:
        busy = [await asked(port) for _ in range(MAX_CONNECTIONS)]
        further = await connected(port)
        assert await is_closed(further[0])
        for reader, _ in busy[:2]:
            assert len(await reader.readexactly(len(LARGE))) == len(LARGE)
        for _, each in (*busy, further):
            each.close()
