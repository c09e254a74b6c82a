"""HTTP on the daemon's socket: what is answered, what is refused, and who is let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gpushared.domain.model.errors import NotFound, PermissionRefused
from gpushared.net.http_server import Exchange, Limits, Routes, WebReply, WebRequest
from tests.gate.serving import (
    ALICE,
    ServedSocket,
    all_gone,
    answer_json,
    ask,
    descriptors,
    raw_client,
    request,
    serving,
)

CALL = "/gpushare.v1.Leases/List"


async def docker_handler(exchange: Exchange) -> None:
    """Says what it was asked; reads the body except where told not to."""
    body = b"" if exchange.target == b"/unread" else await exchange.read(1000)
    told = {"method": exchange.method, "target": exchange.target.decode(), "body": body.decode()}
    await exchange.respond(200, json.dumps(told).encode())


@pytest.fixture
async def served() -> AsyncIterator[ServedSocket]:
    limits = Limits(head_bytes=4096, head_seconds=0.2, json_body_bytes=100, body_seconds=0.2)
    async with serving(Routes(json=answer_json, docker=docker_handler), ALICE, limits) as served:
        yield served


async def test_a_unary_call_gets_its_path_its_body_and_its_caller(served: ServedSocket) -> None:
    reply = await ask(served, request("POST", f"{CALL}?x=1", b"{}"))
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert json.loads(reply.body) == {"path": CALL, "uid": 1000, "body": "{}"}


async def test_one_connection_serves_many_requests_of_both_kinds(served: ServedSocket) -> None:
    async with raw_client(served) as client:
        for number in range(5):
            await client.send(request("POST", CALL, str(number).encode()))
            assert json.loads((await client.reply()).body)["body"] == str(number)
            await client.send(request("GET", f"/{number}"))
            assert json.loads((await client.reply()).body)["target"] == f"/{number}"


async def test_pipelined_requests_are_answered_in_their_order(served: ServedSocket) -> None:
    async with raw_client(served) as client:
        await client.send(b"".join(request("POST", CALL, str(number).encode()) for number in range(50)))
        bodies = [json.loads((await client.reply()).body)["body"] for _ in range(50)]
    assert bodies == [str(number) for number in range(50)]


async def test_a_request_may_arrive_byte_by_byte(served: ServedSocket) -> None:
    async with raw_client(served) as client:
        for byte in request("POST", CALL, b"ab"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert json.loads((await client.reply()).body)["body"] == "ab"


async def test_a_chunked_body_is_the_same_body(served: ServedSocket) -> None:
    chunked = request("POST", CALL, b"", "Transfer-Encoding: chunked") + b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n"
    assert json.loads((await ask(served, chunked)).body)["body"] == "abc"


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(served: ServedSocket) -> None:
    async with raw_client(served) as client:
        await client.send(request("POST", "/x", b"", "Content-Length: 2", "Expect: 100-continue"))
        assert await client.head() == (100, {})
        await client.send(b"hi")
        assert json.loads((await client.reply()).body)["body"] == "hi"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("POST", CALL, b"", "Content-Length: 1", "Content-Length: 2") + b"ab", 400),
        (request("POST", CALL, b"", "Content-Length: 1, 1") + b"a", 200),
        (request("POST", CALL, b"", "Content-Length: 1", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (request("POST", CALL, b"", "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n", 501),
        (request("POST", CALL, b"", "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
        (request("POST", CALL, b"", "Transfer-Encoding : chunked") + b"0\r\n\r\n", 400),
        (request("POST", CALL, b"", "Content-Length: -1"), 400),
        (request("POST", CALL, b"", "Content-Length: +1"), 400),
        (request("POST", CALL, b"", "Content-Length: 0x1"), 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\nA\x00: b\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (request("GET", "/", b"", *(f"X-{number}: {'x' * 100}" for number in range(100))), 431),
        (request("POST", CALL, b"x" * 101), 413),
        (request("POST", "/x", b"x" * 1001), 413),
        (request("GET", CALL), 405),
    ],
)
async def test_what_is_no_proper_request_is_refused_and_never_handled(
    served: ServedSocket, raw: bytes, status: int
) -> None:
    assert (await ask(served, raw)).status == status


async def test_what_follows_a_refused_request_is_not_read_as_another(served: ServedSocket) -> None:
    smuggled = request("POST", CALL, b"hidden")
    async with raw_client(served) as client:
        framed = request("POST", "/x", b"", "Content-Length: 1", "Transfer-Encoding: chunked")
        await client.send(framed + b"0\r\n\r\n" + smuggled)
        assert (await client.reply()).status == 400
        assert await client.reader.read() == b""


async def test_a_slow_head_and_a_slow_body_are_given_up(served: ServedSocket) -> None:
    for begun in (b"GET / HT", request("POST", CALL, b"", "Content-Length: 5") + b"ab"):
        reply = await ask(served, begun)
        assert reply.status == 408


async def test_a_body_that_nobody_reads_does_not_become_the_next_request(served: ServedSocket) -> None:
    async with raw_client(served) as client:
        await client.send(
            request("POST", "/unread", b"", "Content-Length: 100") + request("POST", CALL, b"x")
        )
        reply = await client.reply()
        assert (json.loads(reply.body)["target"], reply.headers["connection"]) == ("/unread", "close")
        client.writer.write_eof()
        assert await client.reader.read() == b""


UNREAD = [
    request("POST", "/refused", b"", "Content-Length: 100"),
    request("POST", "/refused", b"x" * 100),
    request("POST", "/refused", b"", "Transfer-Encoding: chunked") + b"2\r\nab\r\n",
    request("POST", "/refused", b"", "Content-Length: 100", "Expect: 100-continue"),
    request("PUT", CALL, b"x" * 100),
]


@pytest.mark.parametrize("raw", UNREAD)
async def test_a_refusal_before_the_body_was_read_says_that_the_connection_ends(raw: bytes) -> None:
    """Else the client sends its next request on it, and waits for an answer."""
    routes = Routes(json=answer_json, docker=refuse_unread)
    async with serving(routes) as served, raw_client(served) as client:
        await client.send(raw)
        reply = await client.reply()
        assert reply.status >= 400
        assert reply.headers["connection"] == "close"
        client.writer.write_eof()
        assert await client.reader.read() == b""


async def test_a_refusal_after_the_body_was_read_keeps_the_connection() -> None:
    async with serving(Routes(json=answer_json, docker=refuse_read)) as served, raw_client(served) as client:
        for _ in range(3):
            await client.send(request("POST", "/refused", b"x" * 100))
            reply = await client.reply()
            assert (reply.status, "connection" in reply.headers) == (403, False)


async def refuse_unread(_exchange: Exchange) -> None:
    raise PermissionRefused("no")


async def refuse_read(exchange: Exchange) -> None:
    await exchange.read(1000)
    raise PermissionRefused("no")


async def test_errors_have_the_form_that_each_kind_of_client_reads() -> None:
    async def refuse(_request: object) -> WebReply:
        raise NotFound("there is no lease l-1", hint="`gpushare ps` lists yours")

    async def refuse_docker(_exchange: Exchange) -> None:
        raise NotFound("No such container: x")

    async with serving(Routes(json=refuse, docker=refuse_docker)) as served:
        unary = await ask(served, request("POST", CALL, b"{}"))
        docker = await ask(served, request("GET", "/x"))
    assert (unary.status, json.loads(unary.body)["code"]) == (404, "not_found")
    assert (docker.status, docker.message) == (404, "No such container: x")


async def test_a_client_that_goes_away_cancels_its_handler() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_forever(_request: WebRequest) -> WebReply:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return WebReply(200, b"{}")

    async with serving(Routes(json=wait_forever, docker=docker_handler)) as served:
        async with raw_client(served) as client:
            await client.send(request("POST", CALL, b"{}"))
            await begun.wait()
        async with asyncio.timeout(30):
            await cancelled.wait()


async def test_a_client_that_only_has_no_more_to_say_still_gets_its_answer() -> None:
    begun, answer = asyncio.Event(), asyncio.Event()

    async def slow(_request: WebRequest) -> WebReply:
        begun.set()
        await answer.wait()
        return WebReply(200, b"{}")

    async with serving(Routes(json=slow, docker=docker_handler)) as served, raw_client(served) as client:
        await client.send(request("POST", CALL, b"{}"))
        client.writer.write_eof()
        await begun.wait()
        # Longer than it takes until the connection is watched for its end.
        await asyncio.sleep(0.2)
        answer.set()
        assert (await client.reply()).status == 200


async def test_what_is_sent_while_a_handler_works_is_the_next_request() -> None:
    answer = asyncio.Event()

    async def slow(request: WebRequest) -> WebReply:
        await answer.wait()
        return WebReply(200, request.body)

    async with serving(Routes(json=slow, docker=docker_handler)) as served, raw_client(served) as client:
        await client.send(request("POST", CALL, b"first"))
        await asyncio.sleep(0.1)
        for text in (b"second", b"third"):
            await client.send(request("POST", CALL, text))
        await asyncio.sleep(0.1)
        answer.set()
        assert [(await client.reply()).body for _ in range(3)] == [b"first", b"second", b"third"]


async def test_a_client_that_hangs_up_behind_much_that_nobody_reads_is_not_worked_for() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(_request: WebRequest) -> WebReply:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()
        raise AssertionError("it was cancelled")

    async with serving(Routes(json=slow, docker=docker_handler)) as served, raw_client(served) as client:
        await client.send(request("POST", CALL, b"first"))
        await begun.wait()
        client.writer.write(bytes(8 << 20))
        await asyncio.sleep(0.3)
        client.writer.transport.abort()
        async with asyncio.timeout(10):
            await ended.wait()


async def test_no_descriptor_and_no_task_outlives_a_connection(served: ServedSocket) -> None:
    before = descriptors()
    for raw in (b"", b"GET", b"GET / HTTP/1.1\r\n", request("POST", CALL, b"", "Content-Length: 9") + b"x"):
        for _ in range(10):
            async with raw_client(served) as client:
                await client.send(raw)
    await all_gone(served, before)
