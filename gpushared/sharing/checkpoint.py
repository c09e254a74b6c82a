"""Implement the ``Checkpoints`` port with CUDA's checkpoints by a worker program, or without any."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping

from gpushared.daemon.programs import run_program
from gpushared.domain.model.errors import SharingUnavailable, TimedOut

PROBE_SECONDS = 20.0
MOVE_SECONDS = 300.0
"""80 GiB take under a minute over PCIe; a host that swaps takes longer."""
_PROGRAM = (sys.executable, "-I", "-m", "gpushared.sharing.checkpoint_worker")


class CudaCheckpoints:
    """Make checkpoints with driver release 580 or later and cuda-bindings, as root, of any user's processes.

    Clients of MPS are assumed not to work, because no document says that they do. Errors:
    ``SharingUnavailable``, ``TimedOut``.
    """

    with_mps = False
    needs_host_memory = True

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Take ``environ``: variables for the worker, such as the path of the CUDA library."""
        self._environ = {"PATH": "/usr/bin:/bin", **(environ or {})}

    async def trouble(self) -> str:
        return await self._run("probe", (), PROBE_SECONDS)

    async def save(self, pids: Collection[int]) -> None:
        await self._move("save", pids)

    async def restore(self, pids: Collection[int]) -> None:
        await self._move("restore", pids)

    async def close(self) -> None:
        """Do nothing, because nothing is open between calls."""

    async def _move(self, command: str, pids: Collection[int]) -> None:
        if pids and (trouble := await self._run(command, pids, MOVE_SECONDS)):
            raise SharingUnavailable(trouble)

    async def _run(self, command: str, pids: Collection[int], timeout_seconds: float) -> str:
        arguments = [*_PROGRAM, command, *map(str, sorted(pids))]
        try:
            result = await run_program(arguments, seconds=timeout_seconds, env=self._environ)
        except TimeoutError:
            raise TimedOut(f"CUDA did not {command} in {timeout_seconds:.0f} s") from None
        except OSError as error:
            raise SharingUnavailable(f"{arguments[0]} cannot be run: {error.strerror}") from error
        return _trouble(result.output, result.errors)


def _trouble(output: str, complaint: str) -> str:
    try:
        return str(json.loads(output)["trouble"])
    except (ValueError, KeyError, TypeError):
        last = complaint.strip().splitlines()[-1:]
        raise SharingUnavailable(f"the checkpoint program failed: {' '.join(last) or 'no word'}") from None


SWITCHED_OFF = "CUDA checkpoints are switched off (gpus.checkpoints)"


class NoCheckpoints:
    """State why there are no checkpoints, and refuse to make one."""

    with_mps = False
    needs_host_memory = True

    def __init__(self, why: str = SWITCHED_OFF) -> None:
        self._why = why

    async def trouble(self) -> str:
        return self._why

    async def save(self, pids: Collection[int]) -> None:
        del pids
        raise SharingUnavailable(self._why)

    async def restore(self, pids: Collection[int]) -> None:
        """Do nothing, because nothing was saved."""

    async def close(self) -> None:
        """Do nothing, because nothing is open."""
