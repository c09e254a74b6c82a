"""The helper program as the daemon calls it: one process for each order, killed when it takes too long."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gpushared.domain.errors import TimedOut, Unavailable

HELPER_SECONDS = 10.0
PACKAGES = Path(__file__).resolve().parents[3]
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from gpushared.gate.pins.helper import main; main()"
COMMAND = (sys.executable, "-I", "-S", "-c", PROGRAM, str(PACKAGES))
"""Nothing of the environment and no package but ours can change what runs as root here."""
HINT = "mount nothing; `gpushare doctor` tells what is missing"


async def run_helper(order: dict[str, Any]) -> dict[str, Any]:
    """The helper's answer. Raises ``TimedOut``, and ``Unavailable`` where it cannot do its work."""
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            output = await _run(json.dumps(order).encode())
    except TimeoutError:
        raise TimedOut(
            "checking the mounted paths took too long", hint="is a network file system away?"
        ) from None
    answer: dict[str, Any] = json.loads(output)
    if reason := answer.get("refused"):
        raise Unavailable(f"paths cannot be mounted here: {reason}", hint=HINT)
    return answer


async def _run(words: bytes) -> bytes:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=pipe, stdout=pipe, stderr=null, cwd="/", env={}
        )
    except OSError as error:
        raise Unavailable(f"mounted paths cannot be checked: {error}") from error
    try:
        output, _ = await process.communicate(words)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Unavailable("paths cannot be checked as the caller; is the daemon not root?", hint=HINT)
    return output
