"""Hold sessions with a control daemon: commands in, checked lines out, one session at a time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpushared.domain.model.errors import SharingUnavailable, TimedOut

_SENTINEL = "get_default_active_thread_percentage"
_PERCENTAGE = re.compile(r"\d+(\.\d+)?")
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.25


class Dropped(Exception):
    """The daemon was not reached, or hung up in the middle; never leaves the adapter."""


class Sessions:
    """Run the binary as a client of one daemon.

    The daemon serves one session at a time and drops others, some of them with exit code 0 and no output. So
    every session ends with a question that always has an answer, runs under a lock, and is repeated.
    """

    def __init__(
        self, binary: Path, env: Mapping[str, str], *, command_seconds: float, attempts: int
    ) -> None:
        self._binary = binary
        self._env = env
        self._command_seconds = command_seconds
        self._attempts = attempts
        self._lock = asyncio.Lock()

    async def exchange(self, commands: Sequence[str]) -> list[str]:
        """Return the lines of a whole session, the default thread percentage last."""
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, self._attempts + 1):
            try:
                return await self.once(commands)
            except Dropped as dropped:
                if attempt == self._attempts:
                    raise SharingUnavailable(
                        f"the MPS control daemon does not answer: {dropped}"
                    ) from dropped
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def once(self, commands: Sequence[str]) -> list[str]:
        """Hold one session without repeating it; raises ``Dropped``."""
        output = await self.run("".join(f"{command}\n" for command in (*commands, _SENTINEL)))
        lines = output.splitlines()
        if not lines or _PERCENTAGE.fullmatch(lines[-1].strip()) is None:
            raise Dropped(lines[-1].strip() if lines else "no output")
        return lines

    async def run(self, text: str) -> str:
        """Return the binary's output for these commands on its standard input."""
        async with self._lock:
            return await self._run(text)

    async def _run(self, text: str) -> str:
        """Run the binary as a client of the daemon, with these commands on its standard input."""
        try:
            client = await asyncio.create_subprocess_exec(
                self._binary,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise SharingUnavailable(f"{self._binary} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._command_seconds):
                output, _ = await client.communicate(text.encode())
        except TimeoutError:
            first = text.split("\n", 1)[0]
            seconds = self._command_seconds
            raise TimedOut(f"the MPS control daemon did not answer `{first}` in {seconds:g} s") from None
        finally:
            if client.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(client.pid, signal.SIGKILL)
                await client.wait()
        return output.decode(errors="replace")
