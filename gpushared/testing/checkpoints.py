"""Fake checkpoints by taking notes only."""

from __future__ import annotations

from collections.abc import Collection

from gpushared.testing.failing import Failing


class FakeCheckpoints(Failing):
    """Remember which processes are off their GPUs: a fake ``Checkpoints``."""

    with_mps = True
    needs_host_memory = False

    def __init__(self, trouble: str = "") -> None:
        super().__init__()
        self._trouble = trouble
        self.saved: set[int] = set()

    async def trouble(self) -> str:
        return self._trouble

    async def save(self, pids: Collection[int]) -> None:
        self._may_fail()
        self.saved |= set(pids)

    async def restore(self, pids: Collection[int]) -> None:
        self._may_fail()
        self.saved -= set(pids)

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
