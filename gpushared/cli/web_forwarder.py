"""Forward a port of this machine's loopback to the daemon's socket, for browsers of one user.

The daemon sees this process's user behind each connection. Any process of the machine can connect to the port,
so the forwarder accepts the connections of its own user and of root only (``_users``). The kernel tells whose
the other end is (``/proc/net/tcp``). The daemon makes all other checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable, Sequence

from gpushared.cli.errors import UsageError
from gpushared.domain.model.errors import Unavailable

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8642
PORTS_TRIED = 20
MAX_CONNECTIONS = 256
COPY_BYTES = 64 * 1024
ANSWER_SECONDS = 10.0
LINGER_SECONDS = 2.0
ROOT = 0
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"
"""Only a socket in this state belongs to a process for certain: the kernel shows root's id for closed ones."""
V4_IN_V6 = "0000000000000000FFFF0000"
_SWITCHED = re.compile(rb"HTTP/1\.1 101 ")

Addresses = tuple[tuple[str, int], tuple[str, int]]


class Forwarder:
    """Forward connections for browsers, for one user."""

    def __init__(self, socket_path: str, hosts: Sequence[str], tell: Callable[[str], None]) -> None:
        """``hosts`` are further names by which browsers may call the page; ``tell`` tells the user."""
        self._socket_path = socket_path
        self._hosts = hosts
        self._tell = tell
        self._users = _users()
        self._open = 0
        self._refused: set[int | None] = set()

    async def listen(self, port: int | None) -> tuple[asyncio.Server, int]:
        """Listen at a port, or at a free one near the first if none is given. Raises UsageError, Unavailable."""
        _check_tables()
        ports = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS_TRIED), 0]
        for candidate in ports:
            try:
                server = await asyncio.start_server(self._serve, LOOPBACK, candidate)
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return server, server.sockets[0].getsockname()[1]
        raise UsageError(f"port {ports[0]} cannot be listened on: {reason}", hint="choose another --port")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS and await self._is_own(writer):
                await self._forward(reader, writer)
        except OSError:
            pass  # one end is gone
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _is_own(self, writer: asyncio.StreamWriter) -> bool:
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        uid = await asyncio.to_thread(owner_of, ends)
        if uid in self._users:
            return True
        if uid is not None and uid not in self._refused:
            self._refused.add(uid)
            self._tell(f"a connection of another user (uid {uid}) was refused")
        return False

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                daemon = await self._connect()
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            await _answer_no_daemon(reader, writer, str(error))
            return
        daemon_reader, daemon_writer = daemon
        ways = [
            asyncio.create_task(_copy(reader, daemon_writer)),
            asyncio.create_task(_copy(daemon_reader, writer)),
        ]
        try:
            # Browsers close both directions at once, and a stream must end with its browser.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            daemon_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the daemon as a browser. Raises OSError, EOFError."""
        reader, writer = await asyncio.open_unix_connection(self._socket_path)
        try:
            hosts = ", ".join((LOOPBACK, "localhost", "[::1]", *self._hosts))
            writer.write(
                b"GET /gpushare.web/browser HTTP/1.1\r\nHost: gpushared\r\nConnection: Upgrade\r\n"
                b"Upgrade: gpushare-browser\r\nGpushare-Hosts: %s\r\n\r\n" % hosts.encode()
            )
            _check_switched(await reader.readuntil(b"\r\n\r\n"))
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _check_switched(head: bytes) -> None:
    if not _SWITCHED.match(head):
        raise ConnectionRefusedError("it serves no browsers; is it of an older version?")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()


async def _answer_no_daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str) -> None:
    """Answer, and read what the browser still sends: a close with unread data would take the answer back."""
    writer.write(_no_daemon(why))
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(COPY_BYTES):
                pass


def _no_daemon(why: str) -> bytes:
    body = f"The gpushared daemon does not answer: {why}\n".encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n"
        f"Cache-Control: no-store\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _users() -> frozenset[int]:
    """Return whose browsers may connect: root's too, and with ``sudo`` those of the user who became root."""
    own = os.geteuid()
    sudoer = os.environ.get("SUDO_UID", "") if own == ROOT else ""
    return frozenset({own, ROOT, *([int(sudoer)] if sudoer.isdecimal() else [])})


def owner_of(ends: Addresses) -> int | None:
    """Return the user whose socket is connected from the first end to the second; None if it is not there.

    Raises OSError.
    """
    first, second = (_hexadecimal(*end) for end in ends)
    for table, prefix in zip(TABLES, ("", V4_IN_V6), strict=True):
        with contextlib.suppress(FileNotFoundError), open(table, encoding="utf-8") as lines:  # noqa: PTH123
            expected = [prefix + first, prefix + second, ESTABLISHED]
            for line in lines:
                fields = line.split()
                if fields[1:4] == expected:
                    return int(fields[7])
    return None


def _hexadecimal(address: str, port: int) -> str:
    """Return an address as proc(5) has it in /proc/net/tcp: the address in the machine's order of bytes."""
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    return f"{number:08X}:{port:04X}"


def _check_tables() -> None:
    try:
        with open(TABLES[0], encoding="utf-8") as table:  # noqa: PTH123 - importing pathlib costs 5 ms
            table.readline()
    except OSError as error:
        raise Unavailable(
            f"{TABLES[0]} cannot be read, which tells who connects: {error.strerror}",
            hint="is /proc mounted? See docs/explanation/security.md",
        ) from error
