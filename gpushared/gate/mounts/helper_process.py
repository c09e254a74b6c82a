"""Call the helper program: one process for each order, killed when it takes too long.

A file system can keep a process in the kernel where no signal ends it, a user's own (FUSE) for as long as the
user likes. No caller waits long for such a process; a caller that counts processes gets a call when it is
gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushared.daemon.programs import run_program
from gpushared.domain.model.errors import TimedOut, Unavailable

HELPER_SECONDS = 10.0
PACKAGES = Path(__file__).resolve().parents[3]
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from {module} import main; main()"
HINT = "mount nothing; `gpushare doctor` tells what is missing"


def command_of(module: str) -> tuple[str, ...]:
    """Return the command for a module: neither the environment nor other packages change root's program."""
    return (sys.executable, "-I", "-S", "-c", PROGRAM.format(module=module), str(PACKAGES))


COMMAND = command_of("gpushared.gate.mounts.mount_helper")


async def run_helper(
    order: dict[str, Any], gone: Callable[[], None] | None = None, seconds: float = HELPER_SECONDS
) -> dict[str, Any]:
    """Return the helper's answer. Raises ``TimedOut``, and ``Unavailable`` if it cannot do its work.

    ``gone`` is called once no process of this order is left, in any case, and perhaps long after the call.
    """
    lifeline = life(gone or _nothing)
    try:
        result = await run_program(
            COMMAND, seconds=seconds, text=json.dumps(order), cwd="/", env={}, pass_fds=[lifeline]
        )
    except TimeoutError:
        raise TimedOut(
            "checking the mounted paths took too long", hint="is a network file system away?"
        ) from None
    except OSError as error:
        raise Unavailable(f"mounted paths cannot be checked: {error}") from error
    finally:
        os.close(lifeline)
    if result.status != 0:
        raise Unavailable("paths cannot be checked as the caller; is the daemon not root?", hint=HINT)
    answer: dict[str, Any] = json.loads(result.output)
    if reason := answer.get("refused"):
        raise Unavailable(f"paths cannot be mounted here: {reason}", hint=HINT)
    return answer


class UserSlots:
    """Bound the number of helpers that one user has at one time."""

    def __init__(self, limit: int, patience_seconds: float) -> None:
        self._limit = limit
        self._patience_seconds = patience_seconds
        self._slots: dict[int, asyncio.Semaphore] = {}

    async def take(self, uid: int) -> Callable[[], None]:
        """Wait for a slot, and return the function that gives it back. Raises ``TimeoutError``."""
        slots = self._slots.setdefault(uid, asyncio.Semaphore(self._limit))
        async with asyncio.timeout(self._patience_seconds):
            await slots.acquire()
        return slots.release


def life(gone: Callable[[], None]) -> int:
    """Return a descriptor for a process and its children; the end of the last of them calls ``gone``."""
    try:
        read_end, write_end = os.pipe()
    except OSError as error:
        gone()
        raise Unavailable(f"no helper can be started: {error}") from error
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(read_end)
        os.close(read_end)
        gone()

    loop.add_reader(read_end, ended)
    return write_end


def _nothing() -> None:
    """Do nothing, for callers that do not count processes."""
