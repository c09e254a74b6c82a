"""Run the helper program for the daemon: one process for each copy, with a bound on number and time.

A file system in a container can keep a process in the kernel where no signal ends it. So a process that moves
no byte is left behind, and counts as one of its user's copies until it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from gpushared.daemon.programs import KILL_SECONDS
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
    TimedOut,
    Unavailable,
)
from gpushared.gate.copies.order import BLOCK_BYTES, Order, RefusalKind
from gpushared.gate.mounts.helper_process import UserSlots, command_of, life
from gpushared.net.socket_wire import Piece, Wire

COMMAND = command_of("gpushared.gate.copies.copy_helper")
AT_ONCE = 4
"""A user may have this many copies at one time."""
IDLE_SECONDS = 300.0
"""A copy that moves no byte for this long is given up, whether a file system or the client blocks it."""
ANSWER_BYTES = 1024 * 1024
_ERRORS: dict[RefusalKind, type[GpushareError]] = {
    RefusalKind.MISSING: NotFound,
    RefusalKind.FORBIDDEN: PermissionRefused,
    RefusalKind.BROKEN: RequestError,
    RefusalKind.FAILED: StateConflict,
}
_T = TypeVar("_T")


class Helper:
    """Talk to one helper process. Each method that waits raises ``TimedOut`` if no byte moves."""

    def __init__(self, process: asyncio.subprocess.Process, wire: Wire, idle_seconds: float) -> None:
        self._process = process
        self._wire = wire
        self._idle_seconds = idle_seconds
        self._early = b""

    @asynccontextmanager
    async def answer_to(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[dict[str, Any]]:
        """Send the pieces and wait for the answer at the same time; sending ends when the answer comes."""
        sending = asyncio.create_task(self._send_all(pieces))
        answer = asyncio.create_task(self.answer(while_sending=True))
        try:
            await asyncio.wait({sending, answer}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
            yield await self.moving(answer)
        finally:
            for task in (sending, answer):
                task.cancel()
            await asyncio.gather(sending, answer, return_exceptions=True)

    async def _send_all(self, pieces: AsyncIterator[Piece]) -> None:
        try:
            while (piece := await self.moving(anext(pieces, None))) is not None:
                await self._send(piece)
        finally:
            self._wire.write_eof()

    async def order(self, order: Order) -> None:
        await self._send(json.dumps(order).encode() + b"\n")

    async def _send(self, data: Piece) -> None:
        """Send bytes of the order or after it. Bytes that an ended process does not take are dropped."""
        with contextlib.suppress(ConnectionError):
            await self.moving(self._wire.write([data]))

    async def answer(self, *, while_sending: bool = False) -> dict[str, Any]:
        """Return the helper's answer to the order, or raise the error that the helper reports.

        ``while_sending`` waits without a limit, because the answer may come only after all bytes are sent.
        """
        # Empty lines report progress.
        while b"\n" not in self._early:
            read = self._wire.read(BLOCK_BYTES)
            data = await (read if while_sending else self.moving(read))
            self._early = (self._early + data).lstrip(b"\n")
            if not data or len(self._early) > ANSWER_BYTES:
                raise Unavailable("the copy broke off", hint="try again; were files moved away meanwhile?")
        line, _, self._early = self._early.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise _ERRORS[RefusalKind(answer["kind"])](answer["refused"], hint=answer["hint"])
        return answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes after the answer. Raise ``Unavailable`` if they are not complete."""
        data = self._early
        while data or (data := await self.moving(self._wire.read(BLOCK_BYTES))):
            yield data
            data = b""
        if await self.moving(self._process.wait()) != 0:
            raise Unavailable(
                "the copy broke off in the middle", hint="try again; were files moved away meanwhile?"
            )

    async def moving(self, step: Awaitable[_T]) -> _T:
        """Return the result of one step of the copy. Raises ``TimedOut`` if the step takes too long."""
        try:
            async with asyncio.timeout(self._idle_seconds):
                return await step
        except TimeoutError:
            raise TimedOut(
                f"nothing was copied for {self._idle_seconds:g} s",
                hint="a file system in the container does not answer, or nobody took what was read",
            ) from None


class Copies:
    """Start the helpers of all users, within the bound for each user."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._slots = UserSlots(AT_ONCE, idle_seconds)

    @asynccontextmanager
    async def helper(self, uid: int) -> AsyncIterator[Helper]:
        """Run a helper for one copy of a user; the helper ends with the block.

        Raises ``TimedOut`` and ``Unavailable``.
        """
        lifeline = life(await self._take_slot(uid))
        try:
            own_end, helper_end = socket.socketpair()
        except OSError as error:
            os.close(lifeline)
            raise Unavailable(f"files cannot be copied: {error}") from error
        own_end.setblocking(False)
        wire = Wire(own_end, reset_is_end=True)
        try:
            process = await _start_process(helper_end, lifeline)
            try:
                yield Helper(process, wire, self._idle_seconds)
            finally:
                wire.hang_up()
                await _end(process)
        finally:
            wire.close()

    async def _take_slot(self, uid: int) -> Callable[[], None]:
        """Take a slot, which is given back when no process of the copy is left. Raises ``TimedOut``."""
        try:
            return await self._slots.take(uid)
        except TimeoutError:
            raise TimedOut(
                f"{AT_ONCE} copies of yours have not come to an end", hint="wait for them, or stop them"
            ) from None


async def _start_process(connection: socket.socket, lifeline: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=[lifeline],
        )
    except OSError as error:
        raise Unavailable(f"files cannot be copied: {error}") from error
    finally:
        connection.close()
        os.close(lifeline)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process, whose connection is closed. A process that a file system holds is left behind."""
    try:
        await _wait(process)
    finally:
        if process.returncode is None:
            process.kill()
    await _wait(process)


async def _wait(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            await process.wait()
