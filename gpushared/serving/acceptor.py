"""Takes connections off a listening socket, many at a time.

The kernel's queue of those who wait is one for all users: while it is full, others' connects fail. So it is
emptied before anything else is done, and who has too much already costs no more than a word and a close.
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
"""Of the event loop; what is taken on costs it more afterwards than the accept."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
REST_SECONDS = 1.0
"""After the system had no room for another connection."""


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
        """The socket stays readable: looking on would take the whole processor."""
        log.error("no connection is accepted for %g s: %s", REST_SECONDS, error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._rest = loop.call_later(REST_SECONDS, self._begin)
