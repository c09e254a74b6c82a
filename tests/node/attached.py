"""A command that stays attached to a container, as whoever typed it sees it."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Final, Self

SECONDS: Final = 60.0
COUNT: Final = "i=0; while [ $i -lt {upto} ]; do i=$((i+1)); echo n$i; sleep 0.1; done; exit 7"
"""Says a number ten times a second, and ends with 7."""


class Attached:
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


@contextmanager
def breaking_once(daemon: Path, part: bytes) -> Iterator[Path]:
    """A way to the daemon's socket that breaks at the first request with this part, before its answer."""
    path = daemon.with_name("breaking.sock")
    broken: list[bytes] = []

    def serve(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream, suppress(OSError):
            upstream.connect(str(daemon))
            answers = Thread(target=_pump, args=(upstream, client), daemon=True)
            answers.start()
            while data := client.recv(65536):
                if part in data and not broken:
                    broken.append(data)
                    client.shutdown(socket.SHUT_RDWR)
                    upstream.shutdown(socket.SHUT_RDWR)
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)
            answers.join()

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        Thread(target=accept, args=(listener,), daemon=True).start()
        yield path
    path.unlink()
    assert broken, f"there was no request with {part!r}"


def _pump(upstream: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := upstream.recv(65536):
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)
