"""Child processes that print lines of JSON; none of them lives longer than it is given."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_LINE_BYTES = 1 << 20
STDERR_KEPT_CHARACTERS = 600
GRACE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Done:
    """A child that is gone; ``rc`` None when it had to be killed because its time was over."""

    rc: int | None
    lines: tuple[dict[str, Any], ...]
    stdout: str
    stderr: str
    seconds: float

    @property
    def timed_out(self) -> bool:
        return self.rc is None

    def values(self) -> dict[str, Any]:
        """Its lines by their ``action``; of a second line of one kind the key ends in ``_2``, and so on."""
        found: dict[str, Any] = {}
        for line in self.lines:
            name, number = str(line.get("action", "line")), 2
            key = name
            while key in found:
                key, number = f"{name}_{number}", number + 1
            found[key] = {field: value for field, value in line.items() if field != "action"}
        if self.timed_out:
            found["child_timed_out"] = True
        if self.stderr:
            found["stderr"] = self.stderr
        return found


class Child:
    """A process in a session of its own, with its output read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._started = time.monotonic()
        self._lines: list[dict[str, Any]] = []
        self._text: list[str] = []
        self._news = asyncio.Event()
        self._ended = False
        self._taken = 0
        self._stderr = b""
        self._readers = (asyncio.create_task(self._read_lines()), asyncio.create_task(self._read_stderr()))

    @classmethod
    async def start(
        cls,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
        cwd: Path | None = None,
    ) -> Child:
        """Raises OSError where it cannot be started; as another user only by root."""
        user: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        process = await asyncio.create_subprocess_exec(
            *map(str, words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(os.environ if env is None else env),
            cwd=cwd,
            start_new_session=True,
            limit=LONGEST_LINE_BYTES,
            **user,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self._started

    async def next(self, action: str, seconds: float) -> dict[str, Any]:
        """Its next line of this kind; an empty one when it ended or the time is over before that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    while self._taken < len(self._lines):
                        line = self._lines[self._taken]
                        self._taken += 1
                        if line.get("action") == action:
                            return line
                    if self._ended:
                        break
                    self._news.clear()
                    await self._news.wait()
        return {}

    async def go_on(self) -> None:
        """Let it pass its next ``wait``."""
        await self.say("\n")

    async def say(self, text: str) -> None:
        if self._process.stdin is not None:
            with suppress(ConnectionError):
                self._process.stdin.write(text.encode())
                await self._process.stdin.drain()

    async def finish(self, seconds: float) -> Done:
        """Its end, which comes by force when the time is over. It gets the end of its input first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(seconds):
                rc: int | None = await self._process.wait()
        except TimeoutError:
            await self.kill()
            rc = None
        return await self._done(rc)

    async def kill(self) -> None:
        """SIGTERM, and after a moment SIGKILL, to it and to what it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
                    break
        # What it had started may outlive it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Nothing happens when it is gone."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _done(self, rc: int | None) -> Done:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*self._readers)
        for reader in self._readers:
            reader.cancel()
        stderr = self._stderr.decode(errors="replace").strip()[-STDERR_KEPT_CHARACTERS:]
        return Done(rc, tuple(self._lines), "".join(self._text), stderr, self.age_seconds)

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        try:
            async for raw in self._process.stdout:
                self._note(raw.decode(errors="replace"))
                self._news.set()
        finally:
            self._ended = True
            self._news.set()

    def _note(self, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            self._lines.append(found)
        else:
            self._text.append(text)

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._stderr = (self._stderr + chunk)[-4 * STDERR_KEPT_CHARACTERS :]


async def run(
    words: Sequence[str | Path],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    uid: int | None = None,
    text: str = "",
) -> Done:
    """Start, feed and await one child. Raises OSError where it cannot be started."""
    child = await Child.start(words, env=env, uid=uid)
    try:
        if text:
            await child.say(text)
        return await child.finish(seconds)
    finally:
        if child.running:
            await child.kill()
