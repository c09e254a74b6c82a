"""Connections from inside: somebody's, judged like any other, with all that a real one can do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from gpushared.domain.model.errors import EngineUnavailable, LimitReached, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.net import loopback as module
from gpushared.net.http_server import Exchange, Routes, WebReply, WebRequest
from gpushared.net.loopback import LoopbackGate
from gpushared.net.socket_wire import Wire

ADA = Caller(1000, 1000, "ada")
EVE = Caller(1001, 1001, "eve")
PIECE = bytes(64 * 1024)
MANY = 256


async def answer_json(request: WebRequest) -> WebReply:
    return WebReply(200, f"{request.caller.name} {request.body.decode()}".encode())


class EchoHandlers:
    """Answer with the caller's name; on ``/raw`` leave HTTP, and hand the connection to the test."""

    def __init__(self) -> None:
        self.raw: asyncio.Queue[tuple[Wire, bytes]] = asyncio.Queue()
        self.done = asyncio.Event()
        self.waiting = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def docker(self, exchange: Exchange) -> None:
        if exchange.target == b"/wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        if exchange.target != b"/raw":
            await exchange.respond(200, exchange.caller.name.encode())
            return
        self.raw.put_nowait(await exchange.hijack(101, b"HTTP/1.1 101 UPGRADED\r\n\r\n"))
        await self.done.wait()

    @property
    def routes(self) -> Routes:
        return Routes(json=answer_json, docker=self.docker)


@pytest.fixture
async def handlers() -> EchoHandlers:
    return EchoHandlers()


@pytest.fixture
async def loopback_gate(handlers: EchoHandlers) -> AsyncIterator[LoopbackGate]:
    made = LoopbackGate()
    made.serve(handlers.routes)
    yield made
    handlers.done.set()
    await made.close()


async def ask(loopback_gate: LoopbackGate, caller: Caller, head: bytes) -> bytes:
    reader, writer = await loopback_gate.open_as(caller)
    writer.write(head)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2]


async def raw(
    loopback_gate: LoopbackGate, handlers: EchoHandlers
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, tuple[Wire, bytes]]:
    reader, writer = await loopback_gate.open_as(ADA)
    writer.write(b"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer, await handlers.raw.get()


async def test_each_connection_is_the_given_caller_s(loopback_gate: LoopbackGate) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = await asyncio.gather(ask(loopback_gate, ADA, head), ask(loopback_gate, EVE, head))
    assert tuple(answers) == (b"ada", b"eve")


async def test_unary_calls_are_answered_too(loopback_gate: LoopbackGate) -> None:
    head = b"POST /gpushare.v1.X/Y HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    assert await ask(loopback_gate, ADA, head) == b"ada {}"


async def test_the_gate_can_be_asked_like_an_engine(loopback_gate: LoopbackGate) -> None:
    answer = await loopback_gate.gate_as(EVE).call("GET", b"/_ping")
    assert (answer.status, answer.body) == (200, b"eve")


async def test_a_half_close_is_the_end_of_one_direction(
    loopback_gate: LoopbackGate, handlers: EchoHandlers
) -> None:
    reader, writer, (server, said) = await raw(loopback_gate, handlers)
    writer.write(b"all I have to say")
    writer.write_eof()
    while data := await server.read():
        said += data
    assert said == b"all I have to say"
    await server.write([b"and this is the answer"])
    server.write_eof()
    assert await reader.read() == b"and this is the answer"
    writer.close()


async def test_who_does_not_read_is_not_written_to_for_ever(
    loopback_gate: LoopbackGate, handlers: EchoHandlers
) -> None:
    reader, writer, (server, _) = await raw(loopback_gate, handlers)

    async def pour() -> None:
        for _ in range(MANY):
            await server.write([PIECE])
        server.write_eof()

    pouring = asyncio.create_task(pour())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not pouring.done()
    size = 0
    while data := await reader.read(1 << 20):
        size += len(data)
    await pouring
    assert size == MANY * len(PIECE)
    writer.close()


async def test_who_hangs_up_ends_what_was_waited_for(
    loopback_gate: LoopbackGate, handlers: EchoHandlers
) -> None:
    _, writer = await loopback_gate.open_as(ADA)
    writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    writer.close()
    async with asyncio.timeout(10):
        await handlers.hung_up.wait()


async def test_one_user_may_have_so_many_and_no_more(
    loopback_gate: LoopbackGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS_PER_USER", 2)
    held = [loopback_gate.socket_as(ADA), loopback_gate.socket_as(ADA)]
    with pytest.raises(LimitReached, match="ada has 2 connections"):
        loopback_gate.socket_as(ADA)
    other = loopback_gate.socket_as(EVE)
    for one in (*held, other):
        one.close()
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(LimitReached):
                loopback_gate.socket_as(ADA).close()
                break
            await asyncio.sleep(0.01)  # no event announces that a connection is over


async def test_before_the_daemon_serves_nobody_is_let_in() -> None:
    with pytest.raises(Unavailable):
        await LoopbackGate().open_as(ADA)


async def test_at_the_end_all_are_hung_up_on(loopback_gate: LoopbackGate) -> None:
    reader, writer = await loopback_gate.open_as(ADA)
    bare: socket.socket = loopback_gate.socket_as(EVE)
    await loopback_gate.close()
    assert await reader.read() == b""
    assert await asyncio.get_running_loop().sock_recv(bare, 1) == b""
    writer.close()
    bare.close()


async def test_an_answer_that_is_cut_off_is_no_answer(
    loopback_gate: LoopbackGate, handlers: EchoHandlers
) -> None:
    call = asyncio.create_task(loopback_gate.gate_as(ADA).call("GET", b"/wait"))
    await handlers.waiting.wait()
    await loopback_gate.close()
    with pytest.raises(EngineUnavailable):
        await call
