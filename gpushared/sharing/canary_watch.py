"""Sends a small CUDA program to an MPS server now and then, to learn whether new ones get through.

The control daemon answers its questions also while its server lets every new client hang.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

_FAILURES = {
    805: "cannot connect to the MPS server (805)",
    806: "lose the MPS server (806)",
    807: "are refused by the MPS server (807)",
}
"""Results of ``cuInit`` (driver_types of CUDA) that speak against the server.

All others do not: 808 and 809 are those of a server that is full, 100 of a machine without a GPU.
"""
_WORD = [sys.executable, "-I", "-m", "gpushared.sharing.canary"]
_KILL_SECONDS = 2.0
_NOBODY = 65534
"""A group that gives its user no right to trace the canary."""


@dataclass(frozen=True, slots=True)
class CanaryTiming:
    """When canaries are sent; ``failures``: so many in a row speak for a wedge.

    ``interval_seconds``: 0 = never. ``again_seconds``: how soon after a failure.
    """

    interval_seconds: float = 0.0
    timeout_seconds: float = 20.0
    again_seconds: float = 10.0
    failures: int = 3


class CanaryWatch:
    """Judges one daemon's server by what becomes of canaries."""

    def __init__(
        self, pipe_dir: Path, env: Mapping[str, str], timing: CanaryTiming, words: Sequence[str] | None = None
    ) -> None:
        """``env``: where the CUDA library is found, and which GPUs the daemon has."""
        self.pids: frozenset[int] = frozenset()
        """Of a canary that is out now: a process of ours on the GPU."""
        self.timing = timing
        self._env = {**env, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir)}
        self._words = list(words or _WORD)
        self._failures = 0
        self._complaint = ""

    @property
    def complaint(self) -> str | None:
        """What new CUDA programs suffer, once several canaries in a row did; None while all is well."""
        return self._complaint if self._failures >= self.timing.failures else None

    @property
    def pause_seconds(self) -> float:
        """How long to wait for the next one."""
        again = min(self.timing.again_seconds, self.timing.interval_seconds)
        return again if self._failures else self.timing.interval_seconds

    def forget(self) -> None:
        """Another server is there now."""
        self._failures = 0

    async def send(self, server: int) -> None:
        """Let one canary out.

        It runs as the server's user: with another's the daemon would replace the server as soon as it can.
        """
        uid = _owner(server)
        if uid is None:
            return
        complaint = await self._fate(uid)
        self._failures = 0 if complaint is None else self._failures + 1
        self._complaint = complaint or ""
        if complaint is not None:
            _log.warning("mps.canary failures=%d server=%d new ones %s", self._failures, server, complaint)

    async def _fate(self, uid: int) -> str | None:
        """What happened to it that is the server's fault; None where nothing did, or nobody can tell."""
        try:
            canary = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._env,
                cwd="/",
                start_new_session=True,
                user=uid,
                group=_NOBODY if uid else 0,
                extra_groups=(),
            )
        except OSError as error:
            _log.info("mps.canary cannot be run as uid %d: %s", uid, error)
            return None
        self.pids = frozenset({canary.pid})
        try:
            async with asyncio.timeout(self.timing.timeout_seconds):
                output, _ = await canary.communicate()
        except TimeoutError:
            return f"hang for more than {self.timing.timeout_seconds:g} s"
        finally:
            await _end(canary)
            self.pids = frozenset()
        result = output.decode(errors="replace").strip()
        return _FAILURES.get(int(result)) if result.isdecimal() else None


def _owner(pid: int) -> int | None:
    """The user of a process; None where it has just ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


async def _end(canary: asyncio.subprocess.Process) -> None:
    """One that hangs inside the driver may outlive its kill for a while; nobody waits for that."""
    if canary.returncode is None:
        with suppress(ProcessLookupError):
            canary.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await canary.wait()
