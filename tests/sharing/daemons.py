"""What the machine itself says about control daemons, asked without the adapter under test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpushared.sharing.daemon_process import DaemonProcess

ANSWER_SECONDS = 20
BUSY = "Cannot send command to MPS control"
"""What whoever comes second may read."""


def environment(pipe_dir: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir)}


def serving_under(directory: Path) -> list[int]:
    """PIDs of live processes that were started with a pipe directory below this one, commands excepted."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={directory}/".encode()
    return [
        pid for pid in _processes() if wanted in _read(pid, "environ") and b"-f\0" in _read(pid, "cmdline")
    ]


def sees(pid: int, gpu: str) -> bool:
    """Whether a daemon serves this GPU."""
    return f"CUDA_VISIBLE_DEVICES={gpu}\0".encode() in _read(pid, "environ")


def serves_socket(pid: int, runtime_dir: Path, name: str) -> bool:
    """Whether this daemon's socket is the one in that lease's directory."""
    for entry in _read(pid, "environ").split(b"\0"):
        if entry.startswith(b"CUDA_MPS_PIPE_DIRECTORY="):
            pipe_dir = Path(os.fsdecode(entry.partition(b"=")[2]))
            return (pipe_dir / "control").samefile(runtime_dir / "leases" / name / "mps" / "control")
    return False


async def ask(binary: Path, pipe_dir: Path, *commands: str, user: int | None = None) -> str:
    """What a client gets to read that is not the adapter.

    A control daemon of NVIDIA's converses with one client at a time, and the adapter is one too: others read
    that it is busy, or nothing. Beside the event loop, on which the adapter ends its own conversation.
    """
    return await asyncio.to_thread(_ask_until_answered, binary, pipe_dir, commands, user)


def _ask_until_answered(binary: Path, pipe_dir: Path, commands: Sequence[str], user: int | None) -> str:
    until = time.monotonic() + ANSWER_SECONDS
    asks = any(command.startswith("get_default_") for command in commands)
    while time.monotonic() < until:
        answer = _ask_once(binary, pipe_dir, commands, user)
        if BUSY not in answer and (answer.strip() or not asks):
            return answer
        time.sleep(0.01)
    return answer


def _ask_once(binary: Path, pipe_dir: Path, commands: Sequence[str], user: int | None) -> str:
    result = subprocess.run(
        [binary],
        input="".join(f"{command}\n" for command in commands),
        env=environment(pipe_dir),
        user=user,
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_SECONDS,
    )
    return result.stdout + result.stderr


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


async def until(condition: Callable[[], bool]) -> None:
    """What another process does cannot be awaited; it can be looked for."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # no event of this process tells of it
            await asyncio.sleep(0.005)


async def gone(pids: Sequence[int]) -> bool:
    """Whether all of these have ended, waited for."""
    for pid in pids:
        with suppress(ProcessLookupError):
            process = DaemonProcess(pid)
            if not await process.exits_within(20):
                process.release()
                return False
    return True


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""
