"""Implement the ``Checkpoints`` port on a node that makes no checkpoints."""

from __future__ import annotations

from collections.abc import Collection

from gpushared.domain.model.errors import SharingUnavailable

SWITCHED_OFF = "CUDA checkpoints are switched off (gpus.checkpoints)"


class NoCheckpoints:
    """Say why there are no checkpoints, and refuse to make one."""

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
        """Do nothing, since nothing was saved."""

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
