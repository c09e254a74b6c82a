"""Floods by strangers leave the event loop, and the log, to others."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace

import pytest

from gpushared.net.http_server import Exchange
from gpushared.web import network_listener
from gpushared.web.browser_site import Access
from gpushared.web.proxy_socket import WARNINGS_BURST
from tests.web.raw_browser import ADA, SECONDS, NewSite, request
from tests.web.test_listeners import OTHER_UID, PublicSite, public_site

__all__ = ["public_site"]

CONNECTIONS = 30
REQUESTS = 20


class Passes:
    """Counts the passes of the event loop: in each of them everybody else gets a turn too."""

    def __init__(self) -> None:
        self.count = 0
        self.counting = True

    def begin(self) -> None:
        self.count += 1
        if self.counting:
            asyncio.get_running_loop().call_soon(self.begin)


@contextmanager
def counted() -> Iterator[Passes]:
    passes = Passes()
    passes.begin()
    try:
        yield passes
    finally:
        passes.counting = False


async def by_proxy(_: Exchange) -> object:
    return ADA


@pytest.mark.parametrize("way", [Access(), Access(address="192.0.2.1"), Access(identify=by_proxy)])  # type: ignore[arg-type]
async def test_requests_that_are_sent_without_waiting_are_answered_one_in_a_pass(
    new_site: NewSite, way: Access
) -> None:
    site = new_site()
    async with AsyncExitStack() as stack:
        browsers = [await stack.enter_async_context(site.connected(way)) for _ in range(CONNECTIONS)]
        with counted() as passes:
            for browser in browsers:
                browser.writer.write(request("GET", "/assets/nothing") * REQUESTS)
            for browser in browsers:
                for _ in range(REQUESTS):
                    assert (await browser.answer()).status == 404
    assert passes.count >= CONNECTIONS * REQUESTS


async def test_connections_begin_tls_one_in_a_pass(
    public_site: PublicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    async def note(sock: socket.socket, _: ssl.SSLContext) -> None:
        begun.append(passes.count)
        raise OSError

    async with public_site.by_tls():
        pass  # it listens
    monkeypatch.setattr(network_listener, "_handshake", note)
    address = public_site.web.address
    assert address is not None
    with counted() as passes:
        flood = [socket.create_connection(address) for _ in range(CONNECTIONS)]
        async with asyncio.timeout(SECONDS):
            while len(begun) < CONNECTIONS:  # noqa: ASYNC110 - each pass counts
                await asyncio.sleep(0)
    for sock in flood:
        sock.close()
    assert len(set(begun)) == CONNECTIONS


async def test_strangers_at_the_socket_of_proxies_fill_no_log(
    public_site: PublicSite, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = public_site.accounts.callers["www-proxy"]
    async with public_site.by_socket() as connection:
        assert (
            await connection.ask(public_site.got("/queue"))
        ).status == 403  # it listens, and names no user
    public_site.accounts.callers["www-proxy"] = replace(proxy, uid=OTHER_UID)
    with caplog.at_level(logging.WARNING):
        for _ in range(4 * WARNINGS_BURST):
            async with public_site.by_socket() as stranger:
                assert await stranger.is_over()
    assert len([one for one in caplog.records if "not served" in one.getMessage()]) == WARNINGS_BURST
