"""Serve HTTP/1.1 over asyncio streams, for the Docker API and for unary JSON on the same socket.

``serve_http`` owns one accepted connection until it is over. h11 reads the requests, within bounds, and the
server answers them one after the other; pipelined ones wait their turn. Paths under ``/gpushare.v1.`` go to
the JSON handler with their whole body. Every other request goes to the Docker handler as an ``Exchange``,
whose body and response are streams.

A client that goes away while a handler works cancels the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import h11

from gpushared.domain.model.errors import Code, GpushareError, LimitReached, http_status
from gpushared.domain.model.request import Caller
from gpushared.net.error_answers import (
    NOT_HTTP,
    Broken,
    RefusedRequestError,
    RequestRefusal,
    broken_by_parser,
    check_framing,
    connect_error,
    docker_error,
    forget,
)
from gpushared.net.http_parser import HangUpWatch, Incoming
from gpushared.net.limits import Shares, UserShare
from gpushared.net.socket_wire import LINGER_SECONDS, READ_BYTES, Piece, Wire, taken_over
from gpushared.storage.audit.line import DIGESTED_BYTES, UNKNOWN, Origin

HeaderList = Sequence[tuple[bytes, bytes]]
CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
CLOSING = (b"Connection", b"close")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bound one connection."""

    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    """Bound a request's head, from its first byte to its end."""
    idle_seconds: float = 600.0
    json_body_bytes: int = 256 * 1024
    """The longest call is a page; a few megabytes of tiny lists would block everybody."""
    body_seconds: float = 30.0
    """Bound the time of a body that must be complete before it can be checked."""
    pipelined_bytes: int = 256 * 1024
    interim_seconds: float = 20.0
    """Send interim answers at this interval: clients that give up after a silence mostly do so after a
    minute."""


@dataclass(frozen=True, slots=True)
class WebRequest:
    """Hold a unary call: ``path`` without the query, and the whole body."""

    method: str
    path: str
    headers: HeaderList
    """Names are in lower case."""
    body: bytes
    caller: Caller
    origin: Origin = UNKNOWN


@dataclass(frozen=True, slots=True)
class WebReply:
    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: HeaderList = ()


MetricsHandler = Callable[[Caller, str], WebReply]
"""Answer a scrape of this caller; the text is the Accept header."""
METRICS_PATH = b"/metrics"
BROWSER_PATH = b"/gpushare.web/browser"
JsonHandler = Callable[[WebRequest], Awaitable[WebReply]]


@dataclass(frozen=True, slots=True)
class Routes:
    """Name the handlers. They may raise ``GpushareError``; any other error ends the connection."""

    json: JsonHandler
    docker: Callable[[Exchange], Awaitable[None]]
    json_prefix: bytes = b"/gpushare.v1."
    refused: Callable[[RequestRefusal, Caller, Origin], None] = forget
    shares: Shares = field(default_factory=Shares)
    metrics: MetricsHandler | None = None
    """This handler answers ``GET /metrics``, a path that Docker's API does not have."""
    browser: Callable[[Exchange], Awaitable[None]] | None = None
    """This handler answers ``GET /gpushare.web/browser``: it takes the connection over for a browser."""
    counts_itself: bool = False
    """The handler ``docker`` counts its requests against its callers' bounds."""
    headers: HeaderList = ()
    """Every answer has these headers, where its handler gives no other value."""
    problem: Callable[[GpushareError], bytes] = lambda error: docker_error(str(error))
    """Write the body of the answer that an error gives."""


class ClientGoneError(Exception):
    """Report that the client closed the connection, or broke the protocol in the middle of a body."""


def is_here() -> bool:
    """Return False: a client on this machine is away only after a hang-up."""
    return False


async def serve_http(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    caller: Caller,
    routes: Routes,
    *,
    prefix: bytes = b"",
    limits: Limits | None = None,
    origin: Origin | None = None,
    is_away: Callable[[], bool] = is_here,
) -> None:
    """Serve one connection to its end, then close it. ``prefix`` are bytes already read from it.

    ``is_away`` returns True if the way to the client has been broken for too long to wait with it.

    The caller keeps a strong reference to the task of this call: after a client's half-close nothing else may
    hold the task, and the garbage collector would take it with the stream still open.
    """
    try:
        wire, early = await taken_over(reader, writer)
    except OSError:  # it is gone already
        writer.close()
        return
    try:
        await serve_wire(wire, prefix + early, caller, routes, limits=limits, origin=origin, is_away=is_away)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def serve_wire(
    wire: Wire,
    early: bytes,
    caller: Caller,
    routes: Routes,
    *,
    limits: Limits | None = None,
    origin: Origin | None = None,
    is_away: Callable[[], bool] = is_here,
    share: UserShare | None = None,
) -> None:
    """Serve one connection to its end, then close it, as ``serve_http`` does.

    ``early`` are bytes already read from it. ``share`` counts its use; without it the caller's own does.
    """
    connection = _Connection(
        wire,
        caller,
        limits or Limits(),
        early,
        origin or UNKNOWN,
        share or routes.shares.of(caller.uid),
        is_away,
        routes.headers,
    )
    try:
        await connection.serve(routes)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not connection.hang_up_watch.gone or task is None or task.uncancel() > 0:
            raise
    finally:
        await connection.close()


class Exchange:
    """Hold one request and its response. The handler may read the body, and answers once."""

    def __init__(self, connection: _Connection, request: h11.Request) -> None:
        self._connection = connection
        self.caller = connection.caller
        self.method = request.method.decode("ascii")
        self.target: bytes = request.target
        self.headers: HeaderList = list(request.headers)
        """Names are in lower case."""
        self.http_version: bytes = request.http_version
        self.interim_seconds = connection.interim_seconds
        self.origin = connection.origin
        self.share = connection.share
        self.is_away = connection.is_away
        self.started = False
        """This is True if a response head was sent."""
        self.added: list[tuple[bytes, bytes]] = []
        """The answer has these headers besides its handler's."""
        self.on_answer: Callable[[int], None] | None = None
        """This function receives the status right before the answer's first byte."""
        self._digest = hashlib.sha256()
        self._body_bytes = 0
        self._peeked = b""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header; ``name`` is in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def has_body(self) -> bool:
        """Return True if the client announces a body, which may turn out empty."""
        length = self.header(b"content-length")
        return self.header(b"transfer-encoding") is not None or (length is not None and int(length) > 0)

    @property
    def has_unread_body(self) -> bool:
        """Return True if the end of the body has not come yet."""
        return self._connection.has_unread_body

    @property
    def is_hidden(self) -> bool:
        """Return True if so many bytes follow the request that the client's end of data stays hidden."""
        return self._connection.hang_up_watch.is_full

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the body as it arrives, each piece valid until the next. Raises ``ClientGoneError``."""
        if self._peeked:
            yield self._peeked
        while (data := await self._connection.body_piece()) is not None:
            self._count(data)
            yield data

    async def peek(self, size: int) -> bytes:
        """Return the body's first bytes, which ``pieces`` yields again. Raises ``ClientGoneError``."""
        while len(self._peeked) < size and (data := await self._connection.body_piece()) is not None:
            self._count(data)
            self._peeked += data
        return self._peeked[:size]

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises ``RefusedRequestError`` if the body is too long, or slow."""
        body = await self._connection.whole_body(limit_bytes)
        self._count(body)
        return body

    @property
    def body_digest(self) -> str:
        """Return SHA-256 of the read body in hexadecimal; empty for no body, or a stream."""
        return self._digest.hexdigest() if 0 < self._body_bytes <= DIGESTED_BYTES else ""

    def _count(self, data: Piece) -> None:
        self._body_bytes += len(data)
        if self._body_bytes <= DIGESTED_BYTES:
            self._digest.update(data)

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        headers: HeaderList = (),
        content_type: bytes = b"application/json",
    ) -> None:
        """Send a complete response in one write.

        If the request's body was not read, the connection ends, and the response says so: a client's next
        request on it would get no answer.
        """
        own_headers = [(b"Content-Type", content_type), (b"Content-Length", b"%d" % len(body))]
        if self.has_unread_body:
            own_headers.append(CLOSING)
        await self.start(status, [*headers, *own_headers], b"" if self.method == "HEAD" else body)
        await self.finish()

    async def go_on_waiting(self) -> None:
        """Send an interim answer: the final answer follows later. Raises ``ClientGoneError``."""
        await self._connection.send(CONTINUE)

    async def start(self, status: int, headers: HeaderList, body: bytes = b"") -> None:
        """Send the head at once; this method sets framing and ``Connection``."""
        self._begin(status)
        head = h11.Response(status_code=status, headers=self._connection.with_own([*headers, *self.added]))
        await self._connection.send(head, *([h11.Data(data=body)] if body else ()))

    async def send(self, data: Piece) -> None:
        """Send a part of the body; wait while the client is slow. Raises ``ClientGoneError``."""
        await self._connection.send(h11.Data(data=cast("bytes", data)))

    async def finish(self) -> None:
        await self._connection.send(h11.EndOfMessage())

    async def hijack(self, status: int, head: bytes) -> tuple[Wire, bytes]:
        """Send a head as it is and leave HTTP; the caller then owns both directions until it returns.

        Return the wire and the bytes that the client has sent already.
        """
        self._begin(status)
        return await self._connection.hijack(head)

    def _begin(self, status: int) -> None:
        self.started = True
        if self.on_answer is not None:
            self.on_answer(status)

    def abort(self) -> None:
        """Hang up in the middle of a response, so that the client sees that it is incomplete."""
        self._connection.abort()


class _Connection:
    def __init__(
        self,
        wire: Wire,
        caller: Caller,
        limits: Limits,
        early: bytes,
        origin: Origin,
        share: UserShare,
        is_away: Callable[[], bool],
        headers: HeaderList,
    ) -> None:
        self.caller = caller
        self._headers = headers
        self.share = share
        self.is_away = is_away
        self.origin = origin
        self.interim_seconds = limits.interim_seconds
        self._wire = wire
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._incoming = Incoming(
            self._http,
            wire,
            share.turn,
            early=early,
            before_reading=self._ask_for_body,
            read_bytes=READ_BYTES,
        )
        self._hijacked = False
        self._held_bytes = 0
        self.hang_up_watch = HangUpWatch(self._incoming, wire, limits.pipelined_bytes)

    # --- requests, one after the other ---

    async def serve(self, routes: Routes) -> None:
        self.hang_up_watch.task = asyncio.current_task()
        with contextlib.suppress(ClientGoneError, ConnectionError):
            while await self._serve_one(routes):
                pass

    async def _serve_one(self, routes: Routes) -> bool:
        """Serve one request; return False if the connection is over."""
        request: h11.Request | None = None
        try:
            request = await self._head()
            if request is None:
                return False
            self._check(request)
            await self._dispatch(routes, request)
        except h11.RemoteProtocolError as error:
            # The parser's error quotes the request, which may hold a secret.
            status = error.error_status_hint
            self._report_refusal(routes, request, status, broken_by_parser(status), NOT_HTTP)
            await self._refuse(request, status, f"{NOT_HTTP}: {error}")
            return False
        except RefusedRequestError as error:
            if not error.recorded:
                self._report_refusal(routes, request, error.status, error.code, error.message)
            await self._refuse(request, error.status, error.message)
            return False
        finally:
            self.share.drop(self._held_bytes)
            self._held_bytes = 0
            await self.hang_up_watch.stop()
        return await self._next_cycle()

    async def _dispatch(self, routes: Routes, request: h11.Request) -> None:
        exchange = Exchange(self, request)
        if not exchange.has_body:
            await self._end_of_request()
        if request.target.startswith(routes.json_prefix):
            await self._answer_json(routes, request, exchange)
            return
        if routes.browser is not None and request.target.partition(b"?")[0] == BROWSER_PATH:
            await self._answer_browser(routes, exchange)
            return
        if routes.metrics is not None and request.target.partition(b"?")[0] == METRICS_PATH:
            await self._answer_metrics(routes.metrics, exchange)
            return
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not routes.counts_itself:
                    await self._count(routes, request, stack)
                await routes.docker(exchange)
        except GpushareError as error:
            if exchange.started:
                self.abort()
                return
            await exchange.respond(http_status(error), routes.problem(error))

    async def _count(self, routes: Routes, request: h11.Request, stack: contextlib.AsyncExitStack) -> None:
        try:
            await stack.enter_async_context(self.share.request())
        except LimitReached as error:
            self._report_refusal(routes, request, http_status(error), error.code, error.message)
            raise

    async def _answer_browser(self, routes: Routes, exchange: Exchange) -> None:
        """Hand the connection over; its requests then count one by one."""
        assert routes.browser is not None
        try:
            await routes.browser(exchange)
        except GpushareError as error:
            await exchange.respond(http_status(error), docker_error(str(error)))

    async def _answer_json(self, routes: Routes, request: h11.Request, exchange: Exchange) -> None:
        if exchange.method != "POST":
            await exchange.respond(405, connect_error(Code.UNIMPLEMENTED, "calls are made by POST"))
            return
        path = exchange.target.partition(b"?")[0].decode("ascii")
        try:
            async with self.share.request():
                body = await self.whole_body(self._limits.json_body_bytes)
                call = WebRequest("POST", path, exchange.headers, body, self.caller, self.origin)
                reply = await routes.json(call)
        except GpushareError as error:
            if isinstance(error, LimitReached):
                self._report_refusal(routes, request, http_status(error), error.code, error.message)
            reply = WebReply(http_status(error), connect_error(error.code, str(error)))
        await exchange.respond(
            reply.status, reply.body, headers=reply.headers, content_type=reply.content_type
        )

    async def _answer_metrics(self, handler: MetricsHandler, exchange: Exchange) -> None:
        if exchange.method not in ("GET", "HEAD"):
            await exchange.respond(405, docker_error("metrics are read by GET"))
            return
        accept = (exchange.header(b"accept") or b"").decode("latin-1")
        try:
            async with self.share.request():
                reply = handler(exchange.caller, accept)
        except LimitReached as error:
            reply = WebReply(http_status(error), docker_error(str(error)))
        await exchange.respond(reply.status, reply.body, content_type=reply.content_type)

    def _report_refusal(
        self, routes: Routes, request: h11.Request | None, status: int, code: str, message: str
    ) -> None:
        method, target = (request.method, request.target) if request else (b"", b"")
        routes.refused(RequestRefusal(method, target, status, message, code), self.caller, self.origin)

    async def _refuse(self, request: h11.Request | None, status: int, message: str) -> None:
        """Answer a malformed request if an answer is still possible; the connection ends after it."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        body = docker_error(message)
        own_headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(body)),
            CLOSING,
        ]
        head = h11.Response(status_code=status, headers=self.with_own(own_headers))
        bodiless = request is not None and request.method == b"HEAD"
        await self.send(head, *(() if bodiless else (h11.Data(data=body),)), h11.EndOfMessage())
        await self._linger()

    async def _next_cycle(self) -> bool:
        if self._hijacked or self._wire.closing:
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            # The rest of an unwanted body is not worth waiting for.
            await self._linger()
            return False
        self._http.start_next_cycle()
        return True

    def _check(self, request: h11.Request) -> None:
        check_framing(request)
        # h11 bounds only heads that arrive in pieces.
        size = sum(len(name) + len(value) + 4 for name, value in request.headers) + len(request.target)
        if size > self._limits.head_bytes:
            raise RefusedRequestError(
                Broken.HEAD_TOO_LONG, f"the head is longer than {self._limits.head_bytes} bytes"
            )

    # --- the client's data ---

    async def _head(self) -> h11.Request | None:
        """Return the next request's head, or None if the client is done."""
        if not self._incoming.unparsed and not await self._next_bytes():
            return None
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                await self.share.turn()
                event = await self._incoming.event()
        except TimeoutError:
            raise RefusedRequestError(Broken.HEAD_TOO_SLOW, "the head of the request took too long") from None
        if isinstance(event, h11.ConnectionClosed):
            return None
        assert isinstance(event, h11.Request)
        return event

    async def _next_bytes(self) -> bool:
        """Wait for the next request; return False when the client is done, or idle for too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.idle_seconds):
                self._incoming.unfed = await self._wire.read()
        return bool(self._incoming.unfed)

    async def _ask_for_body(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            await self.send(CONTINUE)

    async def body_piece(self) -> Piece | None:
        """Return the next piece of the body, valid until the one after it; None at its end."""
        if self._http.their_state is not h11.SEND_BODY:
            return None
        try:
            piece = await self._incoming.piece()
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise ClientGoneError(str(error)) from error
        if piece is None:
            self.hang_up_watch.watch_soon()
        return piece

    async def whole_body(self, limit_bytes: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while (data := await self.body_piece()) is not None:
                    self.share.hold(len(data))
                    self._held_bytes += len(data)
                    pieces.append(bytes(data))
                    size += len(data)
                    if size > limit_bytes:
                        raise RefusedRequestError(
                            Broken.BODY_TOO_LONG, f"the body is longer than {limit_bytes} bytes"
                        )
        except TimeoutError:
            raise RefusedRequestError(Broken.BODY_TOO_SLOW, "the body took too long") from None
        return b"".join(pieces)

    @property
    def has_unread_body(self) -> bool:
        return self._http.their_state is h11.SEND_BODY

    async def _end_of_request(self) -> None:
        while await self.body_piece() is not None:
            pass

    # --- answers ---

    def with_own(self, headers: HeaderList) -> list[tuple[bytes, bytes]]:
        """Return an answer's headers with the headers that every answer has."""
        names = {name.lower() for name, _ in headers}
        return [*headers, *(header for header in self._headers if header[0].lower() not in names)]

    async def send(self, *events: h11.Event) -> None:
        pieces = [piece for event in events for piece in self._http.send_with_data_passthrough(event) or ()]
        await self._write(pieces)

    async def _write(self, pieces: Sequence[Piece]) -> None:
        try:
            await self._wire.write(pieces)
        except OSError as error:
            raise ClientGoneError(str(error)) from error

    async def hijack(self, head: bytes) -> tuple[Wire, bytes]:
        await self.hang_up_watch.stop()
        self._hijacked = True
        await self._write([head])
        return self._wire, self._incoming.unparsed

    def abort(self) -> None:
        self._wire.hang_up()

    async def close(self) -> None:
        await self.hang_up_watch.stop()
        self._wire.close()

    async def _linger(self) -> None:
        await self.hang_up_watch.stop()
        await self._wire.linger()


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End our side, then read and drop the other end's data, until it ends or for 2 s."""
    with contextlib.suppress(TimeoutError, ConnectionError, OSError):
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(READ_BYTES):
                pass
