"""Slow, endless and greedy clients cost the site little, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from gpushared.net.limits import Shares, UserLimits
from gpushared.web import browser_server
from tests.web.raw_browser import HOST, USER, NewSite, posted, request

CALL = "/gpushare.v1.Leases/List"


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give clients little time."""
    soon = replace(browser_server.LIMITS, head_seconds=0.2, body_seconds=0.2, idle_seconds=0.2)
    monkeypatch.setattr(browser_server, "LIMITS", soon)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        request("GET", "/").removesuffix(b"\r\n"),
    ],
)
async def test_a_head_that_does_not_end_is_given_up(new_site: NewSite, data: bytes) -> None:
    async with new_site().connected() as browser:
        assert (await browser.ask(data)).status == 408
        assert await browser.is_over()


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("path", [CALL, "/login", "/logout"])
async def test_a_body_that_does_not_end_is_given_up(new_site: NewSite, path: str) -> None:
    site = new_site()
    cookie = await site.log_in()
    async with site.connected() as browser:
        answer = await browser.ask(posted(path, {"a": 1}, cookie=cookie, Content_Length="100"))
        assert answer.status == 408
        assert await browser.is_over()
    assert site.calls == []


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("data", [b"", request("GET", "/")])
async def test_a_client_that_asks_nothing_is_not_kept(new_site: NewSite, data: bytes) -> None:
    async with new_site().connected() as browser:
        if data:
            await browser.ask(data)
        assert await browser.is_over()


async def test_a_long_body_is_refused_before_it_is_kept(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    body = json.dumps({"a": "x" * browser_server.LIMITS.json_body_bytes}).encode()
    answer = await site.ask(request("POST", CALL, body, cookie=cookie))
    assert answer.status == 413
    assert site.calls == []


async def test_a_body_without_a_session_is_not_read(new_site: NewSite) -> None:
    async with new_site().connected() as browser:
        answer = await browser.ask(posted(CALL, {"a": 1}, Content_Length="200000"))
        assert answer.status == 401
        assert answer.headers["connection"] == "close"


async def test_a_body_in_chunks_is_a_body(new_site: NewSite) -> None:
    site = new_site()
    body = json.dumps({"code": site.logins.make_code(USER)}).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    data = request("POST", "/login", Transfer_Encoding="chunked", Content_Length=None) + chunks
    assert (await site.ask(data)).status == 204


async def test_a_client_that_reads_no_answers_holds_up_nobody(new_site: NewSite) -> None:
    site = new_site()
    asset = request("GET", f"/assets/{site.site.assets.digest}/app.js")
    async with site.connected() as greedy:
        greedy.writer.write(asset * 2000)
        await asyncio.sleep(0)
        assert (await site.ask(request("GET", "/"))).status == 200
        greedy.writer.transport.abort()


async def test_a_user_with_too_many_calls_is_told_to_wait(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    site.site = replace(site.site, shares=Shares(UserLimits(requests=0)))
    answer = await site.ask(posted(CALL, cookie=cookie))
    assert (answer.status, answer.json["code"]) == (429, "resource_exhausted")
    assert (await site.ask(request("GET", "/"))).status == 200, "the page itself needs no call"
    assert [who for who, _, _ in site.told(refused=True)] == ["ada"]


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length: -1",
        "Content-Length: 1, 2",
        "Content-Length: 0x1",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        f"Host: {HOST}",
        "na me: x",
        "name\x00: x",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(new_site: NewSite, line: str) -> None:
    site = new_site()
    head = request("POST", CALL, Content_Length=None).removesuffix(b"\r\n")
    async with site.connected() as browser:
        answer = await browser.ask(head + line.encode("latin-1") + b"\r\n\r\n" + b"{}")
        assert answer.status in {400, 501}
        assert await browser.is_over()
    assert site.calls == []
