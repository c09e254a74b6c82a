"""Tunnels: bytes from a user's socket on one node to the gate of another, by real gRPC streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from gpushared.api.v1 import jobs_pb2, link_pb2, link_pb2_grpc
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, JobSpec, NodeName, Owner
from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpushareError,
    LimitReached,
    RequestError,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.jobs.job_logs import job_logs
from gpushared.net.call_checks import OPTIONS, abort
from gpushared.pool.coordinator import job_streams as tunnels_module
from gpushared.pool.coordinator.job_streams import TunnelContext, Tunnels, UserContext, gate_through, splice
from gpushared.pool.member import tunnel_endpoints
from gpushared.pool.member.dial import channel_options
from gpushared.pool.member.tunnel_endpoints import TunnelEndpoints
from gpushared.pool.member.tunnel_ends import TunnelEnds
from gpushared.pool.tunnels.tunnel_frames import from_wire, to_wire

ADA = Caller(os.getuid(), os.getgid(), "ada")
JOB = JobId("0123456789")
KEY = AttemptKey(JOB, 1)
B = NodeName("b")
ATTEMPT = Attempt(
    KEY, AttemptState.RUNNING, 1, 0.0, JobSpec(Request(), Owner("ada@a", "ada")), Request(), account=ADA
)


class Coordinator:
    """The two calls of a coordinator that matter here, and its word to node b."""

    def __init__(self) -> None:
        self.tunnels = Tunnels(lambda: self)
        self.tell: Callable[[link_pb2.OpenTunnel], None] = lambda _: None
        self.person = "ada"

    def open_tunnel(self, node: NodeName, tunnel: link_pb2.OpenTunnel) -> None:
        assert node == B
        self.tell(tunnel)

    async def Serve(self, _: object, context: TunnelContext) -> None:  # noqa: N802 - as in the proto
        try:
            await self.tunnels.serve(B, context)
        except GpushareError as error:
            await abort(context, error)

    async def Tunnel(self, _: object, context: UserContext) -> None:  # noqa: N802 - as in the proto
        try:
            first = await context.read()
            assert isinstance(first, jobs_pb2.TunnelChunk)
            wanted = self.wanted(first.job_id)
            wanted.stream_id = first.stream_id
            if first.HasField("received"):
                wanted.received = first.received
            async with self.tunnels.open(B, wanted) as pipe:
                await splice(context, pipe, outlives_calls=bool(first.stream_id))
        except GpushareError as error:
            await abort(context, error)

    def wanted(self, job: str) -> link_pb2.OpenTunnel:
        return link_pb2.OpenTunnel(job_id=job, attempt=1, kind="docker", person=self.person)


def served(coordinator: Coordinator) -> tuple[grpc.GenericRpcHandler, ...]:
    """With the readers and writers of messages that a coordinator has."""
    of_nodes = grpc.stream_stream_rpc_method_handler(
        coordinator.Serve, from_wire(link_pb2.TunnelData), to_wire(link_pb2.TunnelData)
    )
    of_users = grpc.stream_stream_rpc_method_handler(
        coordinator.Tunnel, from_wire(jobs_pb2.TunnelChunk), to_wire(jobs_pb2.TunnelChunk)
    )
    return (
        grpc.method_handlers_generic_handler("gpushare.v1.NodeLink", {"Serve": of_nodes}),
        grpc.method_handlers_generic_handler("gpushare.v1.Jobs", {"Tunnel": of_users}),
    )


MUCH = 64 * 1024 * 1024
"""More than may be under way on a tunnel."""
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], "asyncio.Future[None] | object"]


@dataclass
class World:
    coordinator: Coordinator
    endpoints: TunnelEndpoints
    gate: Answering
    account: Caller = ADA
    as_whom: list[Caller] = field(default_factory=list)
    came: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One more for each connection to the gate."""
    ends: TunnelEnds | None = None
    server: grpc.aio.Server | None = None
    port: int = 0
    is_away: list[Callable[[], bool]] = field(default_factory=list)
    """What the gate is told with each connection."""
    linked_seconds: float = 1000.0

    async def start(self) -> None:
        """Let the coordinator serve, at the port that it had before."""
        self.server = grpc.aio.server(options=OPTIONS)
        self.server.add_generic_rpc_handlers(served(self.coordinator))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def kill(self) -> None:
        """The coordinator is gone with all that it knew of tunnels."""
        assert self.server is not None
        await self.server.stop(None)
        self.coordinator.tunnels = Tunnels(lambda: self.coordinator)

    async def connect(self, job: JobId = JOB) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(await self.endpoints.endpoint(job, 0, ADA))


async def vouch(_: Caller, __: jobs_pb2.TunnelChunk) -> tuple[tuple[str, bytes], ...]:
    return ()


@asynccontextmanager
async def tunnel_world(folder: Path, gate: Answering) -> AsyncIterator[World]:
    coordinator = Coordinator()
    async with AsyncExitStack() as stack:

        async def the_channel() -> grpc.aio.Channel:
            return channel

        endpoints = TunnelEndpoints(
            folder / "tunnels", the_channel, vouch, lambda error: Unavailable(str(error.details()))
        )
        world = World(coordinator, endpoints, gate)
        await world.start()
        stack.push_async_callback(world.kill)
        options = channel_options("x")
        address = f"127.0.0.1:{world.port}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options))

        def connect_as(caller: Caller, is_away: Callable[[], bool]) -> socket.socket:
            world.as_whom.append(caller)
            world.is_away.append(is_away)
            world.came.release()
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            tasks.append(asyncio.create_task(_answer(theirs, world.gate)))
            return ours

        tasks: list[asyncio.Task[None]] = []

        async def account_of(_: Owner) -> Caller:
            return world.account

        world.ends = ends = TunnelEnds(
            the_channel,
            {KEY: ATTEMPT}.get,
            account_of,
            connect_as,
            linked_seconds=lambda: world.linked_seconds,
        )
        coordinator.tell = ends.open
        stack.push_async_callback(ends.close)
        stack.push_async_callback(endpoints.close)
        yield world
    await asyncio.gather(*tasks)


async def _answer(sock: socket.socket, gate: Answering) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    await gate(reader, writer)  # type: ignore[misc]  # every gate here is a coroutine function
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says the length after the client's half-close, so that only a real one gets an answer."""
    size = len(await reader.read())
    writer.write(b"%d bytes" % size)


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()


@pytest.mark.parametrize("size", [0, 1, 100_000, 30_000_000])
async def test_all_bytes_arrive_and_a_half_close_is_the_end_of_one_direction(
    tmp_path: Path, size: int
) -> None:
    async with tunnel_world(tmp_path, echo) as world:
        reader, writer = await world.connect()
        writer.write(b"x" * size)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"%d bytes" % size
        writer.close()
        assert set(world.as_whom) == {ADA}


async def test_words_go_to_and_fro_on_many_tunnels_at_once(tmp_path: Path) -> None:
    async def one(number: int, world: World) -> None:
        reader, writer = await world.connect()
        for turn in range(5):
            writer.write(b"hello %d %d\n" % (number, turn))
            assert await reader.readline() == b"HELLO %d %d\n" % (number, turn)
        writer.close()

    async with tunnel_world(tmp_path, talk) as world:
        async with asyncio.timeout(30):
            await asyncio.gather(*(one(number, world) for number in range(40)))


async def test_another_persons_job_is_refused_in_dockers_words(tmp_path: Path) -> None:
    async with tunnel_world(tmp_path, echo) as world:
        world.coordinator.person = "bob"
        reader, writer = await world.connect()
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert "job 0123456789 is not bob's" in answer
        writer.close()
        assert world.as_whom == []


async def test_an_account_that_was_taken_from_its_owner_is_not_reached_by_an_old_job(tmp_path: Path) -> None:
    async with tunnel_world(tmp_path, echo) as world:
        world.account = Caller(ADA.uid + 1, ADA.gid, "ada2")
        reader, writer = await world.connect()
        assert "ada is ada2 on this node now" in (await reader.read()).decode()
        writer.close()
        assert world.as_whom == []


async def test_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with tunnel_world(tmp_path, echo) as world:
        reader, writer = await world.connect(JobId("9999999999"))
        assert "job 9999999999 has nothing on this node" in (await reader.read()).decode()
        writer.close()


async def test_a_node_that_does_not_call_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels_module, "ANSWER_SECONDS", 0.1)
    async with tunnel_world(tmp_path, echo) as world:
        world.coordinator.tell = lambda _: None
        with pytest.raises(TimedOut, match="node b did not answer"):
            async with world.coordinator.tunnels.open(B, world.coordinator.wanted(JOB)):
                raise AssertionError("opened")
        reader, writer = await world.connect()
        assert "did not answer" in (await reader.read()).decode()
        writer.close()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Unavailable("node b is not connected to the coordinator"), "node b is not connected to the coord"),
        (None, "the coordinator ended the connection to the node"),
    ],
)
async def test_a_refusal_that_grpcio_dropped_because_of_a_write_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: GpushareError | None, said: str
) -> None:
    """A write that fails because its call is being refused leaves only these words of grpcio's."""

    async def write_too_late(*_: object) -> None:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core"
        )

    async with tunnel_world(tmp_path, echo) as world:
        if refusal is not None:

            def refuse(_: link_pb2.OpenTunnel) -> None:
                raise refusal

            world.coordinator.tell = refuse
        monkeypatch.setattr(tunnel_endpoints, "_carry", write_too_late)
        reader, writer = await world.connect()
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert said in answer
        writer.close()


async def test_one_node_s_users_leave_tunnels_for_those_of_others() -> None:
    """However many users a node makes up; and what they held is free again when they go."""

    class SilentLink:
        def open_tunnel(self, node: NodeName, tunnel: link_pb2.OpenTunnel) -> None:
            pass

    def wanted(principal: str) -> link_pb2.OpenTunnel:
        return link_pb2.OpenTunnel(job_id=JOB, principal=principal, person=principal)

    async def hold(principal: str) -> None:
        async with tunnels.open(B, wanted(principal)):
            raise AssertionError("nobody answers")

    tunnels = tunnels_module.Tunnels(SilentLink)
    most = tunnels_module.MAX_TUNNELS_PER_REALM
    held = [asyncio.create_task(hold(f"eve{number // 100}@ws2")) for number in range(most)]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(LimitReached):
            await hold("mallory@ws2")
    others = asyncio.create_task(hold("ada@ws1"))
    await asyncio.sleep(0)
    assert not others.done()
    for task in (*held, others):
        task.cancel()
    await asyncio.gather(*held, others, return_exceptions=True)
    again = asyncio.create_task(hold("mallory@ws2"))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


async def test_nobody_can_answer_for_another_tunnel(tmp_path: Path) -> None:
    """A guessed id is of no use, and neither is one that has been answered."""
    seen: list[link_pb2.OpenTunnel] = []
    async with tunnel_world(tmp_path, talk) as world:
        tell = world.coordinator.tell

        def told(wanted: link_pb2.OpenTunnel) -> None:
            seen.append(wanted)
            tell(wanted)

        world.coordinator.tell = told
        reader, writer = await world.connect()
        writer.write(b"a\n")
        assert await reader.readline() == b"A\n"
        stub = link_pb2_grpc.NodeLinkStub(await world.endpoints._channel())
        for guess in ("", "0" * 32, seen[0].tunnel_id):
            call = stub.Serve()
            await call.write(link_pb2.TunnelData(tunnel_id=guess))
            with pytest.raises(grpc.aio.AioRpcError, match="nobody waits for this tunnel"):
                await call.read()
        writer.close()


async def test_a_coordinator_speaks_http_with_the_gate_through_a_tunnel(tmp_path: Path) -> None:
    async def docker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /_ping ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")

    async with tunnel_world(tmp_path, docker) as world:
        opener = world.coordinator

        def open_pipe() -> object:
            return opener.tunnels.open(B, opener.wanted(JOB))

        async with gate_through(open_pipe, "node b") as gate:  # type: ignore[arg-type]  # a context manager
            assert (await gate.call("GET", b"/_ping")).body == b"OK"


async def test_a_call_that_never_says_which_tunnel_it_is_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels_module, "ANSWER_SECONDS", 0.1)
    async with tunnel_world(tmp_path, echo) as world:
        call = link_pb2_grpc.NodeLinkStub(await world.endpoints._channel()).Serve()
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError, match="did not say which"):
                await call.read()


async def test_output_is_passed_on_as_it_comes_whatever_size_a_node_announces(tmp_path: Path) -> None:
    """Or a node could have the coordinator gather gigabytes."""
    container = b'[{"Id":"c"}]', b'{"Config":{"Tty":false}}'
    frame = struct.pack(">BxxxI", 2, 0xFFFFFFFF) + b"oh"

    async def docker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        body = container[0] if b"/containers/json" in asked else container[1]
        if b"/logs" not in asked:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4294967303\r\n\r\n" + frame)
        await reader.read()
        writer.close()

    async with tunnel_world(tmp_path, docker) as world:
        opener = world.coordinator

        def open_pipe() -> object:
            return opener.tunnels.open(B, opener.wanted(JOB))

        async with gate_through(open_pipe, "node b") as gate:  # type: ignore[arg-type]  # a context manager
            output = job_logs(gate, KEY, follow=True, tail=0)
            async with asyncio.timeout(20):
                chunk = await anext(output)
            await output.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert (chunk.data, chunk.stderr) == (b"oh", True)


@pytest.mark.parametrize(
    "body",
    [b"7", b"[7]", b"[{}]", b'{"Id":"c"}', b'[{"Id":"a b\\r\\n"}]', b'[{"Id":"\\ud800"}]', b"[" * 100_000],
    ids=lambda body: body[:12].decode(),
)
async def test_a_node_that_does_not_answer_as_docker_does_is_no_internal_error(
    tmp_path: Path, body: bytes
) -> None:
    async def docker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with tunnel_world(tmp_path, docker) as world:
        opener = world.coordinator

        def open_pipe() -> object:
            return opener.tunnels.open(B, opener.wanted(JOB))

        async with gate_through(open_pipe, "node b") as gate:  # type: ignore[arg-type]  # a context manager
            with pytest.raises(EngineUnavailable):
                await anext(job_logs(gate, KEY, follow=True, tail=0))


async def test_a_node_that_breaks_a_tunnel_off_leaves_no_error_unread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tunnel_world(tmp_path, echo) as world:
        stub = link_pb2_grpc.NodeLinkStub(await world.endpoints._channel())
        calls: set[asyncio.Task[object]] = set()

        async def break_off(tunnel_id: str) -> object:
            call = stub.Serve()
            await call.write(link_pb2.TunnelData(tunnel_id=tunnel_id))
            await call.write(link_pb2.TunnelData(error_code="internal", error_message="enough"))
            return await call.read()

        opener = world.coordinator
        opener.tell = lambda wanted: calls.add(asyncio.create_task(break_off(wanted.tunnel_id)))

        def open_pipe() -> object:
            return opener.tunnels.open(B, opener.wanted(JOB))

        async with gate_through(open_pipe, "node b") as gate:  # type: ignore[arg-type]  # a context manager
            with pytest.raises(EngineUnavailable):
                await gate.call("GET", b"/_ping")
        await asyncio.gather(*calls)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_whoever_does_not_read_holds_up_only_themselves(tmp_path: Path) -> None:
    """All are on one connection between the machines. What is under way for the slow one is bounded."""
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        if await reader.readline() == b"talk\n":
            await talk(reader, writer)
            return
        with contextlib.suppress(ConnectionError):
            while written < MUCH:
                writer.write(bytes(65536))
                await writer.drain()
                written += 65536

    async with tunnel_world(tmp_path, flood) as world, asyncio.timeout(60):
        slow, its_writer = await world.connect()
        its_writer.write(b"flood\n")
        await slow.readexactly(65536)
        reader, writer = await world.connect()
        writer.write(b"talk\n")
        for turn in range(2000):
            writer.write(b"hello %d\n" % turn)
            assert await reader.readline() == b"HELLO %d\n" % turn
        assert written < MUCH
        its_writer.close()
        writer.close()


# --- endpoints -----------------------------------------------------------------------------------------


async def test_an_endpoint_that_closes_leaves_other_sockets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next socket gets its number; the event loop must not go on to look at the old one by it."""
    monkeypatch.setattr(tunnel_endpoints, "IDLE_SECONDS", -1.0)
    async with tunnel_world(tmp_path, echo) as world:
        path = Path(await world.endpoints.endpoint(JobId("9999999999"), 0, ADA))
        await asyncio.sleep(0)  # its endpoint waits for somebody
        reader, writer = await world.connect()
        assert not path.exists()
        writer.write(b"hello")
        writer.write_eof()
        async with asyncio.timeout(20):
            assert await reader.read() == b"5 bytes"
        writer.close()


@pytest.mark.parametrize("job", ["../x", "/tmp/x", "a.1", ""])
async def test_no_coordinator_names_files_elsewhere(tmp_path: Path, job: str) -> None:
    """The name of a job is its word, and the daemon is root."""
    async with tunnel_world(tmp_path, echo) as world:
        with pytest.raises(RequestError, match="is no name of a job"):
            await world.endpoints.endpoint(JobId(job), 0, ADA)


async def test_one_user_cannot_use_up_the_endpoints_nor_the_daemons_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_endpoints, "MAX_ENDPOINTS_PER_USER", 1)
    monkeypatch.setattr(tunnel_endpoints, "MAX_CONNECTIONS_PER_USER", 1)
    async with tunnel_world(tmp_path, talk) as world:
        reader, writer = await world.connect()
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        refused, other = await world.connect()
        assert b"too many connections" in await refused.read()
        with pytest.raises(LimitReached):
            await world.endpoints.endpoint(JobId("9999999999"), 0, ADA)
        writer.close()
        other.close()


# --- tunnels that are ready ------------------------------------------------------------------------------


async def test_whoever_was_told_of_an_endpoint_finds_connections_made(tmp_path: Path) -> None:
    """As many as ``docker run`` uses; the next one is made when it is asked for."""
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(30):
        path = await world.endpoints.endpoint(JOB, 0, ADA)
        for _ in range(tunnel_endpoints.READY_TUNNELS):
            await world.came.acquire()
        writers = []
        for number in range(1, tunnel_endpoints.READY_TUNNELS + 2):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"hello\n")
            assert await reader.readline() == b"HELLO\n"
            assert len(world.as_whom) == max(number, tunnel_endpoints.READY_TUNNELS)
            writers.append(writer)
        for writer in writers:
            writer.close()


async def test_connections_that_nobody_uses_are_given_up_on_both_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_endpoints, "READY_SECONDS", 0.05)
    ended = asyncio.Semaphore(0)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        ended.release()

    async with tunnel_world(tmp_path, silent) as world, asyncio.timeout(30):
        await world.endpoints.endpoint(JOB, 0, ADA)
        for _ in range(tunnel_endpoints.READY_TUNNELS):
            await ended.acquire()
        assert not world.coordinator.tunnels._open
        await world.endpoints.endpoint(JOB, 0, ADA)
        await world.came.acquire()


async def test_a_connection_that_failed_before_it_was_used_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: asyncio.Queue[tunnel_endpoints.Call] = asyncio.Queue()
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(30):
        opened = world.endpoints._open_tunnel

        async def noted(endpoint: tunnel_endpoints._Endpoint) -> tunnel_endpoints.Tunnel:
            tunnel = await opened(endpoint)
            calls.put_nowait(tunnel.call)
            return tunnel

        monkeypatch.setattr(world.endpoints, "_open_tunnel", noted)
        world.coordinator.person = "bob"
        path = await world.endpoints.endpoint(JOB, 0, ADA)
        for _ in range(tunnel_endpoints.READY_TUNNELS):
            assert await (await calls.get()).code() is grpc.StatusCode.PERMISSION_DENIED
        world.coordinator.person = "ada"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        writer.close()


async def test_unused_connections_leave_room_for_those_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator counts them all as the user's, who may ask for many endpoints and use few."""
    monkeypatch.setattr(tunnel_endpoints, "MAX_READY_PER_USER", 2)
    monkeypatch.setattr(tunnels_module, "MAX_TUNNELS_PER_PERSON", 3)
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(30):
        for _ in range(5):
            await world.endpoints.endpoint(JOB, 0, ADA)
        for _ in range(2):
            await world.came.acquire()
        path = await world.endpoints.endpoint(JobId("9999999999"), 0, ADA)
        reader, writer = await asyncio.open_unix_connection(path)
        assert "job 9999999999 has nothing on this node" in (await reader.read()).decode()
        writer.close()
