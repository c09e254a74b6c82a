"""The lines that requests leave: one for each that changes something or is refused, and no secret in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import astuple
from pathlib import Path

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from gpushared.net.error_answers import Broken
from gpushared.net.http_server import Limits, Routes
from gpushared.net.limits import Shares, UserLimits
from gpushared.storage.audit.line import AuditLine
from tests.gate.docker import Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, BOB, ROOT, ServedSocket, answer_json, ask, raw_client, request, serving

NO_ENGINE = "/nonexistent/docker.sock"
CHANGES = (
    "POST /containers/create",
    "POST /containers/x/start",
    "POST /containers/x/stop",
    "POST /containers/x/restart",
    "POST /containers/x/kill",
    "POST /containers/x/update",
    "POST /containers/x/rename?name=y",
    "POST /containers/x/pause",
    "POST /containers/x/unpause",
    "POST /containers/x/attach",
    "POST /containers/x/exec",
    "POST /containers/prune",
    "PUT /containers/x/archive?path=/",
    "DELETE /containers/x",
    "POST /exec/x/start",
    "POST /commit?container=x",
    "POST /images/create?fromImage=x",
    "POST /images/load",
    "POST /images/prune",
    "POST /images/x/push",
    "POST /images/x/tag?repo=y",
    "DELETE /images/x",
    "POST /build",
    "POST /build/prune",
    "POST /networks/create",
    "POST /networks/prune",
    "POST /networks/x/connect",
    "POST /networks/x/disconnect",
    "DELETE /networks/x",
    "POST /volumes/create",
    "POST /volumes/prune",
    "DELETE /volumes/x",
)
READS = (
    "GET /_ping",
    "GET /version",
    "GET /info",
    "GET /events",
    "GET /containers/json",
    "GET /containers/x/json",
    "GET /containers/x/logs",
    "GET /containers/x/stats",
    "GET /containers/x/export",
    "GET /containers/x/archive?path=/",
    "POST /containers/x/wait",
    "POST /containers/x/resize?h=1&w=1",
    "POST /exec/x/resize?h=1&w=1",
    "POST /auth",
    "GET /images/json",
    "GET /images/x/json",
    "GET /networks",
    "GET /networks/x",
    "GET /volumes",
    "GET /volumes/x",
)


class Gates:
    """One gate with an audit, served to several callers, each on a socket of their own."""

    def __init__(self) -> None:
        self.lines: list[AuditLine] = []
        self.served: dict[Caller, ServedSocket] = {}

    async def ask(self, caller: Caller, asked: str, body: bytes = b"", *headers: str) -> int:
        method, target = asked.split(" ", 1)
        return (await ask(self.served[caller], request(method, target, body, *headers))).status

    def take(self) -> list[AuditLine]:
        """What was told since the last time."""
        taken, self.lines[:] = list(self.lines), []
        return taken

    def line(self) -> AuditLine:
        (line,) = self.take()
        return line


async def gates(engine: str, *callers: Caller) -> AsyncIterator[Gates]:
    made = Gates()
    gate = Gate(engine, FakeLeaseService(), audit=made.lines.append)
    routes = Routes(json=answer_json, docker=gate.handle, refused=gate.refused)
    async with asyncio.TaskGroup(), serving(routes, ROOT) as root, serving(routes, ALICE) as alice:
        async with serving(routes, BOB, Limits(head_seconds=0.2, head_bytes=4096, body_seconds=0.2)) as bob:
            made.served = {ROOT: root, ALICE: alice, BOB: bob}
            yield made
        await gate.close()


@pytest.fixture
async def away() -> AsyncIterator[Gates]:
    """A gate before an engine that is not there."""
    async for made in gates(NO_ENGINE):
        yield made


@pytest.fixture
async def audited(docker_engine: str) -> AsyncIterator[Gates]:
    """A gate before the real engine."""
    async for made in gates(docker_engine):
        yield made


# --- which requests leave a line ------------------------------------------------------------------------


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@pytest.mark.parametrize("asked", CHANGES)
async def test_what_would_change_something_leaves_one_line(away: Gates, asked: str, caller: Caller) -> None:
    body = b"{}" if asked.endswith(("/create", "/exec", "/update", "/connect")) else b""
    status = await away.ask(caller, asked, body)
    line = away.line()
    assert (line.uid, line.user, line.status) == (caller.uid, caller.name, status)
    assert f"{line.method} {line.endpoint}" == asked.partition("?")[0]
    assert line.refused
    assert line.text


@pytest.mark.parametrize("asked", READS)
async def test_what_only_looks_leaves_none(away: Gates, asked: str) -> None:
    """Though the engine is away, which says how things are and refuses nobody."""
    assert await away.ask(ROOT, asked) in {503, 200}
    assert away.take() == []


REFUSALS = {
    "no such endpoint": ("GET /swarm", b"", 403, "permission_denied"),
    "a path with dots": ("GET /containers/../info", b"", 400, "invalid_argument"),
    "for trusted callers only": ("POST /images/load", b"", 403, "permission_denied"),
    "no JSON": ("POST /containers/create", b"{", 400, "invalid_argument"),
    "a key twice": ("POST /volumes/create", b'{"a": 1, "a": 2}', 400, "invalid_argument"),
    "a privilege": (
        "POST /containers/create",
        b'{"Image": "x", "HostConfig": {"Privileged": true}}',
        403,
        "permission_denied",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_leaves_one_line_with_its_sentence(away: Gates, name: str) -> None:
    asked, body, status, code = REFUSALS[name]
    method, target = asked.split(" ", 1)
    answer = await ask(away.served[ALICE], request(method, target, body))
    line = away.line()
    assert (answer.status, line.status, line.code) == (status, status, code)
    assert line.text
    assert answer.message.startswith(line.text.removesuffix("..."))
    assert line.digest == (hashlib.sha256(body).hexdigest() if body else "")


BROKEN = {
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", 400, "", "not-http"),
    "two lengths": (
        b"POST /build HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        400,
        "",
        "not-http",
    ),
    "a length and chunks": (
        b"POST /build HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "/build",
        "framing",
    ),
    "a coding that nobody knows": (
        b"POST /build HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        501,
        "",
        "framing",
    ),
    "an older HTTP with chunks": (
        b"POST /build HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "/build",
        "framing",
    ),
    "a newer HTTP": (b"GET /info HTTP/1.2\r\nHost: x\r\n\r\n", 505, "/info", "http-version"),
    "a head without end": (
        b"GET /info?token=hunter2 HTTP/1.1\r\nX: " + b"y" * 10_000,
        431,
        "",
        "head-too-long",
    ),
    "a head whose end comes too late": (
        b"GET /info HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 5000 + b"\r\n\r\n",
        431,
        "/info",
        "head-too-long",
    ),
    "a head that is slow": (b"GET /info HTTP/1.1\r\n", 408, "", "head-too-slow"),
    "a body that is too long": (
        b"POST /volumes/create HTTP/1.1\r\nHost: x\r\nContent-Length: 1100000\r\n\r\n" + b" " * 1_100_000,
        413,
        "/volumes/create",
        "body-too-long",
    ),
    "a body that is slow": (
        b"POST /volumes/create HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{",
        408,
        "/volumes/create",
        "body-too-slow",
    ),
}


def test_each_way_to_be_no_proper_request_is_tried() -> None:
    assert {code for *_, code in BROKEN.values()} == set(Broken)


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_proper_request_leaves_one_line_that_says_why(away: Gates, name: str) -> None:
    sent, status, endpoint, code = BROKEN[name]
    answer = await ask(away.served[BOB], sent)
    line = away.line()
    assert (answer.status, line.status, line.code, line.uid) == (status, status, code, BOB.uid)
    assert line.endpoint == endpoint
    assert "hunter2" not in repr(line)


async def test_a_client_that_hangs_up_before_its_answer_leaves_a_line_without_one(
    tmp_path: Path,
) -> None:
    heard = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(hear, tmp_path / "s")
    async for away in gates(str(tmp_path / "s")):
        async with raw_client(away.served[ROOT]) as client:
            await client.send(request("POST", "/containers/x/pause"))
            await heard.wait()
        async with asyncio.timeout(10):
            while not away.lines:  # noqa: ASYNC110 - the gate has no event for a client that is gone
                await asyncio.sleep(0.01)
        line = away.line()
        assert (line.endpoint, line.status) == ("/containers/x/pause", 0)
    server.close()
    await server.wait_closed()


# --- what a line says, on the real engine ---------------------------------------------------------------


@pytest.mark.docker
async def test_a_container_s_life_leaves_a_line_for_each_change(
    audited: Gates, docker_environment: dict[str, str], busybox_image: str, name: str
) -> None:
    """By its full id from the create on, by whatever name it was asked for; inspects and logs leave none."""
    docker = Docker(audited.served[ROOT].url, docker_environment, busybox_image)
    done = await docker("run", "--name", name, "--network", "none", busybox_image, "true")
    assert done.code == 0, done.err
    container = json.loads((await docker("inspect", name)).out)[0]["Id"]
    await docker("logs", name)
    await docker("rm", name)
    told = [(line.method, line.endpoint.replace(container, "ID"), line.status) for line in audited.lines]
    assert told == [
        ("POST", "/containers/create", 201),
        ("POST", "/containers/ID/attach", 101),
        ("POST", "/containers/ID/start", 204),
        ("DELETE", f"/containers/{name}", 204),
    ]
    assert [line.container for line in audited.lines if "attach" not in line.endpoint] == [container] * 3
    assert (audited.lines[0].name, audited.lines[-1].name) == (name, name)
    assert not any(line.refused for line in audited.lines)


@pytest.mark.docker
async def test_the_digest_is_that_of_what_the_engine_got(audited: Gates, name: str) -> None:
    """Not of what the client wrote: of what was judged, serialised anew."""
    body = b'{ "Name" : "%s" }' % name.encode()
    assert await audited.ask(ALICE, "POST /volumes/create", body) == 201
    created = audited.line()
    judged = {"Name": name, "Labels": {"gpushare.owner": str(ALICE.uid)}}
    sent = json.dumps(judged, separators=(",", ":")).encode()
    assert created.digest == hashlib.sha256(sent).hexdigest()
    assert await audited.ask(ALICE, f"DELETE /volumes/{name}") == 204
    removed = audited.line()
    assert (removed.name, removed.digest, removed.status) == (name, "", 204)


@pytest.mark.docker
async def test_a_look_at_what_is_another_s_leaves_a_line_and_at_nothing_none(
    audited: Gates, name: str
) -> None:
    body = b'{"Name": "%s"}' % name.encode()
    assert await audited.ask(ALICE, "POST /volumes/create", body) == 201
    audited.take()
    assert await audited.ask(BOB, f"GET /volumes/{name}") == 404
    line = audited.line()
    assert (line.uid, line.code, line.name) == (BOB.uid, "not_found", name)
    assert await audited.ask(BOB, f"GET /volumes/{name}-not") == 404
    assert audited.take() == []
    await audited.ask(ALICE, f"DELETE /volumes/{name}")


SECRET = "hunter2-correct-horse"


@pytest.mark.docker
@pytest.mark.parametrize("caller", [ROOT, ALICE, BOB], ids=lambda caller: caller.name)
@pytest.mark.parametrize(
    ("asked", "body"),
    [
        ("POST /containers/create", {"Image": "no-such-image", "Env": [f"PASSWORD={SECRET}"]}),
        (
            "POST /containers/create",
            {"Image": "x", "Env": [f"P={SECRET}"], "HostConfig": {"Privileged": True}},
        ),
        ("POST /containers/create", {"Image": "x", "Cmd": ["login", SECRET], "Unknown": SECRET}),
        (f"POST /images/create?fromImage=no-such-image&token={SECRET}", None),
        (f"GET /nowhere?token={SECRET}", None),
        (f"GET /containers/%zz?token={SECRET}", None),
        (f"GET /containers/../x?token={SECRET}", None),
        ("POST /auth", {"username": "alice", "password": SECRET}),
        ("POST /volumes/create", {"Driver": "nfs", "DriverOpts": {"o": f"password={SECRET}"}}),
    ],
)
async def test_no_line_holds_a_secret(
    audited: Gates, caller: Caller, asked: str, body: dict[str, object] | None
) -> None:
    header = f"X-Registry-Auth: {SECRET}"
    await audited.ask(caller, asked, json.dumps(body).encode() if body else b"", header)
    for line in audited.lines:
        assert SECRET not in repr(astuple(line))


async def test_a_copy_into_a_container_leaves_the_path_in_it(away: Gates) -> None:
    """An archive is a stream, which nobody judges; where it goes is. Nothing else of a query is told."""
    await away.ask(ROOT, "PUT /containers/x/archive?noOverwriteDirNonDir=true&path=%2Fsrv%2Fdata%0A", b"tar")
    line = away.line()
    assert line.endpoint == "/containers/x/archive"
    assert line.text.endswith("; path /srv/data?")
    assert "noOverwrite" not in repr(line)
    await away.ask(ROOT, "DELETE /containers/x?path=%2Fetc")
    assert "etc" not in repr(away.line())


async def test_what_a_line_holds_is_printable_and_bounded(away: Gates) -> None:
    long = "%C3%A9" * 3000 + "%1b[31m"
    await away.ask(ALICE, f"DELETE /containers/{long}")
    (line,) = away.take()
    for text in (line.endpoint, line.text, line.name):
        assert text.isprintable()
        assert len(text) <= 400


async def test_a_request_beyond_what_one_user_may_have_at_once_leaves_a_line() -> None:
    """Requests of docker and calls of the daemon alike."""
    lines: list[AuditLine] = []
    gate = Gate(NO_ENGINE, FakeLeaseService(), audit=lines.append)
    shares = Shares(UserLimits(requests=0))
    routes = Routes(json=answer_json, docker=gate.handle, refused=gate.refused, shares=shares)
    async with serving(routes, ALICE) as served:
        for target in ("/info", "/gpushare.v1.Gpus/List"):
            assert (await ask(served, request("POST", target))).status == 429
    assert [(line.endpoint, line.status, line.code, line.uid) for line in lines] == [
        ("/info", 429, "resource_exhausted", ALICE.uid),
        ("/gpushare.v1.Gpus/List", 429, "resource_exhausted", ALICE.uid),
    ]
    await gate.close()
