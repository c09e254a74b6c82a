"""The site refuses what a browser's user did not mean: other names, other pages, forms, other paths."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gpushared.gate.api.endpoints import ROUTES
from gpushared.web.browser_site import Access
from tests.web.raw_browser import ADA, HOST, USER, NewSite, posted, request

CALL = "/gpushare.v1.Leases/List"
SITE = "Sec_Fetch_Site"


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("127.0.0.1:8642", True),
        ("127.0.0.1", True),
        ("localhost:9000", True),
        ("LOCALHOST:9000", True),
        ("[::1]:9000", True),
        ("gpu1.example.org", True),
        ("gpu2.example.org:444", True),
        ("gpu2.example.org", False),
        ("gpu2.example.org:443", False),
        ("rebound.evil.example:8642", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("localhost.", False),
        ("127.0.0.2", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("[::ffff:127.0.0.1]", False),
        ("user@localhost", False),
        ("localhost:8642:80", False),
        ("localhost:", False),
        ("", False),
    ],
)
async def test_a_page_is_served_only_under_names_that_lead_here(
    new_site: NewSite, host: str, is_served: bool
) -> None:
    names = frozenset({"127.0.0.1", "localhost", "[::1]", "gpu1.example.org", "gpu2.example.org:444"})
    site = new_site()
    answer = await site.ask(request("GET", "/", Host=host), Access(names, caller=ADA))
    assert answer.status == (200 if is_served else 403)
    assert len(site.told(refused=True)) == (not is_served)


async def test_a_name_that_leads_here_gets_neither_assets_nor_logins_nor_calls(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    evil = {"Host": "evil.example", "Origin": "http://evil.example", SITE: "same-origin"}
    for data in (
        request("GET", f"/assets/{site.site.assets.digest}/app.js", Host="evil.example"),
        request("GET", "/session", cookie=cookie, Host="evil.example"),
        posted("/login", {"code": "x"}, **evil),
        posted(CALL, cookie=cookie, **evil),
    ):
        answer = await site.ask(data)
        assert (answer.status, answer.json["code"]) == (403, "permission_denied")
    assert site.calls == []


PAGES = [
    ({}, True),
    ({SITE: "same-origin"}, True),
    ({"Origin": None, SITE: "same-origin"}, True),
    ({"Origin": "https://127.0.0.1:8642"}, True),
    ({"Origin": None}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "http://127.0.0.1:9999"}, False),
    ({"Origin": "http://localhost:8642"}, False),
    ({"Origin": "http://evil.example"}, False),
    ({"Origin": "http://127.0.0.1:8642.evil.example"}, False),
    ({"Origin": "file://"}, False),
    ({"Origin": "ftp://127.0.0.1:8642"}, False),
    ({SITE: "same-site"}, False),
    ({SITE: "cross-site"}, False),
    ({SITE: "none"}, False),
    ({SITE: ""}, False),
    ({"Origin": "http://evil.example", SITE: "same-origin"}, False),
]


@pytest.mark.parametrize(("headers", "is_ours"), PAGES)
@pytest.mark.parametrize("path", [CALL, "/logout"])
async def test_a_post_comes_from_the_page_itself(
    new_site: NewSite, path: str, headers: dict[str, str | None], is_ours: bool
) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(posted(path, cookie=cookie, **headers))
    assert (answer.status in {200, 204}) is is_ours
    assert (answer.status == 403) is not is_ours
    if not is_ours:
        assert site.calls == []
        assert (await site.ask(request("GET", "/session", cookie=cookie))).status == 200
        assert [(who, what) for who, what, _ in site.told(refused=True)] == [("ada", path)]


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({SITE: "same-origin"}, True),
        ({SITE: "none"}, True),
        ({"Origin": f"http://{HOST}"}, True),
        ({SITE: "same-site"}, False),
        ({SITE: "cross-site"}, False),
        ({"Origin": "http://localhost:3000"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/session", "/stream?watch=%7B%7D"])
async def test_no_other_page_reads_a_session_or_opens_a_stream(
    new_site: NewSite, path: str, headers: dict[str, Any], is_ours: bool
) -> None:
    async def stream(exchange, caller, query):
        await exchange.respond(200, b"{}")

    site = new_site(stream=stream)
    answer = await site.ask(request("GET", path, cookie=await site.log_in(), **headers))
    assert answer.status == (200 if is_ours else 403)


async def test_behind_tls_the_pages_origin_is_https(new_site: NewSite) -> None:
    access = Access(secure=True)
    site = new_site()
    code = site.logins.make_code(USER, network=True)
    plain = await site.ask(posted("/login", {"code": code}), access)
    assert plain.status == 403
    answer = await site.ask(posted("/login", {"code": code}, Origin=f"https://{HOST}"), access)
    assert answer.status == 204
    assert "Secure" in answer.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_a_body_that_a_form_can_send_is_refused(new_site: NewSite, kind: str | None) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(posted(CALL, cookie=cookie, Content_Type=kind))
    assert (answer.status, answer.json["code"]) == (400, "invalid_argument")
    assert site.calls == []


async def test_json_may_name_its_charset(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(posted(CALL, cookie=cookie, Content_Type="Application/JSON; charset=utf-8"))
    assert answer.status == 200


NOT_THERE = [
    "/containers/json",
    "/v1.44/containers/json",
    "/v1.44/info",
    "/info",
    "/events",
    "/_ping",
    "/version",
    "/images/json",
    "/metrics",
    "//containers/json",
    "//",
    "/./",
    "/../containers/json",
    "/queue/",
    "/queue/../containers/json",
    "/%2e%2e/containers/json",
    "/%63ontainers/json",
    "/queue%00",
    "/lease/",
    "/lease/a/b",
    "/lease/a%2Fb",
    "/lease/..%2f",
    "/Queue",
    "/login/",
    "/index.html",
    "/assets",
    "/assets/",
    "/assets/index.html",
    "/gpushare.web/browser",
    "/gpushare.v1.Leases",
    "/gpushare.v1.Leases/",
    "/gpushare.v1.Leases/List/x",
    "/gpushare.v2.Leases/List",
    "/gpushare.v1.Leases%2FList",
    "/gpushare.v1.Web/Link",
    "/grpc.health.v1.Health/Check",
    "http://127.0.0.1:8642/",
    "http://evil.example/containers/json",
    "*",
    "127.0.0.1:8642",
]


@pytest.mark.parametrize("target", NOT_THERE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_nothing_else_than_the_page_is_served(new_site: NewSite, method: str, target: str) -> None:
    site = new_site()
    cookie = await site.log_in()
    body = b"{}" if method == "POST" else b""
    answer = await site.ask(request(method, target, body, cookie=cookie))
    is_call = target == "/gpushare.v1.Web/Link" and method != "POST"
    assert answer.status == (405 if is_call else 404)
    assert site.calls == []


async def test_no_endpoint_of_docker_is_served(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    asked = [
        (method, prefix + re.sub(r"\{[a-z.]+\}", "x", route.path))
        for route in ROUTES
        for method in route.methods
        for prefix in ("", "/v1.44")
    ]
    async with site.connected() as browser:
        answers = {each: await browser.ask(request(*each, cookie=cookie)) for each in asked}
    served = {each for each, answer in answers.items() if answer.status not in {404, 405}}
    assert served == {("GET", "/nodes")}
    assert answers["GET", "/nodes"].body == site.site.assets.shell("/").body, "it is the page's own"


PATHS = ["/", "/queue", "/session", "/login", "/logout", CALL, "/containers/json"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
@pytest.mark.parametrize("path", PATHS)
async def test_no_other_method_is_answered(new_site: NewSite, method: str, path: str) -> None:
    site = new_site()
    answer = await site.ask(request(method, path, cookie=await site.log_in()))
    assert answer.status == 405
    assert answer.headers["allow"]
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CALL, "POST"),
        ("GET", "/login", None),
        ("GET", "/logout", "POST"),
        ("HEAD", "/logout", "POST"),
        ("POST", "/", "GET, HEAD"),
        ("POST", "/queue", "GET, HEAD"),
        ("POST", "/session", "GET, HEAD"),
        ("POST", "/stream", "GET, HEAD"),
    ],
)
async def test_a_get_changes_nothing_and_a_post_shows_no_page(
    new_site: NewSite, method: str, path: str, allowed: str | None
) -> None:
    site = new_site()
    answer = await site.ask(request(method, path, cookie=await site.log_in()))
    assert answer.status == (405 if allowed else 200)
    assert answer.headers.get("allow") == allowed
    assert site.calls == []


async def test_an_address_that_is_none_has_a_page_that_leads_to_the_first(new_site: NewSite) -> None:
    answer = await new_site().ask(request("GET", "/queue/", Sec_Fetch_Mode="navigate"))
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b"there is no such page" in answer.body
    assert b'<a href="/">' in answer.body


async def test_connect_opens_no_way_to_elsewhere(new_site: NewSite) -> None:
    site = new_site()
    assert (await site.ask(request("CONNECT", "127.0.0.1:22"))).status == 404
    assert (await site.ask(request("CONNECT", "/queue"))).status == 405


@pytest.mark.parametrize("protocol", ["gpushare-browser", "websocket", "h2c", "tcp"])
async def test_a_browsers_connection_cannot_become_another(new_site: NewSite, protocol: str) -> None:
    site = new_site()
    async with site.connected() as browser:
        data = request("GET", "/gpushare.web/browser", Connection="Upgrade", Upgrade=protocol)
        assert (await browser.ask(data)).status == 404
        data = request("GET", "/queue", Connection="Upgrade", Upgrade=protocol)
        assert (await browser.ask(data)).status == 200


HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (200, request("GET", "/")),
        (200, request("HEAD", "/queue")),
        (401, request("GET", "/session")),
        (403, request("GET", "/", Host="evil.example")),
        (404, request("GET", "/containers/json")),
        (405, request("DELETE", "/")),
        (401, posted(CALL)),
        (401, posted("/login", {"code": "x"})),
        (400, posted("/login")),
        (400, posted("/login", "x")),
        (413, posted("/login", {"code": "x" * 2000})),
        (400, b"nonsense\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (505, b"GET / HTTP/1.7\r\nHost: localhost\r\n\r\n"),
        (
            400,
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (431, request("GET", "/", Cookie="x" * 40_000)),
    ],
)
async def test_each_answer_has_the_headers_that_protect_the_page(
    new_site: NewSite, status: int, data: bytes
) -> None:
    answer = await new_site().ask(data)
    assert answer.status == status
    assert HEADERS.items() <= answer.headers.items()
    assert answer.headers["cache-control"] == "no-store"
    policy = dict(
        part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]


async def test_pipelined_requests_are_answered_in_order(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    async with site.connected() as browser:
        await browser.send(b"".join(posted(f"/gpushare.v1.Leases/{name}", cookie=cookie) for name in "ABC"))
        answers = [(await browser.answer()).json["path"] for _ in range(3)]
    assert answers == [f"/gpushare.v1.Leases/{name}" for name in "ABC"]


async def test_a_refused_requests_body_is_not_taken_for_a_request(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    hidden = posted(CALL, cookie=cookie)
    async with site.connected() as browser:
        answer = await browser.ask(request("POST", "/containers/create", hidden, cookie=cookie))
        assert answer.status == 404
        assert await browser.is_over()
    assert site.calls == []


async def test_a_browser_that_closes_its_connection_ends_its_stream(new_site: NewSite) -> None:
    ended = asyncio.Event()

    async def stream(exchange, caller, query):
        await exchange.start(200, [(b"Content-Type", b"text/event-stream")])
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    site = new_site(stream=stream)
    cookie = await site.log_in()
    async with site.connected() as browser:
        answer = await browser.ask(request("GET", "/stream?watch=%7B%7D", cookie=cookie))
        assert answer.headers["content-type"] == "text/event-stream"
    await asyncio.wait_for(ended.wait(), 20)
