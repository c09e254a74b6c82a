"""Set over NVML which processes may use a GPU."""

from __future__ import annotations

from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml import NvmlGpus


class NvmlComputeModes:
    """Implement the ``ComputeModes`` port on the GPUs of an ``NvmlGpus``, whose thread makes the calls.

    Only root may set a mode. The mode holds until somebody sets another or the driver is unloaded.
    """

    def __init__(self, gpus: NvmlGpus) -> None:
        self._gpus = gpus

    async def compute_mode(self, gpu: GpuId) -> int | None:
        return await self._gpus.on_gpu(gpu, lambda driver, handle: driver.compute_mode(handle))

    async def set_compute_mode(self, gpu: GpuId, mode: int) -> None:
        await self._gpus.on_gpu(gpu, lambda driver, handle: driver.set_compute_mode(handle, mode))
