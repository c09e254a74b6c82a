"""Fake GPUs and their compute modes in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.ports import GpuProcess, GpuReading
from gpushared.testing.fake_clock import Failing

GIB = 1024 * MIB
RESERVE_BYTES = 300 * MIB
"""A fake GPU's driver holds so much: the leasable memory is the total less this."""


def fake_gpu(index: int = 0, *, memory_bytes: int = 80 * GIB, name: str = "Fake GPU") -> Gpu:
    """Return a healthy GPU; its id tells its index."""
    return Gpu(
        id=GpuId(f"GPU-fake-{index:04d}"),
        index=index,
        name=name,
        memory_total_bytes=memory_bytes,
        leasable_bytes=memory_bytes - RESERVE_BYTES,
    )


class FakeGpus(Failing):
    """Show GPUs that gain processes, keep memory or get lost when a test says so: a fake ``Gpus``."""

    simulated = True

    def __init__(self, gpus: int | Sequence[Gpu] = 1) -> None:
        super().__init__()
        listed = [fake_gpu(index) for index in range(gpus)] if isinstance(gpus, int) else gpus
        self._gpus: dict[GpuId, Gpu] = {gpu.id: gpu for gpu in listed}
        self._processes: dict[GpuId, list[GpuProcess]] = {gpu: [] for gpu in self._gpus}
        self._left_behind: dict[GpuId, int] = dict.fromkeys(self._gpus, 0)
        self._xids: dict[GpuId, list[int]] = {gpu: [] for gpu in self._gpus}
        self._resting: set[GpuId] = set()
        self.closed = False

    # --- the test's hands ------------------------------------------------------------------------------

    def run_process(
        self,
        gpu: GpuId,
        pid: int,
        memory_bytes: int | None = None,
        *,
        mps_client: bool | None = None,
        utilization_ratio: float | None = None,
    ) -> None:
        """Let a process use the GPU; None stands for a driver that tells neither memory nor the rest."""
        self.end_process(gpu, pid)
        self._processes[gpu].append(GpuProcess(pid, memory_bytes, mps_client, utilization_ratio))

    def rest(self, gpu: GpuId, *, rests: bool = True) -> None:
        """Let the GPU as a whole show no work, though processes hold memory there."""
        (self._resting.add if rests else self._resting.discard)(gpu)

    def end_process(self, gpu: GpuId, pid: int) -> None:
        self._processes[gpu] = [process for process in self._processes[gpu] if process.pid != pid]

    def leave_behind(self, gpu: GpuId, memory_bytes: int) -> None:
        """Let so much memory show as used though no process holds it; 0 gives it back."""
        self._left_behind[gpu] = memory_bytes

    def lose(self, gpu: GpuId, trouble: str = "the GPU is lost") -> None:
        self._gpus[gpu] = replace(self._gpus[gpu], trouble=trouble)

    def err(self, gpu: GpuId, xid: int) -> None:
        """Let the driver tell of an error, by NVIDIA's number."""
        self._xids.setdefault(gpu, []).append(xid)

    def heal(self, gpu: GpuId) -> None:
        self._gpus[gpu] = replace(self._gpus[gpu], trouble=None)

    # --- the port --------------------------------------------------------------------------------------

    async def survey(self) -> tuple[Gpu, ...]:
        self._may_fail()
        return tuple(sorted(self._gpus.values(), key=lambda gpu: gpu.index))

    async def sample(self) -> tuple[GpuReading, ...]:
        readings = tuple(self._reading(gpu) for gpu in await self.survey())
        reported = {gpu: tuple(xids) for gpu, xids in self._xids.items()}
        for xids in self._xids.values():
            xids.clear()
        return tuple(replace(reading, xids=reported.get(reading.gpu, ())) for reading in readings)

    async def close(self) -> None:
        self.closed = True

    def _reading(self, gpu: Gpu) -> GpuReading:
        if gpu.trouble is not None:
            return GpuReading(gpu.id, trouble=gpu.trouble, lost=True)
        processes = tuple(self._processes[gpu.id])
        used = sum(process.memory_bytes or 0 for process in processes)
        return GpuReading(
            gpu=gpu.id,
            memory_used_bytes=gpu.memory_total_bytes - gpu.leasable_bytes + self._left_behind[gpu.id] + used,
            utilization_ratio=1.0 if processes and gpu.id not in self._resting else 0.0,
            temperature_celsius=40,
            power_watts=100.0,
            processes=processes,
        )


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
