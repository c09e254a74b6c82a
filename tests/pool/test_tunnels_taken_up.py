"""Connections through tunnels that go on although the coordinator, or the way to it, was away."""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpushared.domain.model.errors import NotFound
from gpushared.pool.member import tunnel_endpoints, tunnel_ends
from gpushared.pool.member.dial import Backoff, Retry
from gpushared.pool.tunnels import tunnel_streams
from tests.pool.test_tunnels import World, talk, tunnel_world

SECONDS = 60
SIZE = 12_000_000
"""Of what goes each way: more than the ends keep."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends try again soon, and keep little, so that each case comes up."""
    monkeypatch.setattr(tunnel_endpoints, "RETRY", Retry(first=0.02, last=0.1))
    monkeypatch.setattr(tunnel_streams, "WINDOW_BYTES", 300_000)
    monkeypatch.setattr(tunnel_streams, "ACKNOWLEDGE_BYTES", 50_000)


async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each byte with itself, and what ends with an end."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(100_000):
            writer.write(data)
            await writer.drain()


async def restart(world: World) -> None:
    await world.kill()
    await world.start()


@pytest.mark.parametrize("seed", range(5))
async def test_no_byte_is_lost_or_doubled_when_the_coordinator_dies(tmp_path: Path, seed: int) -> None:
    """Some connections send much, some little, and each gets back exactly what it sent."""
    chance = random.Random(seed)
    begun = asyncio.Barrier(6)

    async def one(world: World, size: int, pause: float) -> None:
        reader, writer = await world.connect()
        sent = chance.randbytes(size)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await begun.wait()

        async def send() -> None:
            for begin in range(0, size, 1 + size // 40):
                writer.write(sent[begin : begin + 1 + size // 40])
                await writer.drain()
                await asyncio.sleep(pause)
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read() == sent
        await sending
        writer.close()

    async with tunnel_world(tmp_path, mirror) as world, asyncio.timeout(SECONDS):
        ways = [(SIZE, 0.0), (2_000_000, 0.02), (4_000, 0.03), (40, 0.05), (1, 0.0)]
        working = [asyncio.create_task(one(world, *way)) for way in ways]
        await begun.wait()
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await restart(world)
        await asyncio.gather(*working)


async def test_a_silent_connection_goes_on_after_the_coordinator_was_away(tmp_path: Path) -> None:
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"before\n")
        assert await reader.readline() == b"BEFORE\n"
        await world.kill()
        writer.write(b"while it is away\n")
        await asyncio.sleep(0.3)
        await world.start()
        assert await reader.readline() == b"WHILE IT IS AWAY\n"
        writer.close()


async def test_connections_that_broke_together_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that reaches the coordinator again spares the others the rest of their long waits."""
    waits = iter((0.5, 10 * SECONDS, 10 * SECONDS))
    monkeypatch.setattr(Backoff, "seconds", lambda *_: next(waits, 0.5))
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(SECONDS):
        ways = [await world.connect() for _ in range(3)]
        for reader, writer in ways:
            writer.write(b"before\n")
            assert await reader.readline() == b"BEFORE\n"
        await restart(world)
        for reader, writer in ways:
            writer.write(b"after\n")
            assert await reader.readline() == b"AFTER\n"
            writer.close()


async def said_and_broken(folder: Path, break_it: Callable[[World], Awaitable[None]]) -> tuple[bytes, World]:
    """All that is read of a connection that had an answer, once it was broken for good."""
    async with tunnel_world(folder, talk) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        await break_it(world)
        rest = await reader.read()
        writer.close()
        return rest, world


async def test_what_cannot_go_on_is_closed_and_nothing_is_written_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a page of HTTP: whoever reads a program's output would take it for that."""
    monkeypatch.setattr(tunnel_endpoints, "TAKE_UP_SECONDS", 0.3)
    rest, _ = await said_and_broken(tmp_path, World.kill)
    assert rest == b""


async def test_a_node_that_began_anew_has_the_connection_no_more(tmp_path: Path) -> None:
    async def begin_anew(world: World) -> None:
        assert world.ends is not None
        await world.ends.close()

    rest, _ = await said_and_broken(tmp_path, begin_anew)
    assert rest == b""


async def test_whoever_may_not_reach_the_node_any_more_does_not_take_a_connection_up(tmp_path: Path) -> None:
    async def take_the_right(world: World) -> None:
        world.coordinator.person = "bob"
        await restart(world)

    rest, _ = await said_and_broken(tmp_path, take_the_right)
    assert rest == b""


async def test_nobody_takes_up_the_connection_of_another(tmp_path: Path) -> None:
    """A secret that leaked is of no use to others, and one in use cannot be given to a second connection."""
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        assert world.ends is not None
        name = next(name for name, one in world.ends._connections.items() if one.stream.received)
        endpoint = next(iter(world.endpoints._endpoints.values()))
        again = await world.endpoints._open_tunnel(endpoint, name)
        with pytest.raises(Exception, match="a connection of that name is there"):
            await again.call.read()
        world.ends._connections[name].whose = ("bob", world.ends._connections[name].whose[1])
        stolen = await world.endpoints._open_tunnel(endpoint, name, 0)
        with pytest.raises(NotFound):
            await tunnel_endpoints._count(stolen.call)
        writer.write(b"still here\n")
        assert await reader.readline() == b"STILL HERE\n"
        writer.close()


async def test_a_program_does_not_stand_still_because_nobody_carries_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_ends, "STALL_SECONDS", 0.1)
    let_go = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() != b"go\n":
            return
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        let_go.set()

    async with tunnel_world(tmp_path, flood) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"go\n")
        await reader.readexactly(1_000_000)
        await world.kill()
        await let_go.wait()
        await world.start()
        rest = await reader.read()
        assert set(rest) <= {0}
        writer.close()


async def test_a_client_that_leaves_is_gone_on_the_node_at_once(
    tmp_path: Path,
) -> None:
    """Nothing is kept for a connection that is over."""
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        if await reader.readline() == b"hello\n":
            assert await reader.read() == b""
            gone.set()

    async with tunnel_world(tmp_path, silent) as world, asyncio.timeout(SECONDS):
        _, writer = await world.connect()
        writer.write(b"hello\n")
        await writer.drain()
        writer.close()
        await gone.wait()


# --- hang-ups ------------------------------------------------------------------------------------------


async def hung_up(writer: asyncio.StreamWriter) -> None:
    """Come back when the other end is closed both ways, as the gate sees it."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    while not poll.poll(0):  # noqa: ASYNC110 - the event loop tells of no hang-up
        await asyncio.sleep(0.01)


class Request:
    """A gate that takes one line of each connection, and answers nothing."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.has_ended = asyncio.Event()
        """The client sends no more."""
        self.is_gone = asyncio.Event()
        self.leave = asyncio.Event()

    async def gate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() != b"hello\n":
            return
        self.has_come.set()
        ending = asyncio.create_task(self._until_the_end(reader))
        await hung_up(writer)
        ending.cancel()
        self.is_gone.set()

    async def _until_the_end(self, reader: asyncio.StreamReader) -> None:
        await self.leave.wait()
        if await reader.read() == b"":
            self.has_ended.set()


async def test_a_client_that_says_no_more_is_there_until_it_hangs_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a program's input is one thing, a client that was killed afterwards is another."""
    monkeypatch.setattr(tunnel_streams, "LOOK_SECONDS", 0.05)
    request = Request()
    request.leave.set()
    async with tunnel_world(tmp_path, request.gate) as world, asyncio.timeout(SECONDS):
        _, writer = await world.connect()
        writer.write(b"hello\n")
        writer.write_eof()
        await request.has_ended.wait()
        await asyncio.sleep(0.3)
        assert not request.is_gone.is_set()
        writer.close()
        await request.is_gone.wait()


async def test_a_client_that_hangs_up_behind_what_nobody_reads_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word of it cannot come after bytes for which there is no room."""
    monkeypatch.setattr(tunnel_streams, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(tunnel_streams, "PARTING_SECONDS", 0.3)
    request = Request()
    async with tunnel_world(tmp_path, request.gate) as world, asyncio.timeout(SECONDS):
        _, writer = await world.connect()
        writer.write(b"hello\n")
        await request.has_come.wait()
        writer.write(bytes(SIZE))
        await asyncio.sleep(0.3)
        writer.transport.abort()
        await request.is_gone.wait()
        assert world.ends is not None
        # No event announces that nothing is kept any more.
        while world.ends._connections or world.coordinator.tunnels._open:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def test_a_client_that_hangs_up_while_the_coordinator_is_away_is_gone_when_it_is_back(
    tmp_path: Path,
) -> None:
    request = Request()
    async with tunnel_world(tmp_path, request.gate) as world, asyncio.timeout(SECONDS):
        _, writer = await world.connect()
        writer.write(b"hello\n")
        await request.has_come.wait()
        await world.kill()
        writer.close()
        await asyncio.sleep(0.2)
        assert not request.is_gone.is_set()
        await world.start()
        await request.is_gone.wait()


async def test_a_connection_that_nobody_takes_up_is_away_and_only_while_the_coordinator_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a client whose node died: the gate then waits in no queue for it."""
    monkeypatch.setattr(tunnel_ends, "AWAY_SECONDS", 0.5)
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        await asyncio.sleep(0.6)
        assert not any(is_away() for is_away in world.is_away)
        await world.endpoints.close()
        world.linked_seconds = 0.0
        await asyncio.sleep(0.6)
        assert not any(is_away() for is_away in world.is_away)
        world.linked_seconds = 1000.0
        assert sum(is_away() for is_away in world.is_away) == 1
        writer.close()


async def test_a_connection_that_is_taken_up_is_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_ends, "AWAY_SECONDS", 0.5)
    async with tunnel_world(tmp_path, talk) as world, asyncio.timeout(SECONDS):
        reader, writer = await world.connect()
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
        await world.kill()
        await asyncio.sleep(0.6)
        await world.start()
        writer.write(b"again\n")
        assert await reader.readline() == b"AGAIN\n"
        assert not any(is_away() for is_away in world.is_away)
        writer.close()
