"""Measure how busy each process keeps a GPU, as far as the driver reports processes separately."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml_driver import Handle, NvmlDriver, ProcessUse
from gpushared.ports import GpuProcess


class ProcessActivity:
    """Add each process's use since the last look to the processes of a GPU.

    The driver names only processes that did something (``nvmlDeviceGetProcessUtilization``), so for all
    others a missing entry means 0. Clients of MPS are an exception: driver 580.159 counts their work for
    their MPS server, also in the newer ``nvmlDeviceGetProcessesUtilizationInfo``. So a client's entry counts
    only if it shows work; without one its activity is unknown, because a busy client must not be taken for an
    idle one.

    The calls block, and belong to one thread, as those of ``NvmlDriver``.
    """

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._seen_us: dict[GpuId, int] = {}

    def forget(self) -> None:
        """Forget the driver's time stamps, because the next driver may be another one."""
        self._seen_us.clear()

    def add_utilization(
        self, gpu: GpuId, handle: Handle, processes: Sequence[GpuProcess]
    ) -> tuple[GpuProcess, ...]:
        """Return the processes with their ``utilization_ratio``."""
        uses = self._driver.process_use(handle, self._since(gpu)) if processes else None
        if uses is None:
            return tuple(processes)
        self._seen_us[gpu] = max(self._seen_us.get(gpu, 0), *(use.at_us for use in uses), 0)
        ratios = _largest_ratios(uses)
        return tuple(replace(process, utilization_ratio=_ratio(process, ratios)) for process in processes)

    def _since(self, gpu: GpuId) -> int:
        """Return the newest time stamp seen; after the clock was set back the driver's stamps start anew."""
        if self._seen_us.get(gpu, 0) > time.time_ns() // 1000:
            del self._seen_us[gpu]
        return self._seen_us.get(gpu, 0)


def _ratio(process: GpuProcess, ratios: dict[int, float]) -> float | None:
    ratio = ratios.get(process.pid, 0.0)
    return ratio if ratio or process.mps_client is False else None


def _largest_ratios(uses: Sequence[ProcessUse]) -> dict[int, float]:
    ratios: dict[int, float] = {}
    for use in uses:
        ratios[use.pid] = max(ratios.get(use.pid, 0.0), use.ratio)
    return ratios
