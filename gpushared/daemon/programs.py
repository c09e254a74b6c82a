"""Run a program to its end, and let none outlive its call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """Hold a program's output, and its exit status."""

    status: int
    output: str
    errors: str


async def run_program(
    command: Sequence[str | Path],
    *,
    seconds: float,
    text: str = "",
    with_errors: bool = False,
    silent: bool = False,
    ends_group: bool = False,
    started: Callable[[int], None] | None = None,
    **options: Any,
) -> EndedProgram:
    """Run a program with ``text`` on its standard input, and kill it with its children after ``seconds``.

    Raises OSError if it cannot be run, and TimeoutError, which is an OSError too.

    Args:
        command: the program and its arguments.
        seconds: the limit of its run.
        text: its input.
        with_errors: True to mix its standard error into ``output``.
        silent: True to discard all its output.
        ends_group: True to kill the rest of its process group also after its own end.
        started: called with the process id as soon as there is one.
        options: as for ``subprocess.Popen``.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe if text else null,
        stdout=null if silent else pipe,
        stderr=null if silent else asyncio.subprocess.STDOUT if with_errors else pipe,
        start_new_session=True,
        **options,
    )
    if started is not None:
        started(process.pid)
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate(text.encode() or None)
    finally:
        if ends_group or process.returncode is None:
            await _kill_group(process)
    assert process.returncode is not None, "its output has ended"
    return EndedProgram(
        process.returncode, (output or b"").decode(errors="replace"), (errors or b"").decode(errors="replace")
    )


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        # A process that hangs inside a driver may outlive its kill; the call waits no longer for it.
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
