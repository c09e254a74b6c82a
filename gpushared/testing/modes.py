"""Fake compute modes in memory."""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.domain.model.gpu import GpuId
from gpushared.testing.failing import Failing


class FakeComputeModes(Failing):
    """Keep the modes of GPUs: a fake ``ComputeModes``.

    ``modes``: each GPU's now, None if it tells none. ``history``: the calls that set a mode, in order.
    """

    def __init__(self, modes: Mapping[GpuId, int | None]) -> None:
        super().__init__()
        self.modes = dict(modes)
        self.history: list[tuple[GpuId, int]] = []

    async def compute_mode(self, gpu: GpuId) -> int | None:
        self._may_fail()
        return self.modes[gpu]

    async def set_compute_mode(self, gpu: GpuId, mode: int) -> None:
        self._may_fail()
        self.modes[gpu] = mode
        self.history.append((gpu, mode))
