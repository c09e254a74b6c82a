"""What the engine gets of a request, and what becomes of both sides when one of them fails.

The engine here is a socket that keeps what it is sent and answers what the test says: no real engine shows
the bytes it was given, or dies on demand.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpushared.config.gate_settings import GateConfig, PolicyPreset
from gpushared.domain.model.errors import EngineUnavailable
from gpushared.gate.docker_gate import Gate
from gpushared.gate.policy.site_presets import policy_of
from gpushared.net.http_client import EngineSocket
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import (
    ALICE,
    ROOT,
    RawClient,
    ServedSocket,
    all_gone,
    ask,
    descriptors,
    raw_client,
    request,
    serving_gate,
)

CREATED = b'HTTP/1.1 201 Created\r\nContent-Length: 13\r\n\r\n{"Id":"abcd"}'
BUSY = b'HTTP/1.1 409 Conflict\r\nContent-Length: 16\r\n\r\n{"message":"no"}'


@dataclass
class Recorder:
    """An engine that is only a socket."""

    path: str = ""
    answer: bytes = CREATED
    then_close: bool = True
    read_until: bytes = b"\r\n\r\n"
    got: list[bytes] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
        self.got.append(head + body)
        self.asked.set()
        try:
            writer.write(self.answer)
            await writer.drain()
            if not self.then_close:
                while await reader.read(65536):
                    pass
        except ConnectionError:
            pass
        finally:
            self.hung_up.set()
            writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[Recorder]:
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="engine-") as directory:
        recorder.path = str(Path(directory) / "s")
        server = await asyncio.start_unix_server(recorder.connected, recorder.path)
        yield recorder
        server.close()


@pytest.fixture
async def served(engine: Recorder) -> AsyncIterator[ServedSocket]:
    async with serving_gate(Gate(engine.path, FakeLeaseService()), ROOT) as served:
        yield served


BODY = b'{"Image":"x"}'


def chunked(target: str, body: bytes) -> bytes:
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return request("POST", target, b"", "Transfer-Encoding: chunked") + pieces + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        request("POST", "/v1.41/containers/create?name=a", BODY),
        request("POST", "/v1.41/containers/%63reate?name=%61", BODY),
        request("POST", "//v1.41//containers///create?name=a", BODY),
        request("POST", "/v1.41/containers%2fcreate?name=a", BODY),
        request("POST", "http://any.host/v1.41/containers/create?name=a", BODY),
        request("POST", "/v1.41/containers/create?name=a", b' {"Im\\u0061ge" : "x"} '),
        chunked("/v1.41/containers/create?name=a", BODY),
    ],
)
async def test_the_same_create_in_other_words_reaches_the_engine_as_the_same_bytes(
    engine: Recorder, served: ServedSocket, raw: bytes
) -> None:
    assert (await ask(served, raw)).status == 201
    head, _, body = engine.got[-1].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1.41/containers/create?name=a HTTP/1.1\r\n")
    judged = json.loads(body)
    labels = judged.pop("Labels")
    assert judged == {"Image": "x"}
    assert {name: value for name, value in labels.items() if value} == {
        "gpushare.gate": "/trusted",
        "gpushare.owner": "0",
    }


@pytest.mark.parametrize(
    "target",
    [
        "/containers/%2563reate",
        "/containers/./create",
        "/containers/x/../create",
        "/containers/create/",
        "/containers/create%00",
        "/containers/cre%zzate",
        "/containers/create%ff",
        "/v1.41/v1.41/containers/create",
        "/CONTAINERS/create",
        "/containers/create#x",
        "*",
        "/swarm/init",
        "/secrets",
        "/plugins/pull",
        "/containers/x/attach/ws",
        "/containers/x/copy",
    ],
)
async def test_a_path_that_is_on_no_list_never_reaches_the_engine(
    engine: Recorder, served: ServedSocket, target: str
) -> None:
    reply = await ask(served, request("POST", target, BODY))
    assert reply.status in {400, 403}
    assert engine.got == []


async def test_headers_of_the_clients_connection_stay_with_it(engine: Recorder, served: ServedSocket) -> None:
    engine.answer = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    own = ("Upgrade: h2c", "Connection: Upgrade, X-Own", "TE: trailers", "X-Registry-Auth: kept")
    reply = await ask(served, request("GET", "/version", b"", *own))
    head = engine.got[-1].lower()
    assert b"upgrade" not in head
    assert b"trailers" not in head
    assert b"x-registry-auth: kept" in head
    assert (reply.headers["api-version"], "connection" in reply.headers) == ("1.41", False)


async def test_headers_that_the_client_calls_its_connections_stay_with_it_but_for_the_bodys_frame(
    engine: Recorder, served: ServedSocket
) -> None:
    own = ("Connection: X-Own, Content-Length", "X-Own: secret", "Content-Type: application/x-tar")
    await ask(served, request("POST", "/images/load", b"tar", *own))
    head, _, body = engine.got[-1].lower().partition(b"\r\n\r\n")
    assert b"x-own" not in head
    assert b"\r\ncontent-length: 3\r\n" in head
    assert body == b"tar"


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/containers/create", "application/x-www-form-urlencoded"),
        ("/containers/create", "text/plain; charset=utf-8"),
        ("/containers/create", "multipart/form-data; boundary=x"),
        ("/images/load", "application/x-www-form-urlencoded"),
        ("/images/load", "Multipart/Form-Data; boundary=x"),
    ],
)
async def test_a_body_of_a_type_that_the_engine_would_read_otherwise_is_refused(
    engine: Recorder, served: ServedSocket, target: str, kind: str
) -> None:
    reply = await ask(served, request("POST", target, BODY, f"Content-Type: {kind}"))
    assert (reply.status, "a body of the type" in reply.message) == (400, True)
    assert engine.got == []


async def test_the_refusal_of_a_request_without_a_body_in_its_answer_has_none(served: ServedSocket) -> None:
    """A HEAD that breaks HTTP is answered by a head alone, and the connection ends in order."""
    async with raw_client(served) as client:
        await client.send(b"HEAD / HTTP/1.2\r\nHost: x\r\n\r\n")
        assert (await client.head())[0] == 505
        assert await client.reader.read() == b""


async def test_a_refused_upgrade_leaves_the_connection_to_http(
    engine: Recorder, served: ServedSocket
) -> None:
    engine.answer = BUSY
    upgrade = request("POST", "/containers/x/attach?stream=1", b"", "Upgrade: tcp", "Connection: Upgrade")
    smuggled = request("POST", "/swarm/init", b"{}")
    async with raw_client(served) as client:
        await client.send(upgrade + smuggled)
        assert (await client.reply()).status == 409
        assert (await client.reply()).status == 403
    assert len(engine.got) == 1


@pytest.mark.parametrize(
    ("target", "asked", "sent"),
    [
        ("/containers/x/attach?stream=1", "h2c", b"tcp"),
        ("/containers/x/attach?stream=1&detachKeys=/session", "H2C", b"tcp"),
        ("/containers/x/attach?stream=1", "tcp", b"tcp"),
        ("/v1.41/session", "h2c", b"h2c"),
    ],
)
async def test_http2_is_asked_for_where_builders_speak_it_and_nowhere_else(
    engine: Recorder, served: ServedSocket, target: str, asked: str, sent: bytes
) -> None:
    engine.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    own = (f"Upgrade: {asked}", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk")
    await ask(served, request("POST", target, b"", *own))
    head = engine.got[-1].lower()
    assert b"\r\nupgrade: " + sent + b"\r\n" in head
    assert b"http2-settings" not in head


async def test_a_hijacked_stream_goes_both_ways_and_its_half_close_is_passed_on(
    engine: Recorder, served: ServedSocket
) -> None:
    engine.answer = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nearly"
    engine.then_close = False
    upgrade = request("POST", "/containers/x/attach?stream=1", b"", "Upgrade: tcp", "Connection: Upgrade")
    async with raw_client(served) as client:
        await client.send(upgrade + b"input")
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(5) == b"early"
        client.writer.write_eof()
        await engine.hung_up.wait()
        assert await client.reader.read() == b""


async def test_an_engine_that_is_away_is_named(tmp_path: Path) -> None:
    async with serving_gate(Gate(f"{tmp_path}/none", FakeLeaseService()), ROOT) as served:
        reply = await ask(served, request("GET", "/version"))
    assert reply.status == 503
    assert f"the Docker engine does not answer on {tmp_path}/none" in reply.message


async def test_an_engine_that_hangs_up_without_an_answer_is_told(
    engine: Recorder, served: ServedSocket
) -> None:
    engine.answer = b""
    reply = await ask(served, request("GET", "/version"))
    assert reply.status == 503
    assert "broke off its answer" in reply.message


async def test_an_answer_that_breaks_off_is_seen_to_break_off(engine: Recorder, served: ServedSocket) -> None:
    engine.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    async with raw_client(served) as client:
        await client.send(request("GET", "/version"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError, ValueError)):
            await client.reply()


async def test_an_early_answer_reaches_a_client_that_still_sends(
    engine: Recorder, served: ServedSocket
) -> None:
    engine.answer = BUSY
    head = request("PUT", "/containers/x/archive?path=/", b"", "Transfer-Encoding: chunked")
    async with raw_client(served) as client:
        await client.send(head)
        sending = asyncio.create_task(_send_chunks(client))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (409, "close")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_chunks(client: RawClient) -> None:
    while True:
        await client.send(b"4000\r\n" + bytes(0x4000) + b"\r\n")


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
SWITCHED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
UPGRADE = ("Upgrade: tcp", "Connection: Upgrade")


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (request("GET", "/containers/x/logs?follow=1"), STREAM),
        (request("GET", "/events"), STREAM),
        (request("POST", "/containers/x/wait"), b""),
        (request("POST", "/containers/create", BODY), b""),
        (request("POST", "/containers/x/attach", b"", *UPGRADE), SWITCHED),
        (request("POST", "/containers/x/attach", b"", *UPGRADE) + b"input", SWITCHED),
        (request("PUT", "/containers/x/archive", b"", "Transfer-Encoding: chunked") + b"1\r\nx\r\n", b""),
        (request("POST", "/images/load", b"", "Content-Length: 10") + b"x", STREAM),
    ],
)
@pytest.mark.parametrize("half_closed", [False, True])
async def test_a_client_that_vanishes_takes_its_engine_connection_with_it(
    engine: Recorder, served: ServedSocket, raw: bytes, answer: bytes, half_closed: bool
) -> None:
    """Nothing is left of it: no connection, no task, no descriptor."""
    engine.answer, engine.then_close = answer, False
    before = descriptors()
    async with raw_client(served) as client:
        await client.send(raw)
        if b"archive" not in raw and b"load" not in raw:
            await engine.asked.wait()
        if half_closed:
            client.writer.write_eof()
            await asyncio.sleep(0.1)
    await all_gone(served, before)


async def test_an_engine_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        first = await EngineSocket(path).connect()
        second = asyncio.create_task(EngineSocket(path).connect())
        await asyncio.sleep(0.1)
        assert not second.done()
        accepted = [listener.accept()[0]]
        connection = await second
        await connection.write(b"here")
        accepted.append(listener.accept()[0])
        assert accepted[-1].recv(10) == b"here"
    for engine_end in accepted:
        engine_end.close()
    first.close()
    connection.close()


async def test_an_engine_that_answers_no_end_is_given_up(engine: Recorder) -> None:
    engine.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 99000000\r\n\r\n" + bytes(40_000_000)
    with pytest.raises(EngineUnavailable, match="more than"):
        await EngineSocket(engine.path).call("GET", b"/info")


@pytest.mark.parametrize("target", ["/images/search?term=x", "/v1.45/distribution/lab.example/x/json"])
async def test_the_engine_asks_a_registry_for_confined_callers_where_the_site_lets_it(
    engine: Recorder, target: str
) -> None:
    strict = GateConfig(preset=PolicyPreset.STRICT)
    for config, caller, status in (
        (GateConfig(), ALICE, 201),
        (GateConfig(registry_queries=False), ALICE, 403),
        (strict, ALICE, 403),
        (strict, ROOT, 201),
        (replace(strict, registry_queries=True), ALICE, 201),
    ):
        asked = len(engine.got)
        async with serving_gate(Gate(engine.path, FakeLeaseService(), policy_of(config)), caller) as served:
            reply = await ask(served, request("GET", target))
        assert (reply.status, len(engine.got) - asked) == (status, status == 201)
        if status == 403:
            assert "the engine asks no registry for you here" in reply.message


@pytest.mark.parametrize(
    ("target", "passed"),
    [("/version", False), ("/containers/json", False), ("/images/search?term=x", True)],
)
async def test_a_password_for_a_registry_goes_with_what_asks_a_registry(
    engine: Recorder, target: str, passed: bool
) -> None:
    """And nothing goes with it that the engine could understand some day."""
    words = ("X-Registry-Auth: secret", "X-Registry-Config: secret", "X-Other: secret", "Cookie: secret")
    async with serving_gate(Gate(engine.path, FakeLeaseService()), ALICE) as served:
        assert (await ask(served, request("GET", target, b"", *words))).status == 201
    assert engine.got[-1].lower().count(b"secret") == passed
