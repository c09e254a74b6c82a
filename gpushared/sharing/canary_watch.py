"""Send a small CUDA program to an MPS server now and then, to learn if new clients get through.

The control daemon answers its questions even while its server lets every new client hang.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushared.daemon.programs import run_program

_log = logging.getLogger(__name__)

_FAILURES = {
    805: "cannot connect to the MPS server (805)",
    806: "lose the MPS server (806)",
    807: "are refused by the MPS server (807)",
}
"""These results of ``cuInit`` (driver_types of CUDA) mean a fault of the server. All others do not: 808 and
809 are those of a server that is full, 100 of a machine without a GPU."""
_COMMAND = [sys.executable, "-I", "-m", "gpushared.sharing.canary"]
_NOBODY = 65534
"""This group gives its user no right to trace the canary."""


@dataclass(frozen=True, slots=True)
class CanaryTiming:
    """Say when canaries are sent; after ``failures`` failures in a row the server counts as wedged.

    ``interval_seconds``: 0 means never. ``retry_seconds``: the pause after a failure.
    """

    interval_seconds: float = 0.0
    timeout_seconds: float = 20.0
    retry_seconds: float = 10.0
    failures: int = 3


class CanaryWatch:
    """Judge one daemon's server by the results of canaries."""

    def __init__(
        self,
        pipe_dir: Path,
        env: Mapping[str, str],
        timing: CanaryTiming,
        command: Sequence[str] | None = None,
    ) -> None:
        """Take ``env``, which leads to the CUDA library and names the daemon's GPUs."""
        self.pids: frozenset[int] = frozenset()
        """The process of a canary that is running; it is ours, though on the GPU."""
        self.timing = timing
        self._env = {**env, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir)}
        self._command = list(command or _COMMAND)
        self._failures = 0
        self._complaint = ""

    @property
    def complaint(self) -> str | None:
        """Return the fault that new CUDA programs meet, once several canaries in a row met one; else None."""
        return self._complaint if self._failures >= self.timing.failures else None

    @property
    def pause_seconds(self) -> float:
        """Return the seconds until the next canary."""
        retry = min(self.timing.retry_seconds, self.timing.interval_seconds)
        return retry if self._failures else self.timing.interval_seconds

    def forget(self) -> None:
        """Forget the failures, because another server runs now."""
        self._failures = 0

    async def send(self, server: int) -> None:
        """Start one canary and note its result.

        The canary runs as the server's user: for another user's the daemon would replace the server as soon
        as it can.
        """
        uid = _owner(server)
        if uid is None:
            return
        complaint = await self._server_fault(uid)
        self._failures = 0 if complaint is None else self._failures + 1
        self._complaint = complaint or ""
        if complaint is not None:
            _log.warning("mps.canary failures=%d server=%d new ones %s", self._failures, server, complaint)

    def _started(self, pid: int) -> None:
        self.pids = frozenset({pid})

    async def _server_fault(self, uid: int) -> str | None:
        """Return the server's fault that a canary met; None if it met none, or if the cause is unknown."""
        try:
            canary = await run_program(
                self._command,
                seconds=self.timing.timeout_seconds,
                started=self._started,
                env=self._env,
                cwd="/",
                user=uid,
                group=_NOBODY if uid else 0,
                extra_groups=(),
            )
        except TimeoutError:
            return f"hang for more than {self.timing.timeout_seconds:g} s"
        except OSError as error:
            _log.info("mps.canary cannot be run as uid %d: %s", uid, error)
            return None
        finally:
            self.pids = frozenset()
        result = canary.output.strip()
        return _FAILURES.get(int(result)) if result.isdecimal() else None


def _owner(pid: int) -> int | None:
    """Return the user of a process; None if the process has just ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
