"""A command that stays attached to a container, as whoever typed it sees it."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final, Self

SECONDS: Final = 60.0
COUNT: Final = "i=0; while [ $i -lt {upto} ]; do i=$((i+1)); echo n$i; sleep 0.1; done; exit 7"
"""Says a number ten times a second, and ends with 7."""
STALL_SECONDS: Final = 6.0


class AttachedCommand:
    """A program at a terminal of its own, or with a pipe for its output, and what came out of it."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str] | None, *, terminal: bool
    ) -> None:
        self._out, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._out)

    def until(self, *texts: bytes) -> None:
        deadline = time.monotonic() + SECONDS
        while not all(text in self.seen for text in texts):
            assert time.monotonic() < deadline, self.seen
            self._read(0.2)

    def _read(self, seconds: float) -> bool:
        """Whether there may be more."""
        if not select.select([self._out], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._out, 65536)
        except OSError:  # a terminal whose last user has left
            return False
        self.seen += data
        return bool(data)

    def type(self, text: bytes) -> None:
        os.write(self._out, text)

    def code(self, seconds: float = SECONDS) -> int:
        """The exit code, when all was read."""
        code = self.process.wait(seconds)
        while self._read(SECONDS):
            pass
        return code

    def numbers(self) -> list[int]:
        return [int(number) for number in re.findall(rb"n(\d+)\r?\n", self.seen)]


class FaultyConnection:
    """A way to the daemon's socket with one fault.

    ``breaks_at``: the first request with this part breaks before its answer. ``stalls_after``: the output
    stops after this text, and the connection breaks some seconds later.
    """

    def __init__(self, daemon: Path, *, breaks_at: bytes = b"", stalls_after: bytes = b"") -> None:
        self.path = daemon.with_name("bad-way.sock")
        self.has_happened = False
        self._daemon = daemon
        self._breaks_at = breaks_at
        self._stalls_after = stalls_after
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen()
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.path.unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream, suppress(OSError):
            upstream.connect(str(self._daemon))
            answers = Thread(target=self._answer, args=(upstream, client), daemon=True)
            answers.start()
            while data := client.recv(65536):
                if self._breaks_at and self._breaks_at in data and not self.has_happened:
                    self.has_happened = True
                    client.shutdown(socket.SHUT_RDWR)
                    upstream.shutdown(socket.SHUT_RDWR)
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)
            answers.join()

    def _answer(self, upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(65536):
                client.sendall(data)
                if self._stalls_after and self._stalls_after in data:
                    self.has_happened = True
                    time.sleep(STALL_SECONDS)
                    break
            client.shutdown(socket.SHUT_WR)
