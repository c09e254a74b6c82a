"""Give all handlers the engine, the node and the policy, and pass requests on to the engine as streams.

Nothing is buffered beyond a few reads: a slow client slows the engine down, and the other way round. An
attach or exec leaves HTTP: by an upgrade (101), or, with older clients, by a 200 whose body is the raw
stream. There the end of the client's data is the end of the program's input, not of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import h11

from gpushared.domain.model.errors import EngineUnavailable, RequestError
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import first_few
from gpushared.gate.api.body import Body, Json, check_create, section
from gpushared.gate.api.field_kinds import Table, Version, fit, readable, respelled, version_of
from gpushared.gate.api.fields import NEWEST
from gpushared.gate.api.routes import Payload, Route, Target, drop_unknown
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.lease_port import LeasePort
from gpushared.gate.containers.ownership import NamedLocks, find_container
from gpushared.gate.containers.passwd import PasswdFiles
from gpushared.gate.containers.user_limits import UserContainers
from gpushared.gate.handlers.call import Call
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.gate.policy.field_rules import Context
from gpushared.net.error_answers import FORM, kind_of
from gpushared.net.http_client import SWITCHING_PROTOCOLS, EngineAnswer, EngineConnection, EngineSocket
from gpushared.net.http_server import CLOSING, ClientGoneError, Exchange
from gpushared.net.identity import Account
from gpushared.net.limits import UserShare
from gpushared.net.socket_wire import End, Flow, Piece, Wire
from gpushared.ports import LABEL_OWNER, UserWalls
from gpushared.storage.audit.line import digest_of

log = logging.getLogger(__name__)

ANSWER_SECONDS = 120.0
MOST_NAMED = 20
"""The log names at most this many of the dropped fields and parameters."""
Handler = Callable[[Call], Awaitable[object]]
OK = 200
FIRST_ERROR = 400
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
STREAMS = frozenset({b"tcp", b"websocket"})
BUILDERS = (b"/session", b"/grpc")
"""These endpoints speak HTTP/2 with the engine; only trusted callers reach them."""
FRAMING = frozenset({b"content-length", b"content-type", b"content-encoding"})

ExitNotice = Callable[[], bytes]


def _note(path: str, dropped: list[str]) -> None:
    """Log the names of dropped fields, but no values, which may be secrets, and not thousands of names."""
    if dropped:
        log.debug("the engine does not read %s of %s", first_few(dropped, MOST_NAMED), path)


def with_json(answer: EngineAnswer, value: Json) -> EngineAnswer:
    """Return the answer with another body."""
    return replace(answer, body=json.dumps(value).encode())


def no_notice() -> bytes:
    """Return no exit notice, for requests that need none."""
    return b""


class HandlerContext:
    """Hold the parts that all handlers use.

    ``policy`` may be replaced at any time; the new one applies to later requests.
    """

    def __init__(
        self,
        engine: EngineSocket,
        lease_service: LeasePort,
        policy: SitePolicy,
        pins: HeldMounts | None = None,
        name: str = "",
        walls: UserWalls | None = None,
        passwd: PasswdFiles | None = None,
    ) -> None:
        self.engine = engine
        self.lease_service = lease_service
        self.policy = policy
        self.name = name
        self.container_locks = NamedLocks()
        self.volume_locks = NamedLocks()
        self.pins = pins or HeldMounts(engine, lambda: self.policy)
        self.passwd = passwd or PasswdFiles(engine, None)
        self.user_containers = UserContainers(walls, lease_service, lambda: self.policy)

    async def send(
        self,
        call: Call,
        target: Target | None = None,
        body: bytes | None = None,
        exit_notice: ExitNotice = no_notice,
    ) -> int:
        """Pass the request on to the engine; a route without a body sends none."""
        route = call.match.route
        if body is None and route.payload is not Payload.STREAM:
            body = b""
        if body is not None:
            call.record.digest = digest_of(body)
        encoded = (target or call.target).encode()
        return await forward(
            self.engine, call.exchange, encoded, body=body, hijack=route.hijack, exit_notice=exit_notice
        )

    async def ask(self, call: Call, target: Target, body: bytes | None = None) -> EngineAnswer:
        """Return the engine's whole answer, so that the gate can check it before the client gets it."""
        if body is not None:
            call.record.digest = digest_of(body)
        return await self.engine.call(
            call.exchange.method, target.encode(), body, timeout_seconds=ANSWER_SECONDS
        )

    @property
    def tables_are_complete(self) -> bool:
        """Return True if the engine is no newer than the gate's tables, and so reads no other field."""
        try:
            return version_of(self.lease_service.engine_facts().api_version) <= NEWEST
        except (EngineUnavailable, ValueError):  # the engine has not reported its version yet
            return False

    def drop_unread(self, target: Target, route: Route) -> Target:
        """Return the target without parameters that the engine ignores; for a newer engine, all of it."""
        if not self.tables_are_complete:
            return target
        cleaned, dropped = drop_unknown(route, target)
        _note(target.path, [readable(name) for name in dropped])
        return cleaned

    async def read(
        self,
        call: Call,
        table: Table,
        version: Version | None = None,
        *,
        spellings: Mapping[str, str] = MappingProxyType({}),
    ) -> Body:
        """Return the body without fields that the engine does not read. Raises as ``fit`` does."""
        dropped: list[str] = []
        body = respelled(await call.parse(), spellings)
        fitted = fit(body, table, version, dropped=dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return fitted

    async def read_create(self, call: Call) -> Body:
        """Return a create's body without fields that the engine does not read. Raises as ``check_create``."""
        dropped: list[str] = []
        body = check_create(await call.parse(), dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return body

    def labelled(self, call: Call, body: Body) -> Body:
        """Return the body with the label that makes the caller the owner of the created object."""
        return {**body, "Labels": {**section(body, "Labels"), LABEL_OWNER: str(call.caller.uid)}}

    async def own_target(self, call: Call) -> Target:
        """Return the target with the full id of the caller's container."""
        container = await find_container(self.engine, call.match.name, call.caller)
        return call.renamed(container.id)

    def plain_context(self, call: Call) -> Context:
        """Return a context for bodies whose rules need no groups and no home."""
        return Context(Account(call.caller, ()), self.policy, version=call.version)

    def judges(self, caller: Caller) -> bool:
        """Return True if the caller's creates are judged."""
        return self.policy.everybody_confined or not caller.trusted


async def forward(
    engine: EngineSocket,
    exchange: Exchange,
    target: bytes,
    *,
    body: bytes | None = None,
    hijack: bool = False,
    exit_notice: ExitNotice = no_notice,
) -> int:
    """Send the exchange's request to ``target``, answer it with the engine's response, and return its status.

    Args:
        engine: the engine to which the request goes.
        exchange: the client's side.
        target: path and query as they were judged.
        body: replaces the client's body; ``b""`` sends none.
        hijack: True if the connection may leave HTTP.
        exit_notice: returns the text to add to the engine's output at the end of a connection that left HTTP.
    """
    if body is None:
        check_stream(exchange)
    connection = await engine.connect()
    connection.turn = exchange.share.turn
    upload = asyncio.create_task(_upload(connection, exchange, target, body, hijack=hijack))
    try:
        return await _download(connection, exchange, upload, exit_notice if hijack else None)
    except EngineUnavailable:
        if upload.done() and not upload.cancelled() and (gone := upload.exception()) is not None:
            raise gone from None
        raise
    finally:
        upload.cancel()
        try:
            await asyncio.gather(upload, return_exceptions=True)
        finally:
            # This also runs if the client's end cancels the task a second time here.
            connection.close()


def check_stream(exchange: Exchange) -> None:
    """Raise ``RequestError`` for a form: the engine would take its content for parameters."""
    kind = kind_of(exchange.header(b"content-type"))
    if kind == FORM or kind.startswith("multipart/"):
        raise RequestError(
            f"a body of the type {kind} is not served", hint="say what it is: Content-Type: application/x-tar"
        )


async def _upload(
    connection: EngineConnection, exchange: Exchange, target: bytes, body: bytes | None, *, hijack: bool
) -> None:
    """Send the request's head and body. If the client fails during that, cut the engine's connection too."""
    head = h11.Request(
        method=exchange.method, target=target, headers=_request_headers(exchange, target, body, hijack=hijack)
    )
    try:
        # An engine that answers early closes before it has read the whole body; its answer still counts.
        with contextlib.suppress(ConnectionError):
            await connection.send(head)
            async for data in _body(exchange, body):
                await connection.send_data(data)
            await connection.send(h11.EndOfMessage())
    except ClientGoneError:
        connection.hang_up()
        raise


async def _body(exchange: Exchange, body: bytes | None) -> AsyncIterator[Piece]:
    if body is None:
        async for data in exchange.pieces():
            yield data
    elif body:
        yield body


def _request_headers(
    exchange: Exchange, target: bytes, body: bytes | None, *, hijack: bool
) -> list[tuple[bytes, bytes]]:
    own = HOP_BY_HOP | _connection_headers(exchange)
    dropped = own - FRAMING if body is None else own | FRAMING
    headers = [(b"Host", b"docker")]
    headers += [(name, value) for name, value in exchange.headers if name not in dropped]
    upgrade = exchange.header(b"upgrade")
    if hijack and upgrade is not None:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", _protocol(upgrade, target))]
    elif not hijack:
        headers.append((b"Connection", b"close"))
    if body:
        headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    elif body is None and exchange.header(b"transfer-encoding") is not None:
        headers.append((b"Transfer-Encoding", b"chunked"))
    return headers


def _protocol(requested: bytes, target: bytes) -> bytes:
    """Return the protocol to ask for: by HTTP/2 an engine would take whole requests that bypass the judge."""
    is_builder = target.partition(b"?")[0].endswith(BUILDERS)
    return requested if is_builder or requested.lower() in STREAMS else b"tcp"


def _connection_headers(exchange: Exchange) -> frozenset[bytes]:
    """Return the headers that the client declares as its connection's own (RFC 9110, 7.6.1)."""
    values = [value for name, value in exchange.headers if name == b"connection"]
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))


async def _download(
    connection: EngineConnection,
    exchange: Exchange,
    upload: asyncio.Task[None],
    exit_notice: ExitNotice | None,
) -> int:
    """Pass the response on. ``exit_notice`` None: the connection may not leave HTTP."""
    head = await connection.response()
    if exit_notice is not None and _is_hijacked(head):
        await upload
        client, early = await exchange.hijack(head.status_code, _raw_head(head))
        await _splice(client, early, connection, exchange.share, exit_notice)
        return head.status_code
    if head.status_code == SWITCHING_PROTOCOLS:
        raise EngineUnavailable("the Docker engine switched protocols where nobody asked for it")
    headers = [(raw, value) for raw, value in head.headers.raw_items() if raw.lower() not in HOP_BY_HOP]
    if head.status_code >= FIRST_ERROR and exchange.has_unread_body:
        headers.append(CLOSING)  # the engine does not read the rest of the body
    await exchange.start(head.status_code, headers)
    async for data in connection.pieces():
        await exchange.send(data)
    await exchange.finish()
    return head.status_code


def _is_hijacked(head: h11.Response | h11.InformationalResponse) -> bool:
    """Return True for a switch, or for the old style's body without framing. An error stays HTTP."""
    framed = any(name in {b"content-length", b"transfer-encoding"} for name, _ in head.headers)
    return head.status_code == SWITCHING_PROTOCOLS or (head.status_code == OK and not framed)


def _raw_head(head: h11.Response | h11.InformationalResponse) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (head.status_code, bytes(head.reason))]
    lines += [raw + b": " + value for raw, value in head.headers.raw_items()]
    return b"\r\n".join([*lines, b"", b""])


async def _splice(
    client: Wire, early: bytes, connection: EngineConnection, share: UserShare, exit_notice: ExitNotice
) -> None:
    """Copy bytes both ways until the engine ends its side, or the client has hung up."""
    stdin = asyncio.create_task(_stdin(client, early, connection, share))
    stdout = asyncio.create_task(_stdout(client, connection, share))
    try:
        await asyncio.wait({stdin, stdout}, return_when=asyncio.FIRST_COMPLETED)
        ended_by_engine = stdout.done()
    finally:
        for task in (stdin, stdout):
            task.cancel()
        await asyncio.wait({stdin, stdout})
    if ended_by_engine:
        with contextlib.suppress(ConnectionError):
            await client.write([exit_notice()])
        await client.linger()


async def _stdin(client: Wire, early: bytes, connection: EngineConnection, share: UserShare) -> None:
    """Copy input until the client has hung up; the end of input is passed on, and the output goes on."""
    end = End.SINK_LOST  # the engine takes no more, but may still have output
    with contextlib.suppress(ConnectionError):
        await connection.write(early)
        end = await Flow(client, connection.wire, share).run()
    if end is End.SOURCE_LOST:
        return
    if end is End.SOURCE_ENDED:
        connection.wire.write_eof()
    await client.hung_up()


async def _stdout(client: Wire, connection: EngineConnection, share: UserShare) -> None:
    with contextlib.suppress(ConnectionError):
        await client.write([connection.early()])
        await Flow(connection.wire, client, share).run()
