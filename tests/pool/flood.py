"""A program that keeps so many silent TCP connections open to a port, and opens each anew when it ends.

``python -m tests.pool.flood PORT COUNT ADDRESS...``: the connections come from the addresses in turn. It
writes a line each second: how many are open, and how many were opened so far.
"""

from __future__ import annotations

import errno
import itertools
import select
import socket
import sys
import time
from collections.abc import Iterator

AT_ONCE = 256
"""So many are opened before the ends of others are looked at."""
OPENING = {0, errno.EINPROGRESS}


class Flood:
    """The connections of one program."""

    def __init__(self, port: int, count: int, addresses: Iterator[str]) -> None:
        self.opened = 0
        self._port = port
        self._count = count
        self._addresses = addresses
        self._open: dict[int, socket.socket] = {}
        self._ends = select.epoll()

    @property
    def open(self) -> int:
        return len(self._open)

    def step(self) -> None:
        for _ in range(min(AT_ONCE, self._count - len(self._open))):
            self._add()
        for number, _ in self._ends.poll(0.01, AT_ONCE * 4):
            self._open.pop(number).close()

    def _add(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((next(self._addresses), 0))
        if sock.connect_ex(("127.0.0.1", self._port)) not in OPENING:
            sock.close()
            return
        self.opened += 1
        self._open[sock.fileno()] = sock
        self._ends.register(sock, select.EPOLLIN | select.EPOLLRDHUP)


def main() -> None:
    port, count, *addresses = sys.argv[1:]
    flood, told = Flood(int(port), int(count), itertools.cycle(addresses)), 0.0
    while True:
        flood.step()
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            sys.stdout.write(f"{flood.open} {flood.opened}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
