"""Serve a connection as a browser's: the shell of the page, assets, calls, the stream, logins.

A browser may send requests that its user did not mean: other pages cause them, or another site's name leads to
this machine (DNS rebinding). This module checks for such requests on all ways in:

- ``gpushare web`` forwards connections to the daemon's socket: the kernel names the caller, and a session of
  another user is refused.
- ``[web] listen`` serves TLS: the session names the caller.
- A proxy names the caller of each request (``Access.identify``), and there is no session.

The other ways make an ``Access``, and call ``serve_browser`` with the connection as a ``Wire``: a TLS server
copies the plain bytes to one end of a pair of sockets, and the other end is the wire.
"""

from __future__ import annotations

import asyncio
import json
import re
from html import escape

from gpushared import __version__
from gpushared.domain.model.errors import (
    Code,
    GpushareError,
    LimitReached,
    NotFound,
    NotLoggedIn,
    PermissionRefused,
    RequestError,
    http_status,
)
from gpushared.domain.model.request import Caller
from gpushared.net.error_answers import connect_error
from gpushared.net.http_server import Exchange, HeaderList, Limits, Routes, WebRequest, serve_wire
from gpushared.net.limits import UserShare
from gpushared.net.socket_wire import Wire
from gpushared.net.unary_json import failure
from gpushared.web.assets import Asset
from gpushared.web.browser_checks import LOOPBACK_NAMES, check_json, check_page, host_of, is_host
from gpushared.web.browser_site import Access, BrowserSite
from gpushared.web.browser_users import NOBODY, BrowserUsers
from gpushared.web.logins import NEW_LINK_HINT, LoginSession

PROTOCOL = b"gpushare-browser"
HOSTS_HEADER = b"gpushare-hosts"
MAX_HOSTS = 32
STREAM_SECONDS = 600.0
"""A browser opens its stream anew after this time, and the daemon checks its user's rights again."""
LIMITS = Limits(head_bytes=32 * 1024, idle_seconds=120.0)
"""Other programs on the same host name send their cookies along; a browser opens another connection at will."""
_CALL = re.compile(r"gpushare\.v1\.([A-Za-z]+/[A-Za-z]+)")
_PAGE = re.compile(
    r"(?:queue|history|use|nodes|idle|audit|submit|login|(?:lease|job)/[A-Za-z0-9_.:@+~-]{1,128})?"
)
_NO_CALLS = frozenset({"Web/Link", "PoolAdmin/CreateApiToken", "PoolAdmin/CreateJoinToken"})
"""A page that was broken into must not be able to make logins or tokens that outlive its session."""
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"font-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: HeaderList = (
    (b"Content-Security-Policy", POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    (b"Cache-Control", b"no-store"),
)
"""Every answer has these headers; only assets have another Cache-Control."""
HTML = b"text/html; charset=utf-8"
FOR_EVER = (b"Cache-Control", b"public, max-age=31536000, immutable")


async def take_over(exchange: Exchange, site: BrowserSite) -> None:
    """Serve a connection of the socket as a browser's from now on, as ``gpushare web`` asks for it."""
    upgrade = (exchange.header(b"upgrade") or b"").lower()
    if exchange.method != "GET" or upgrade != PROTOCOL or exchange.has_body:
        raise RequestError(
            "connections for browsers begin with an upgrade", hint="`gpushare web` makes such connections"
        )
    listed = (exchange.header(HOSTS_HEADER) or b"").decode("latin-1").lower()
    hosts = frozenset(name for name in map(str.strip, listed.split(",")) if is_host(name))
    if len(hosts) > MAX_HOSTS:
        raise RequestError(f"more than {MAX_HOSTS} host names", hint="name fewer")
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n" % PROTOCOL
    wire, early = await exchange.hijack(101, head)
    access = Access(hosts or LOOPBACK_NAMES, caller=exchange.caller, origin=exchange.origin)
    await serve_browser(wire, early, site, access)


async def serve_browser(wire: Wire, early: bytes, site: BrowserSite, access: Access) -> None:
    """Serve one connection as a browser's until its end, then close it. ``early`` were read from it already.

    A connection without a known user has its own share; its calls count for the users of their sessions.
    """
    share = site.shares.of(access.caller.uid) if access.caller else UserShare(site.shares.limits)
    routes = Routes(
        site.json,
        _Browser(site, access).answer,
        json_prefix=b"\n",
        counts_itself=True,
        headers=HEADERS,
        problem=lambda error: failure(error).body,
        refused=site.refused,
        shares=site.shares,
    )
    await serve_wire(
        wire,
        early,
        access.caller or NOBODY,
        routes,
        limits=LIMITS,
        origin=access.origin,
        share=share,
    )


class _Browser:
    """Answer the requests of one connection."""

    def __init__(self, site: BrowserSite, access: Access) -> None:
        self._site = site
        self._access = access
        self._users = BrowserUsers(site, access)

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request. Raises errors of the tree, which become the answer."""
        if self._access.caller is None:
            await self._site.turns.turn()
        target, _, query = exchange.target.decode("ascii", "replace").partition("?")
        try:
            host = host_of(exchange, self._access.hosts)
            base = self._site.base_path()
            if target + "/" == base and exchange.method in {"GET", "HEAD"}:
                await exchange.respond(308, headers=[(b"Location", base.encode())])
                return
            if not target.startswith(base):
                raise _no_such_path()
            await self._route(exchange, host, target.removeprefix(base), query)
        except (PermissionRefused, NotLoggedIn, LimitReached) as error:
            self._users.audit_refusal(exchange, target, error)
            raise

    async def _route(self, exchange: Exchange, host: str, path: str, query: str) -> None:
        match exchange.method:
            case "GET" | "HEAD":
                await self._get(exchange, host, path, query)
            case "POST":
                check_page(exchange, host, secure=self._access.secure)
                check_json(exchange)
                await self._post(exchange, path)
            case _:
                await self._not_allowed(exchange, b"GET, HEAD, POST")

    async def _get(self, exchange: Exchange, host: str, path: str, query: str) -> None:
        if path.startswith("assets/"):
            asset = self._site.assets.find(path.removeprefix("assets/"))
            if asset is None:
                raise _no_such_path()
            await _send_asset(exchange, asset, [FOR_EVER])
        elif _PAGE.fullmatch(path):
            if (
                self._access.identify is not None
                and (error := await self._refusal_of_user(exchange)) is not None
            ):
                self._users.audit_refusal(exchange, f"{self._site.base_path()}{path}", error)
                await exchange.respond(http_status(error), _page_of(error), content_type=HTML)
                return
            await _send_asset(exchange, self._site.assets.shell(self._site.base_path()), [])
        elif path in {"session", "stream"}:
            check_page(exchange, host, secure=self._access.secure)
            if path == "session":
                await self._session(exchange)
            else:
                await self._stream(exchange, query)
        elif _CALL.fullmatch(path) or path in {"login", "logout"}:
            await self._not_allowed(exchange, b"POST")
        elif exchange.header(b"sec-fetch-mode") == b"navigate":
            page = _page_of(_no_such_path(), self._site.base_path())
            await exchange.respond(404, page, content_type=HTML)
        else:
            raise _no_such_path()

    async def _post(self, exchange: Exchange, path: str) -> None:
        if path == "login":
            await self._users.log_in(exchange)
        elif path == "logout":
            await self._users.log_out(exchange)
        elif (called := _CALL.fullmatch(path)) and called[1] not in _NO_CALLS:
            await self._call(exchange, path)
        elif _PAGE.fullmatch(path) or path in {"session", "stream"}:
            await self._not_allowed(exchange, b"GET, HEAD")
        else:
            raise _no_such_path()

    async def _not_allowed(self, exchange: Exchange, methods: bytes) -> None:
        text = f"use {methods.decode()} here"
        await exchange.respond(405, connect_error(Code.UNIMPLEMENTED, text), headers=[(b"Allow", methods)])

    # --- what a session may ask

    async def _call(self, exchange: Exchange, path: str) -> None:
        caller, _ = await self._users.of(exchange)
        async with self._site.shares.of_caller(caller).request():
            body = await exchange.read(LIMITS.json_body_bytes)
            call = WebRequest("POST", f"/{path}", exchange.headers, body, caller, self._access.origin)
            reply = await self._site.json(call)
        await exchange.respond(
            reply.status, reply.body, headers=reply.headers, content_type=reply.content_type
        )

    async def _session(self, exchange: Exchange) -> None:
        caller, session = await self._users.of(exchange)
        if session is not None and not exchange.added:
            # The browser's own end of the cookie moves with each page that is opened.
            exchange.added.append(self._users.cookie_of(exchange))
        facts = self._site.facts()
        await exchange.respond(
            200,
            json.dumps(
                {
                    "user": caller.name,
                    "uid": caller.uid,
                    "trusted": caller.trusted,
                    "node": facts.node,
                    "pool": facts.pool,
                    "simulated": facts.simulated,
                    "version": __version__,
                    "base": self._site.base_path(),
                }
            ).encode(),
        )

    async def _stream(self, exchange: Exchange, query: str) -> None:
        if self._site.stream is None:
            raise _no_such_path()
        caller, session = await self._users.of(exchange)
        with self._site.streams.of(caller.name):
            await self._stream_until_over(exchange, caller, session, query)

    async def _stream_until_over(
        self, exchange: Exchange, caller: Caller, session: LoginSession | None, query: str
    ) -> None:
        assert self._site.stream is not None
        try:
            async with asyncio.timeout(STREAM_SECONDS) as life:
                if session is None:
                    await self._site.stream(exchange, caller, query)
                    return
                now = asyncio.get_running_loop().time
                with self._site.logins.while_valid(session, lambda: life.reschedule(now())):
                    await self._site.stream(exchange, caller, query)
        except TimeoutError:
            if not exchange.started:
                raise NotLoggedIn("the session has ended", hint=NEW_LINK_HINT) from None
            exchange.abort()  # a part of an event may have been written

    async def _refusal_of_user(self, exchange: Exchange) -> GpushareError | None:
        """Return why a proxy's user may not come in, or None. The answer is then a page that needs no script."""
        try:
            await self._users.of(exchange)
        except GpushareError as error:
            return error
        return None


def _no_such_path() -> NotFound:
    return NotFound("there is no such page", hint="the page begins at its base path")


def _page_of(error: GpushareError, start: str = "") -> bytes:
    """Return an error as a page of its own, with a link to ``start`` if that is given."""
    texts = "".join(f"<p>{escape(text)}</p>" for text in (error.message, error.hint) if text)
    link = f'<p><a href="{escape(start)}">To the first page</a></p>' if start else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>gpushared</title>{texts}{link}'.encode()
    )


async def _send_asset(exchange: Exchange, asset: Asset, headers: HeaderList) -> None:
    body, own = asset.body, [*headers, (b"Vary", b"Accept-Encoding")]
    if accepts_gzip(exchange.header(b"accept-encoding") or b""):
        body, own = asset.gzipped, [*own, (b"Content-Encoding", b"gzip")]
    await exchange.respond(200, body, headers=own, content_type=asset.content_type)


def accepts_gzip(accepted: bytes) -> bool:
    """Return True if an Accept-Encoding header allows gzip (RFC 9110, 12.5.3)."""
    for offer in accepted.decode("latin-1").lower().split(","):
        coding, *parameters = (part.strip() for part in offer.split(";"))
        if coding == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters)
    return False
