"""Identify the user of a browser's request, and log browsers in and out."""

from __future__ import annotations

import json
from dataclasses import replace

from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotLoggedIn,
    PermissionRefused,
    RequestError,
)
from gpushared.domain.model.request import Caller
from gpushared.net.call_audit import CALL
from gpushared.net.http_server import Exchange, HeaderList
from gpushared.storage.audit.line import NOBODY_HERE, line_now
from gpushared.web.browser_checks import cookies_of
from gpushared.web.browser_site import Access, BrowserSite
from gpushared.web.logins import NEW_LINK_HINT, LoginSession, User

LOGIN_BYTES = 1024
LOGIN, LOGOUT = "Web/Login", "Web/Logout"
"""The audit has logins under these names."""
NOBODY = Caller(NOBODY_HERE, NOBODY_HERE, "")


class _OthersSession(NotLoggedIn):
    """The session belongs to another user than the connection."""


class BrowserUsers:
    """Identify the users of one connection's requests."""

    def __init__(self, site: BrowserSite, access: Access) -> None:
        self._site = site
        self._access = access

    async def of(self, exchange: Exchange) -> tuple[Caller, LoginSession | None]:
        """Return the caller of a request, and its session if it has one. Raises NotLoggedIn, PermissionRefused."""
        if self._access.identify is not None:
            return await self._access.identify(exchange), None
        cookie, session = self._cookie_and_session(exchange)
        if session is None:
            raise NotLoggedIn("this browser is not logged in", hint=NEW_LINK_HINT)
        if not self._counts(session):
            raise _OthersSession(
                "this browser is logged in as another user, or at another address of the page",
                hint=NEW_LINK_HINT,
            )
        caller = self._access.caller or await self._site.caller_of(session.user)
        if await self._site.logins.renew(session):
            exchange.added.append(self._cookie(cookie))
        return caller, session

    def cookie_of(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """Return the header that lets the browser keep its cookie for another while."""
        return self._cookie(self._cookie_and_session(exchange)[0])

    def _cookie_and_session(self, exchange: Exchange) -> tuple[str, LoginSession | None]:
        """Return the cookie and its session, one that counts here if there is one.

        Other programs on the host may have set cookies too, those of sessions of their own.
        """
        logins = [
            (cookie, session)
            for cookie in cookies_of(exchange, self._site.cookie_name)
            if (session := self._site.logins.session_of(cookie)) is not None
        ]
        counting = (login for login in logins if self._counts(login[1]))
        return next(counting, logins[0] if logins else ("", None))

    def _counts(self, session: LoginSession) -> bool:
        caller = self._access.caller
        if caller is None:
            return session.network
        return session.user.uid == caller.uid and not session.network

    async def log_in(self, exchange: Exchange) -> None:
        if self._access.identify is not None:
            raise RequestError("behind this proxy nobody logs in", hint="the proxy says who the user is")
        if self._access.address:
            self._site.tries.spend(self._access.address)
        user = await self._user_of_login(exchange)
        caller = self._access.caller or await self._site.caller_of(user)
        _, before = self._cookie_and_session(exchange)
        cookie = await self._site.logins.begin(user, before, network=self._access.caller is None)
        self._audit(caller, CALL, LOGIN)
        await _answer_nothing(exchange, [self._cookie(cookie)])

    async def _user_of_login(self, exchange: Exchange) -> User:
        fields = _object(await exchange.read(LOGIN_BYTES))
        code, token, caller = fields.get("code"), fields.get("token"), self._access.caller
        if isinstance(code, str):
            return self._site.logins.use_code(code, None if caller is None else caller.uid)
        if isinstance(token, str) and self._site.user_of_token is not None:
            return await self._site.user_of_token(token)
        raise RequestError("a login has a code", hint=NEW_LINK_HINT)

    async def log_out(self, exchange: Exchange) -> None:
        await exchange.read(LOGIN_BYTES)
        caller, session = await self.of(exchange)
        if session is not None:
            await self._site.logins.end(session)
            self._audit(caller, CALL, LOGOUT)
        exchange.added.clear()
        await _answer_nothing(exchange, [self._cookie("", seconds=0)])

    def _cookie(self, value: str, seconds: float | None = None) -> tuple[bytes, bytes]:
        seconds = self._site.logins.seconds if seconds is None else seconds
        parts = [
            f"{self._site.cookie_name}={value}",
            f"Path={self._site.base_path()}",
            f"Max-Age={seconds:.0f}",
            "HttpOnly",
            "SameSite=Strict",
            *(["Secure"] if self._access.secure else []),
        ]
        return b"Set-Cookie", "; ".join(parts).encode()

    def audit_refusal(self, exchange: Exchange, path: str, error: GpushareError) -> None:
        """Audit a refusal, unless the browser only lacks a session."""
        is_login = path == f"{self._site.base_path()}login"
        if is_login or isinstance(error, PermissionRefused | LimitReached | _OthersSession):
            method, endpoint = (CALL, LOGIN) if is_login else (exchange.method, path)
            stranger = replace(NOBODY, name=self._access.address)
            self._audit(self._access.caller or stranger, method, endpoint, error)

    def _audit(self, caller: Caller, method: str, endpoint: str, error: GpushareError | None = None) -> None:
        origin, address = self._access.origin, self._access.address
        text = f"from {address}" if address and error is None else ""
        self._site.audit(
            line_now(caller.uid, caller.name, method, endpoint, origin=origin, text=text, error=error)
        )


async def _answer_nothing(exchange: Exchange, headers: HeaderList) -> None:
    """Answer 204, which has no length (RFC 9110, 8.6)."""
    await exchange.start(204, headers)
    await exchange.finish()


def _object(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RequestError("the body is no JSON object", hint='send {"code": "..."}')
    return fields
