"""Make CUDA checkpoints, as a program of its own: the CUDA driver must not live in the daemon.

``python -m gpushared.sharing.checkpoint_worker probe | save PID... | restore PID...`` prints one line of
JSON: ``{"trouble": "..."}``, empty if all went well. The calls are the driver API's for checkpoints: lock
waits for the submitted work, checkpoint moves the memory to the host's and leaves the GPUs, restore and
unlock are the way back. Saving is for all processes or for none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

OLDEST_DRIVER = 13000
"""CUDA 13.0 came with driver release 580; before it a failed checkpoint left a process in no known state."""
LOCK_MILLISECONDS = 20_000
NOT_INSTALLED = "the package cuda-bindings is not installed: `pip install 'gpushared[checkpoint]'`"


class CheckpointFailed(Exception):
    """Report a failed call; the text states the reason."""


class Cuda:
    """Make the driver's calls, with errors as ``CheckpointFailed``."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError:
            raise CheckpointFailed(NOT_INSTALLED) from None
        # Any: cuda-bindings has no type hints.
        self.driver: Any = driver
        try:
            self._ask("start", driver.cuInit(0))
        except RuntimeError as error:
            raise CheckpointFailed(
                f"the CUDA driver cannot be loaded: {str(error).splitlines()[0]}"
            ) from error
        (version,) = self._ask("tell its version", driver.cuDriverGetVersion())
        if version < OLDEST_DRIVER:
            raise CheckpointFailed("CUDA checkpoints need driver release 580 or later")

    def state(self, pid: int) -> Any:
        """Return the process's state, None for a process that uses no CUDA."""
        error, state = self.driver.cuCheckpointProcessGetState(pid)
        return state if error == self.driver.CUresult.CUDA_SUCCESS else None

    def lock(self, pid: int) -> None:
        arguments = self.driver.CUcheckpointLockArgs()
        arguments.timeoutMs = LOCK_MILLISECONDS
        self._ask(f"lock process {pid}", self.driver.cuCheckpointProcessLock(pid, arguments))

    def checkpoint(self, pid: int) -> None:
        arguments = self.driver.CUcheckpointCheckpointArgs()
        self._ask(f"save process {pid}", self.driver.cuCheckpointProcessCheckpoint(pid, arguments))

    def restore(self, pid: int) -> None:
        arguments = self.driver.CUcheckpointRestoreArgs()
        self._ask(f"restore process {pid}", self.driver.cuCheckpointProcessRestore(pid, arguments))

    def unlock(self, pid: int) -> None:
        arguments = self.driver.CUcheckpointUnlockArgs()
        self._ask(f"unlock process {pid}", self.driver.cuCheckpointProcessUnlock(pid, arguments))

    def _ask(self, task: str, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        error, *values = answer
        if error != self.driver.CUresult.CUDA_SUCCESS:
            raise CheckpointFailed(f"the CUDA driver does not {task}: {error.name}")
        return tuple(values)


def save(cuda: Cuda, pids: Sequence[int]) -> None:
    """Lock all processes, then save all; if one fails, undo the others."""
    running_state = cuda.driver.CUprocessState.CU_PROCESS_STATE_RUNNING
    running = [pid for pid in pids if cuda.state(pid) == running_state]
    try:
        for pid in running:
            cuda.lock(pid)
        for pid in running:
            cuda.checkpoint(pid)
    except CheckpointFailed:
        restore(cuda, running)
        raise


def restore(cuda: Cuda, pids: Sequence[int]) -> None:
    """Restore every process that can be; raise the first failure after the others were tried."""
    failures = []
    states = cuda.driver.CUprocessState
    for pid in pids:
        state = cuda.state(pid)
        try:
            if state == states.CU_PROCESS_STATE_CHECKPOINTED:
                cuda.restore(pid)
            if state in (states.CU_PROCESS_STATE_CHECKPOINTED, states.CU_PROCESS_STATE_LOCKED):
                cuda.unlock(pid)
        except CheckpointFailed as trouble:
            failures.append(trouble)
    if failures:
        raise failures[0]


def main(arguments: Sequence[str]) -> None:
    """Run one command, and print one line of answer."""
    command, *pids = arguments
    trouble = ""
    try:
        cuda = Cuda()
        if command == "save":
            save(cuda, [int(pid) for pid in pids])
        elif command == "restore":
            restore(cuda, [int(pid) for pid in pids])
    except CheckpointFailed as error:
        trouble = str(error)
    print(json.dumps({"trouble": trouble}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1:])
