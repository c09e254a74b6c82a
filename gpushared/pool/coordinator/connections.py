"""Bound the TCP connections of the coordinator's ports, for each address, each caller, and all strangers.

gRPC accepts connections itself, and can only bound all connections of a port together. A client that opens
that many would therefore shut everybody else out. Instead, this process examines its own descriptors, and
shuts surplus connections down. gRPC sees a client that hangs up; no byte passes through Python. The kernel
drops further connections from an address that has reached its bound.

A connection is a stranger's until a call on it was admitted with a token or a certificate.

A connection that is accepted only to be ended costs a TLS session; a dropped packet costs next to nothing.
The filter is classic BPF on the sockets themselves (socket(7), SO_ATTACH_FILTER), which needs no privilege.
Accepted sockets inherit the filter, but their peers are not these addresses.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from itertools import islice
from typing import Any

log = logging.getLogger(__name__)

DESCRIPTORS = "/proc/self/fd"
LOOK_SECONDS = 0.2
"""A flood over loopback opens 15 000 connections a second, which is 3000 between two looks."""
GROWTH = 64
"""Sweep the descriptors when their count has grown by this many."""
SWEEP_SECONDS = 10.0
"""Sweep after this time in any case, because some may have ended while others came."""
KEPT_OUT_SECONDS = 1.0
"""Sweep after this time while an address is kept out."""
FEW = 4
"""Never keep out an address with fewer strangers' connections."""
MOST_KEPT_OUT = 500
"""Bound the addresses: the kernel accepts 4096 instructions, and each address needs five."""
LOG_SECONDS = 60.0
"""Wait this long between two log lines about surplus connections."""
MOST_OF_A_PORT = 8192
"""Each connection costs 20 to 120 KiB."""
_TCP = frozenset({socket.AF_INET, socket.AF_INET6})
PREFIX_BITS = 64
"""Count IPv6 addresses with the same first 64 bits as one, because one machine may own them all."""
Network = IPv4Network | IPv6Network

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# linux/filter.h and linux/bpf_common.h
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_HEADER = 0xFFF00000
"""SKF_NET_OFF: offsets from this value count from the start of the IP header."""
_VERSION, _SOURCE_4, _SOURCE_6 = _HEADER, _HEADER + 12, _HEADER + 8
_DROP, _TAKE = (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF)

Instruction = tuple[int, int, int, int]
"""An instruction has a code, the skips if true and if false, and an operand."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bound connections. ``of_port`` bounds a whole port; gRPC enforces it.

    ``strangers`` bounds a port's connections without a known caller. ``of_address`` bounds strangers from one
    address. ``of_caller`` bounds one token or node.
    """

    of_port: int
    strangers: int
    of_address: int
    of_caller: int

    @classmethod
    def below(cls, descriptors: int) -> ConnectionBounds:
        """Divide the descriptors: two ports have half of them, and strangers have half of a port's share."""
        port = min(MOST_OF_A_PORT, descriptors // 4)
        return cls(port, port // 2, max(32, port // 8), max(32, port // 32))


def bounds_here() -> ConnectionBounds:
    """Return the bounds for the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConnectionBounds.below(4 * MOST_OF_A_PORT if soft == resource.RLIM_INFINITY else soft)


@dataclass(frozen=True, slots=True)
class CountedConnection:
    """Describe an accepted connection. ``peer`` is gRPC's name of the other end; ``address`` is counted."""

    descriptor: int
    inode: int
    port: int
    peer: str
    address: Network


class Connections:
    """Count the connections of some ports, and end the newest ones beyond the bounds.

    If all strangers together are too many, each address has an even share. If they are still too many, the
    oldest end first: a client with a real call makes it within moments.
    """

    def __init__(self, ports: Collection[int], bounds: ConnectionBounds) -> None:
        self._ports = frozenset(ports)
        self._bounds = bounds
        self._callers: dict[str, str] = {}
        """Map peers to the callers of their connections."""
        self._connections: dict[int, CountedConnection] = {}
        """Hold the connections by inode, in the order in which they were first seen."""
        self._kept_out: dict[int, frozenset[Network]] = {}
        """Hold the networks that are kept out, by port."""
        self._count = 0
        """Hold the fewest descriptors since the last sweep."""
        self._swept_at = -SWEEP_SECONDS
        self._logged_at = -LOG_SECONDS

    def note_admitted(self, peer: str, caller: str) -> None:
        """Note that a call of this caller was admitted on the connection."""
        self._callers[peer] = caller

    async def run(self) -> None:
        """Enforce the bounds for as long as this runs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except OSError as error:
                log.warning("connections are not counted: %s", error)
                await asyncio.sleep(SWEEP_SECONDS)

    async def look(self) -> None:
        """Sweep if there may be surplus connections."""
        count, now = open_descriptors(), time.monotonic()
        self._count = min(self._count, count)
        rest = KEPT_OUT_SECONDS if any(self._kept_out.values()) else SWEEP_SECONDS
        if count - self._count >= GROWTH or now - self._swept_at >= rest:
            surplus = await self._sweep()
            self._count, self._swept_at = count - len(surplus), now
            if surplus and now - self._logged_at >= LOG_SECONDS:
                self._logged_at = now
                _log_surplus(surplus)

    async def _sweep(self) -> list[CountedConnection]:
        """End the surplus connections, and return them."""
        met = set(self._callers)
        connections = await asyncio.to_thread(accepted, self._ports, self._connections)
        for peer in met - {connection.peer for connection in connections}:
            del self._callers[peer]
        by_inode = {connection.inode: connection for connection in connections}
        self._connections = {
            inode: by_inode.pop(inode) for inode in self._connections if inode in by_inode
        } | by_inode
        surplus: list[CountedConnection] = []
        kept_out: dict[int, frozenset[Network]] = {}
        for port in self._ports:
            of_port = [each for each in self._connections.values() if each.port == port]
            kept_out[port], beyond = self._surplus_of(port, of_port)
            surplus += beyond
        await asyncio.to_thread(shut_down, surplus)
        await self._keep_out(kept_out)
        return surplus

    def _surplus_of(
        self, port: int, connections: Sequence[CountedConnection]
    ) -> tuple[frozenset[Network], list[CountedConnection]]:
        """Return the networks from which a port must accept no more, and the surplus connections."""
        strangers = Counter(each.address for each in connections if each.peer not in self._callers)
        of_address = self._of_address(strangers)
        counts: Counter[str | Network] = Counter()
        surplus, remaining = [], []
        for connection in connections:
            caller = self._callers.get(connection.peer)
            counted = caller or connection.address
            counts[counted] += 1
            if counts[counted] > (self._bounds.of_caller if caller else of_address):
                surplus.append(connection)
            elif caller is None:
                remaining.append(connection)
        before = self._kept_out.get(port, frozenset())
        full = (net for net, count in strangers.items() if count >= (FEW if net in before else of_address))
        surplus += remaining[: max(0, len(remaining) - self._bounds.strangers)]
        return frozenset(islice(full, MOST_KEPT_OUT)), surplus

    def _of_address(self, strangers: Counter[Network]) -> int:
        """Return how many connections an address may have: an even share if there are too many in all."""
        most = self._bounds.of_address
        if strangers.total() <= self._bounds.strangers:
            return most
        return min(most, max(FEW, self._bounds.strangers // len(strangers)))

    async def _keep_out(self, networks: dict[int, frozenset[Network]]) -> None:
        """Make the kernel drop packets from these networks to the ports."""
        before = self._kept_out
        changed = {port: some for port, some in networks.items() if some != before.get(port, frozenset())}
        if changed:
            await asyncio.to_thread(keep_out, changed)
        self._kept_out = networks


# --- the system's facts ---


def open_descriptors() -> int:
    """Return how many descriptors this process has; before Linux 6.2 the folder's size does not tell."""
    return os.stat(DESCRIPTORS).st_size or len(os.listdir(DESCRIPTORS))  # noqa: PTH116, PTH208 - hot


def accepted(ports: frozenset[int], previous: Mapping[int, CountedConnection]) -> list[CountedConnection]:
    """Return all connections accepted at these ports, and reuse the facts of the ones in ``previous``."""
    connections = []
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208 - thousands of them
        with suppress(OSError):
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                connection = previous.get(about.st_ino) or _connection_at(int(name), about.st_ino)
                if connection is not None and connection.port in ports:
                    connections.append(connection)
    return connections


def shut_down(connections: Iterable[CountedConnection]) -> None:
    """Shut connections down. Leave a descriptor alone that has become another socket's."""
    for connection in connections:
        with suppress(OSError):
            copy = os.dup(connection.descriptor)
            try:
                if os.fstat(copy).st_ino == connection.inode:
                    with _borrowed(copy) as sock:
                        sock.shutdown(socket.SHUT_RDWR)
            finally:
                os.close(copy)


def keep_out(networks: Mapping[int, Collection[Network]]) -> None:
    """Make the listening sockets of these ports drop packets from these networks. Raises OSError."""
    for descriptor, port in _listening():
        if port in networks:
            with _borrowed(descriptor) as sock:
                drop_from(networks[port], sock)


def _listening() -> Iterator[tuple[int, int]]:
    """Yield all descriptors of listening TCP sockets, with their ports."""
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208 - thousands of them
        with suppress(OSError), _borrowed(int(name)) as sock:
            if sock.family in _TCP and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield int(name), sock.getsockname()[1]


def _connection_at(descriptor: int, inode: int) -> CountedConnection | None:
    """Return the connection at a descriptor, or None if it is no TCP. Raises OSError if it has no peer."""
    with _borrowed(descriptor) as sock:
        if sock.family not in _TCP:
            return None
        there = sock.getpeername()
        here = sock.getsockname()
    host = ip_address(there[0].partition("%")[0])
    if isinstance(host, IPv6Address):
        host = host.ipv4_mapped or host
    return CountedConnection(descriptor, inode, here[1], _peer(host, there), _network_of(host))


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Wrap a descriptor in a socket for the block; the owner keeps the descriptor."""
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def _peer(host: IPv4Address | IPv6Address, there: Sequence[Any]) -> str:
    """Return the other end as gRPC names it."""
    if isinstance(host, IPv4Address):
        return f"ipv4:{host}:{there[1]}"
    scope = f"%25{there[3]}" if there[3] else ""
    return f"ipv6:%5B{host}{scope}%5D:{there[1]}"


def _network_of(host: IPv4Address | IPv6Address) -> Network:
    """Return the addresses that count as one."""
    if isinstance(host, IPv4Address):
        return IPv4Network(host)
    return IPv6Network((int(host), PREFIX_BITS), strict=False)


def _log_surplus(surplus: Sequence[CountedConnection]) -> None:
    address, most = Counter(connection.address for connection in surplus).most_common(1)[0]
    log.warning("%d surplus connections ended, %d of them from %s", len(surplus), most, address)


def drop_from(networks: Collection[Network], listener: socket.socket) -> None:
    """Drop packets from exactly these networks, a few hundred at most. Raises OSError."""
    if networks:
        _attach(listener, program(networks))
    else:
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def program(networks: Iterable[Network]) -> list[Instruction]:
    """Return the filter program. For IPv6 it compares the first 64 bits of an address."""
    old: list[Instruction] = [(_LOAD_WORD, 0, 0, _SOURCE_4)]
    new: list[Instruction] = []
    for network in networks:
        number = int(network.network_address)
        if isinstance(network, IPv4Network):
            old += [(_IF_EQUAL, 0, 1, number), _DROP]
        else:
            new += [(_LOAD_WORD, 0, 0, _SOURCE_6), (_IF_EQUAL, 0, 3, number >> 96)]
            new += [(_LOAD_WORD, 0, 0, _SOURCE_6 + 4), (_IF_EQUAL, 0, 1, number >> 64 & 0xFFFFFFFF), _DROP]
    version = [(_LOAD_BYTE, 0, 0, _VERSION), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 1, 0, 0x40)]
    return [*version, (_JUMP, 0, 0, len(old) + 1), *old, _TAKE, *new, _TAKE]


def _attach(listener: socket.socket, instructions: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    packed = ctypes.create_string_buffer(code)
    about = struct.pack("HP", len(instructions), ctypes.addressof(packed))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
