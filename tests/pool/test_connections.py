"""Connections of a port are counted by whose they are, and those beyond the bounds are ended."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushared.pool.coordinator import connections
from gpushared.pool.coordinator.connections import ConnectionBounds, Connections, accepted

UNITS = Path(__file__).parents[2] / "systemd"
BOUNDS = ConnectionBounds(of_port=1000, strangers=20, of_address=8, of_caller=4)


class Port:
    """A listening port of this process, with both ends of its connections."""

    def __init__(self, ends: ExitStack, host: str = "0.0.0.0") -> None:
        self._ends = ends
        self._listener = ends.enter_context(socket.create_server((host, 0)))
        self._accepted = ends.enter_context(ExitStack())
        self.number: int = self._listener.getsockname()[1]

    def connect(self, address: str = "127.0.0.1", count: int = 1) -> list[socket.socket]:
        """Raises TimeoutError where the port takes nothing from there."""
        made = []
        for _ in range(count):
            client = self._ends.enter_context(socket.socket())
            client.bind((address, 0))
            client.settimeout(0.5)
            client.connect(("127.0.0.1", self.number))
            self._accepted.enter_context(self._listener.accept()[0])
            made.append(client)
        return made

    def hang_up(self) -> None:
        """End all connections."""
        self._accepted.close()


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def port(ends: ExitStack) -> Port:
    return Port(ends)


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GROWTH", -1000)


def counted(*ports: Port, bounds: ConnectionBounds = BOUNDS) -> Connections:
    return Connections({port.number for port in ports}, bounds)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


def peer(client: socket.socket) -> str:
    host, number = client.getsockname()
    return f"ipv4:{host}:{number}"


async def test_an_address_with_as_many_as_it_may_is_kept_out_until_it_has_fewer(port: Port) -> None:
    here = counted(port)
    first = port.connect(count=8)
    await here.look()
    with pytest.raises(TimeoutError):
        port.connect()
    assert all(map(is_open, (*first, *port.connect("127.0.0.2"))))
    port.hang_up()
    await here.look()
    assert is_open(port.connect()[0])


async def test_surplus_connections_that_came_between_two_looks_are_ended(port: Port) -> None:
    here = counted(port)
    first = port.connect(count=6)
    await here.look()
    later = port.connect(count=6)
    other = port.connect("127.0.0.2", 6)
    await here.look()
    assert [is_open(one) for one in (*first, *later)] == [True] * 8 + [False] * 4
    assert all(map(is_open, other))


async def test_a_port_says_nothing_about_another(ends: ExitStack, port: Port) -> None:
    other = Port(ends)
    here = counted(port, other)
    port.connect(count=9)
    await here.look()
    assert all(map(is_open, other.connect(count=8)))


async def test_connections_of_a_known_caller_do_not_count_for_their_address(port: Port) -> None:
    here = counted(port)
    known = [*port.connect(count=4), *port.connect(count=4)]
    for number, one in enumerate(known):
        here.note_admitted(peer(one), "node ws1" if number < 4 else "API token x")
    strangers = port.connect(count=7)
    await here.look()
    assert all(map(is_open, (*known, *strangers)))


async def test_of_a_known_caller_the_newest_connections_beyond_its_bound_are_ended(port: Port) -> None:
    here = counted(port)
    known = [*port.connect(count=3), *port.connect("127.0.0.2", 3)]
    for one in known:
        here.note_admitted(peer(one), "API token x")
    await here.look()
    assert sum(map(is_open, known)) == 4


async def test_of_all_strangers_the_oldest_are_ended_and_nobody_who_is_known(port: Port) -> None:
    here = counted(port)
    known = port.connect(count=4)
    for one in known:
        here.note_admitted(peer(one), "node ws1")
    old = [port.connect(f"127.0.0.{at + 2}")[0] for at in range(15)]
    await here.look()
    new = [port.connect(f"127.0.1.{at + 2}")[0] for at in range(15)]
    await here.look()
    assert [is_open(one) for one in old] == [False] * 10 + [True] * 5
    assert all(map(is_open, (*known, *new)))


async def test_where_strangers_are_too_many_each_address_has_an_even_share(port: Port) -> None:
    here = counted(port)
    many = [one for at in range(3) for one in port.connect(f"127.0.0.{at + 2}", 7)]
    few = port.connect(count=2)
    await here.look()
    assert [is_open(one) for one in many].count(True) == 3 * (BOUNDS.strangers // 4)
    assert all(map(is_open, (*few, *port.connect())))
    with pytest.raises(TimeoutError):
        port.connect("127.0.0.3")


async def test_who_became_known_during_a_look_stays_known(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = counted(port)
    late = port.connect(count=1)[0]
    look = connections.accepted

    def slow(*asked: Any) -> Any:
        found = look(*asked)
        here.note_admitted("ipv4:127.0.0.1:1", "node ws1")  # accepted since, and so not found
        return found

    monkeypatch.setattr(connections, "accepted", slow)
    await here.look()
    assert "ipv4:127.0.0.1:1" in here._callers
    assert is_open(late)


@pytest.mark.parametrize(
    ("listen", "dial"),
    [("127.0.0.1", "127.0.0.1"), ("[::]", "127.0.0.1"), ("[::]", "[::1]"), ("[::1]", "[::1]")],
)
async def test_a_connection_is_named_as_grpc_names_it(listen: str, dial: str) -> None:
    peers: list[str] = []

    async def told(_: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        await asyncio.sleep(0)
        return b""

    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Tell": grpc.unary_unary_rpc_method_handler(told)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    number = server.add_insecure_port(f"{listen}:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"{dial}:{number}") as channel:
        tell: Any = channel.unary_unary("/test/Tell")
        await tell(b"")
        assert [one.peer for one in accepted(frozenset({number}), {})] == peers
    await server.stop(None)


def setting(unit: str, name: str) -> str:
    """The value in a unit of ours; empty where it has none."""
    found = re.search(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    return found[1] if found else ""


def test_the_ports_have_half_of_the_descriptors_of_the_unit() -> None:
    limit = int(setting("gpushared-pool.service", "LimitNOFILE"))
    bounds = ConnectionBounds.below(limit)
    assert 2 * bounds.of_port <= limit // 2
    assert bounds.of_caller <= bounds.of_address <= bounds.strangers // 2 <= bounds.of_port // 4


@pytest.mark.parametrize("descriptors", [1024, 4096, 65536, 1 << 20])
def test_strangers_have_half_of_a_port_and_others_the_rest(descriptors: int) -> None:
    bounds = ConnectionBounds.below(descriptors)
    assert bounds.strangers == bounds.of_port // 2
    assert bounds.of_address < bounds.strangers


def test_the_coordinator_has_a_bound_for_its_memory_and_the_node_with_its_servers_of_mps_none() -> None:
    high, most = (setting("gpushared-pool.service", name) for name in ("MemoryHigh", "MemoryMax"))
    assert (high, most) == ("2G", "3G")
    assert not setting("gpushared.service", "MemoryHigh") + setting("gpushared.service", "MemoryMax")
