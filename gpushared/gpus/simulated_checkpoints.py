"""Make checkpoints of simulated GPU memory: each process's memory is noted, taken off the GPU, put back."""

from __future__ import annotations

from collections.abc import Collection

from gpushared.domain.model.errors import RequestError, SharingUnavailable
from gpushared.gpus.simulated import SimulatedGpus


class SimulatedCheckpoints:
    """Implement the ``Checkpoints`` port without CUDA: for every process, with true figures of memory."""

    with_mps = True
    needs_host_memory = False

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus
        self._saved: dict[int, dict[int, int]] = {}
        """By process, the bytes it had on each GPU, by index."""

    async def trouble(self) -> str:
        return ""

    async def save(self, pids: Collection[int]) -> None:
        for pid in sorted(pids):
            held = self._gpus.held_by(pid)
            if held:
                self._saved[pid] = held
                for index in held:
                    self._gpus.set_processes(index, {pid: 0})

    async def restore(self, pids: Collection[int]) -> None:
        for pid in sorted(pids):
            for index, memory_bytes in self._saved.get(pid, {}).items():
                try:
                    self._gpus.set_processes(index, {pid: memory_bytes})
                except RequestError as error:
                    raise SharingUnavailable(error.message, hint=error.hint) from error
            self._saved.pop(pid, None)

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
