"""Take connections off a listening socket, many at a time.

All users share the kernel's queue of waiting connections: while it is full, others' connects fail. So the
queue is emptied before any other work, and a user with too many connections costs only a word and a close.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

BACKLOG = 4096
"""The system may allow fewer (net.core.somaxconn)."""
ACCEPTS_A_PASS = 128
"""One pass of the event loop accepts so many; each costs the loop more afterwards than its accept."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
REST_SECONDS = 1.0
"""The rest after the system had no room for another connection."""


class Acceptor:
    """``arrived`` owns the sockets that it gets."""

    def __init__(self, listener: socket.socket, arrived: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._arrived = arrived
        self._rest: asyncio.TimerHandle | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Accept as long as the block runs, then close the listening socket."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._begin()
        try:
            yield
        finally:
            if self._rest is not None:
                self._rest.cancel()
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    def _begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_A_PASS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(error)
                return
            sock.setblocking(False)
            self._arrived(sock)

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a while: the socket stays readable, and looking on would take a whole CPU."""
        log.error("no connection is accepted for %g s: %s", REST_SECONDS, error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._rest = loop.call_later(REST_SECONDS, self._begin)
