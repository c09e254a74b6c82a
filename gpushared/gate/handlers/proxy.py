"""Pass a request on to the engine and its response back, as streams in both directions.

Nothing is buffered beyond a few reads: a slow client slows the engine down, and the other way round. An
attach or exec leaves HTTP: by an upgrade (101), or, as older clients do, by a 200 whose body is the raw
stream. There the end of the client's data is the end of the program's input, not of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import h11

from gpushared.domain.model.errors import EngineUnavailable, RequestError
from gpushared.net.error_answers import FORM, kind_of
from gpushared.net.http_client import SWITCHING_PROTOCOLS, EngineConnection, EngineSocket
from gpushared.net.http_server import CLOSING, ClientGoneError, Exchange
from gpushared.net.limits import UserShare
from gpushared.net.socket_wire import End, Flow, Piece, Wire

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

Farewell = Callable[[], bytes]


def nothing() -> bytes:
    """Return no last words, for requests that need none."""
    return b""


async def forward(
    engine: EngineSocket,
    exchange: Exchange,
    target: bytes,
    *,
    body: bytes | None = None,
    hijack: bool = False,
    farewell: Farewell = nothing,
) -> int:
    """Send the exchange's request to ``target`` and answer it with the engine's response; gives its status.

    Args:
        engine: where to send it.
        exchange: the client's side.
        target: path and query as they were judged.
        body: replaces the client's body; ``b""`` sends none.
        hijack: whether the connection may leave HTTP.
        farewell: what to add to the engine's output at the end of a connection that left HTTP.
    """
    if body is None:
        check_stream(exchange)
    connection = await engine.connect()
    connection.turn = exchange.share.turn
    upload = asyncio.create_task(_upload(connection, exchange, target, body, hijack=hijack))
    try:
        return await _download(connection, exchange, upload, farewell if hijack else None)
    except EngineUnavailable:
        if upload.done() and not upload.cancelled() and (gone := upload.exception()) is not None:
            raise gone from None
        raise
    finally:
        upload.cancel()
        try:
            await asyncio.gather(upload, return_exceptions=True)
        finally:
            # Also when the client's end cancels us a second time here.
            connection.close()


def check_stream(exchange: Exchange) -> None:
    """Raise ``RequestError`` for a form: the engine would take what is in it for parameters."""
    kind = kind_of(exchange.header(b"content-type"))
    if kind == FORM or kind.startswith("multipart/"):
        raise RequestError(
            f"a body of the type {kind} is not served", hint="say what it is: Content-Type: application/x-tar"
        )


async def _upload(
    connection: EngineConnection, exchange: Exchange, target: bytes, body: bytes | None, *, hijack: bool
) -> None:
    """Send the request's head and body. If the client fails meanwhile, cut the engine's connection too."""
    head = h11.Request(
        method=exchange.method, target=target, headers=_request_headers(exchange, target, body, hijack=hijack)
    )
    try:
        # An engine that answers early closes before it has read all; its answer still counts.
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
    own = HOP_BY_HOP | _named(exchange)
    dropped = own - FRAMING if body is None else own | FRAMING
    headers = [(b"Host", b"docker")]
    headers += [(name, value) for name, value in exchange.headers if name not in dropped]
    upgrade = exchange.header(b"upgrade")
    if hijack and upgrade is not None:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", _stream(upgrade, target))]
    elif not hijack:
        headers.append((b"Connection", b"close"))
    if body:
        headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    elif body is None and exchange.header(b"transfer-encoding") is not None:
        headers.append((b"Transfer-Encoding", b"chunked"))
    return headers


def _stream(asked: bytes, target: bytes) -> bytes:
    """Return the protocol to ask for: by HTTP/2 an engine would take whole requests that nobody judged."""
    is_builder = target.partition(b"?")[0].endswith(BUILDERS)
    return asked if is_builder or asked.lower() in STREAMS else b"tcp"


def _named(exchange: Exchange) -> frozenset[bytes]:
    """Return the headers that the client declares as its connection's own (RFC 9110, 7.6.1)."""
    values = [value for name, value in exchange.headers if name == b"connection"]
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))


async def _download(
    connection: EngineConnection, exchange: Exchange, upload: asyncio.Task[None], farewell: Farewell | None
) -> int:
    """Pass the response on. ``farewell`` None: the connection may not leave HTTP."""
    head = await connection.response()
    if farewell is not None and _is_hijacked(head):
        await upload
        client, early = await exchange.hijack(head.status_code, _raw_head(head))
        await _splice(client, early, connection, exchange.share, farewell)
        return head.status_code
    if head.status_code == SWITCHING_PROTOCOLS:
        raise EngineUnavailable("the Docker engine switched protocols where nobody asked for it")
    headers = [(raw, value) for raw, value in head.headers.raw_items() if raw.lower() not in HOP_BY_HOP]
    if head.status_code >= FIRST_ERROR and exchange.has_unread_body:
        headers.append(CLOSING)  # the engine reads no more of it
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
    client: Wire, early: bytes, connection: EngineConnection, share: UserShare, farewell: Farewell
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
            await client.write([farewell()])
        await client.linger()


async def _stdin(client: Wire, early: bytes, connection: EngineConnection, share: UserShare) -> None:
    """Copy input until the client has hung up; the end of input is passed on, and the output goes on."""
    end = End.SINK_LOST  # the engine takes no more, but may still have something to say
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
