"""Hold one request at the gate with its caller: read and answer it, and send interim answers during a wait.

Many clients hang up after a minute of silence. An interim answer (RFC 9110, 15.2) is no answer yet: a client
that reads one goes on reading, and counts the silence anew.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpushared.domain.model.errors import PermissionRefused, RequestError, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import BODY_BYTES, Body, parse_object
from gpushared.gate.api.field_kinds import Version, version_of
from gpushared.gate.api.routes import Match, RouteAction, Target, check_parameters
from gpushared.net.error_answers import FORM, kind_of
from gpushared.net.http_client import EngineAnswer
from gpushared.net.http_server import Exchange
from gpushared.storage.audit.line import CallRecord

log = logging.getLogger(__name__)

EMPTY_BODIES = frozenset({b"", b"{}", b"null"})
FORM_METHODS = frozenset({"POST", "PUT"})
"""Methods with which the engine reads a form for parameters."""
JSON_KIND = "application/json"
NO_BODY_BYTES = 64 * 1024
SHORT_BYTES = 32 * 1024
"""A body of this size takes no noticeable time to parse; hardly any body is longer."""
OLDEST_VERSION = (1, 24)
"""Before this version a start could carry a HostConfig."""
KEPT_HEADERS = frozenset({b"api-version", b"docker-experimental", b"ostype", b"server"})

HEADERS = frozenset(
    {
        b"accept",
        b"connection",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    }
)
REGISTRY_HEADERS = frozenset({b"x-registry-auth"})
MOST_INTERIM_ANSWERS = 99
"""At one more interim answer Python's ``http.client`` of 2026 gives up, even with a timeout of hours."""
READS_ON = re.compile(rb"python|aiohttp|httpx|\bnode\b|undici|axios", re.IGNORECASE)
"""Clients with these names are known to read on after any number of interim answers up to ``MOST_INTERIM_ANSWERS``.

Go's client gives up after five, but waits for ever without any. Programs in Go have names of their own, so no
list could exclude them; this list includes the other clients.
"""
OLD_HTTP = b"1.0"

LOOK_SECONDS = 5.0
"""The interval at which the gate checks that the client can still be seen."""

_T = TypeVar("_T")
_STANDARD_ERROR = 2
_FRAME = struct.Struct(">BxxxL")
"""In Docker's attach protocol the stream and the size come before each piece of output."""


@dataclass(frozen=True, slots=True)
class Call:
    """Hold a request whose route is known."""

    exchange: Exchange
    target: Target
    match: Match
    record: CallRecord = field(default_factory=CallRecord)

    @property
    def caller(self) -> Caller:
        return self.exchange.caller

    @property
    def version(self) -> Version | None:
        """Return the request's version of the API; None if the request does not name one."""
        return version_of(self.target.version) if self.target.version else None

    def renamed(self, name: str) -> Target:
        """Return the judged target with the full id in place of a confined client's word for it.

        A trusted client's own word goes to the engine, whose errors repeat it.
        """
        kind, _, rest = self.target.path.lstrip("/").partition("/")
        if kind == "containers":
            self.record.container = name
        if self.caller.trusted:
            return self.target
        return self.target.with_path(f"/{kind}/{name}{rest.removeprefix(self.match.name)}")

    async def parse(self) -> Body:
        """Parse the body; raises ``RequestError`` if it can be read in two ways."""
        if self.exchange.has_body:
            self.check_json()
        raw = await self.exchange.read(BODY_BYTES)
        if len(raw) <= SHORT_BYTES:
            return parse_object(raw)
        async with self.exchange.share.long_work():
            return parse_object(raw)

    def check_json(self) -> None:
        """Raise ``RequestError`` for a body that declares another type, as the engine does."""
        kind = kind_of(self.exchange.header(b"content-type"))
        if kind not in {"", JSON_KIND}:
            raise RequestError(
                f"a body of the type {kind} is not read", hint=f"send Content-Type: {JSON_KIND}"
            )

    async def answer(self, answer: EngineAnswer) -> None:
        """Give the client the engine's answer to a request of ours."""
        headers = [(raw, value) for raw, value in answer.headers if raw.lower() in KEPT_HEADERS]
        await self.exchange.respond(answer.status, answer.body, headers=headers)


async def expect_nothing(exchange: Exchange) -> None:
    """Raise ``RequestError`` for a body where engines refuse one, or act on it."""
    if (await exchange.read(NO_BODY_BYTES)).strip() not in EMPTY_BODIES:
        raise RequestError("this request takes no body", hint="a create takes a container's options")


async def drop_body(exchange: Exchange) -> None:
    """Read a body that engines ignore, and drop it: clients send their options here too.

    Raises ``RequestError`` for a form, which the engine would take for parameters.
    """
    size = len(await exchange.read(NO_BODY_BYTES))
    if size and exchange.method in FORM_METHODS and kind_of(exchange.header(b"content-type")) == FORM:
        raise RequestError("a form is not read here", hint="write its fields as parameters into the path")
    if size:
        path = exchange.target.partition(b"?")[0].decode("ascii", "backslashreplace")
        log.debug("the engine does not read a body of %s %s, %d bytes", exchange.method, path, size)


def check_confined(call: Call) -> None:
    """Raise if a confined caller may not make this request, or not with these parameters.

    Only the headers that describe how to read and answer the request are kept.
    """
    route, target = call.match.route, call.target
    if route.action in {RouteAction.TRUSTED, RouteAction.BUILD}:
        raise PermissionRefused(route.why, hint=route.hint)
    check_parameters(route, target)
    if target.version and tuple(map(int, target.version[1:].split("."))) < OLDEST_VERSION:
        raise RequestError(f"API version {target.version[1:]} is too old", hint="upgrade the client")
    passed = HEADERS | REGISTRY_HEADERS if route.registry else HEADERS
    call.exchange.headers = [each for each in call.exchange.headers if each[0] in passed]


async def while_waiting(exchange: Exchange, work: Coroutine[Any, Any, _T], *, may_queue: bool = True) -> _T:
    """Return the result of ``work``, or raise its error; until then no part of the answer is sent.

    ``may_queue``: the work may wait in the queue. Then raises Unavailable or RequestError if the gate can no
    longer see a client that waits for the answer.
    """
    step = min(LOOK_SECONDS, exchange.interim_seconds)
    looks_between = round(exchange.interim_seconds / step)
    looks_left = looks_between * MOST_INTERIM_ANSWERS if reads_on(exchange) else 0
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


def as_output(text: str, *, terminal: bool) -> bytes:
    """Return the text as output of the container: on its terminal, or framed as its standard error."""
    if not text:
        return b""
    if terminal:
        return "".join(f"\r\n{line}" for line in text.splitlines()).encode() + b"\r\n"
    line = f"{text}\n".encode()
    return _FRAME.pack(_STANDARD_ERROR, len(line)) + line
