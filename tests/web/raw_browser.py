"""A browser made of raw requests, and a site without a daemon behind it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpushared.domain.model.request import Caller
from gpushared.net.http_server import WebReply, WebRequest
from gpushared.net.socket_wire import Wire
from gpushared.storage.audit.line import AuditLine
from gpushared.web.browser_server import serve_browser
from gpushared.web.browser_site import Access, BrowserSite, SiteFacts, StreamHandler
from gpushared.web.logins import Logins, User

SECONDS = 20
HOST = "127.0.0.1:8642"
ADA = Caller(1000, 1000, "ada")
EVE = Caller(1001, 1001, "eve")
USER = User(ADA.uid, ADA.gid, ADA.name)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """The cookie that the answer sets, as a browser sends it back."""
        return self.headers["set-cookie"].partition(";")[0]


def request(
    method: str,
    target: str,
    body: bytes = b"",
    *,
    cookie: str = "",
    **headers: str | None,
) -> bytes:
    """A request as the page's script makes it; a header given as None is left out."""
    usual: dict[str, str | None] = {"Host": HOST, "Cookie": cookie or None}
    if method == "POST":
        usual |= {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
        usual["Content-Length"] = str(len(body))
    usual |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in usual.items() if value is not None]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def posted(target: str, message: object = None, **words: Any) -> bytes:
    return request("POST", target, json.dumps(message or {}).encode(), **words)


class Connection:
    """One connection to a site."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer(has_body=not data.startswith(b"HEAD"))

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            size = int(headers.get("content-length", 0)) if has_body else 0
            return Answer(int(first.split()[1]), headers, await self.reader.readexactly(size))

    async def is_over(self) -> bool:
        """Wait until the site has closed the connection; return True if nothing came before."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read() == b""


@dataclass
class EchoSite:
    """A site whose calls are answered with what came in."""

    folder: Path
    base: str = "/"
    hours: float = 1.0
    now: float = 1_000_000.0
    calls: list[WebRequest] = field(default_factory=list)
    lines: list[AuditLine] = field(default_factory=list)
    stream: StreamHandler | None = None

    def __post_init__(self) -> None:
        self.logins = self.new_logins()
        self.site = BrowserSite(
            self._json,
            self.logins,
            self._caller_of,
            lambda: SiteFacts("gpu1", "", True),
            lambda: self.base,
            identity="gpu1",
            audit=self.lines.append,
            stream=None if self.stream is None else self._stream,
        )

    def new_logins(self) -> Logins:
        """The logins of a daemon that starts now."""
        return Logins(self.folder / "sessions.json", lambda: self.hours * 3600, lambda: self.now)

    def restart(self) -> None:
        self.logins = self.new_logins()
        self.site = replace(self.site, logins=self.logins)

    async def _json(self, call: WebRequest) -> WebReply:
        self.calls.append(call)
        body = json.dumps({"user": call.caller.name, "path": call.path}).encode()
        return WebReply(200, body, headers=[(b"Gpushare-Revision", b"7")])

    async def _caller_of(self, user: User) -> Caller:
        return Caller(user.uid, user.gid, user.name)

    async def _stream(self, *words: Any) -> None:
        assert self.stream is not None
        await self.stream(*words)

    @asynccontextmanager
    async def connected(self, access: Access | None = None) -> AsyncIterator[Connection]:
        near, far = socket.socketpair()
        near.setblocking(False)
        served = asyncio.create_task(
            _as_task(serve_browser(Wire(near), b"", self.site, access or Access(caller=ADA)))
        )
        reader, writer = await asyncio.open_unix_connection(sock=far)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            async with asyncio.timeout(SECONDS):
                await served

    async def ask(self, data: bytes, access: Access | None = None) -> Answer:
        """Ask on a connection of its own."""
        async with self.connected(access) as connection:
            return await connection.ask(data)

    async def log_in(self, caller: Caller = ADA, access: Access | None = None, cookie: str = "") -> str:
        """Log a browser in; return its cookie."""
        access = access or Access(caller=caller)
        code = self.logins.make_code(User(caller.uid, caller.gid, caller.name), network=access.caller is None)
        answer = await self.ask(posted("/login", {"code": code}, cookie=cookie), access)
        assert answer.status == 204, answer
        return answer.cookie

    def told(self, *, refused: bool) -> list[tuple[str, str, str]]:
        """The audit's lines: who, what, and the text of a refusal."""
        return [(line.user, line.endpoint, line.text) for line in self.lines if line.refused is refused]


async def _as_task(work: Any) -> None:
    await work


NewSite = Callable[..., EchoSite]
