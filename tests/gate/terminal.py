"""A docker client on a terminal of its own."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fcntl import ioctl

from tests.gate.docker import Docker

WAIT_SECONDS = 60


@dataclass
class Terminal:
    master: int
    process: asyncio.subprocess.Process
    seen: bytes = b""

    @asynccontextmanager
    async def sized(self, rows: int, columns: int) -> AsyncIterator[None]:
        """A window of this size, told over and over.

        A client listens only after its own first resize (docker's `MonitorTtySize`), which may be later
        than the first words of what it started.
        """
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        telling = asyncio.create_task(self._tell())
        try:
            yield
        finally:
            telling.cancel()

    async def _tell(self) -> None:
        while self.process.returncode is None:
            self.process.send_signal(signal.SIGWINCH)
            await asyncio.sleep(0.2)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while text not in self.seen:
                self.seen += await asyncio.to_thread(os.read, self.master, 65536)

    async def end(self) -> int:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def terminal(docker: Docker, *words: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        process = await docker.start(*words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        yield Terminal(master, process)
    finally:
        os.close(master)
