"""Drivers for the contract tests: what the tests may do to them, whichever adapter looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpushared.domain.model.errors import GpusUnavailable, TimedOut
from gpushared.gpus.mig import MPS_RESERVE_BYTES
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.ports import GpuReading, Gpus
from tests.gpus.fake_nvml import FakeMachine


class Driver(Protocol):
    """A driver of GPUs, and the adapters that a daemon opens on it."""

    def open(self, *, timeout_seconds: float = 30.0, mps_reserve_bytes: int = MPS_RESERVE_BYTES) -> Gpus: ...

    async def close(self) -> None: ...


class PlayableDriver(Driver, Protocol):
    """A driver of two GPUs, which the test plays."""

    def hold(self, index: int, pid: int, memory_bytes: int, *, mps_client: bool = False) -> None: ...

    def busy(self, index: int, percent: int) -> None: ...

    def lose(self, index: int, *, lost: bool = True) -> None: ...

    def err(self, index: int, *xids: int) -> None: ...

    def hang(self, *, hangs: bool = True) -> None: ...


@dataclass
class SimulatedDriver:
    opened: list[SimulatedGpus] = field(default_factory=list)

    def open(self, *, timeout_seconds: float = 30.0, mps_reserve_bytes: int = MPS_RESERVE_BYTES) -> Gpus:
        gpus = SimulatedGpus.parse(
            "h100,t4", timeout_seconds=timeout_seconds, mps_reserve_bytes=mps_reserve_bytes
        )
        self.opened.append(gpus)
        return gpus

    async def close(self) -> None:
        self.hang(hangs=False)
        for gpus in self.opened:
            await close_and_join(gpus)

    def hold(self, index: int, pid: int, memory_bytes: int, *, mps_client: bool = False) -> None:
        self._play(lambda gpus: gpus.set_processes(index, {pid: memory_bytes}))
        self._play(lambda gpus: gpus.set_mps_clients(index, {pid: mps_client}))

    def busy(self, index: int, percent: int) -> None:
        self._play(lambda gpus: gpus.set_utilization(index, percent / 100))

    def lose(self, index: int, *, lost: bool = True) -> None:
        self._play(lambda gpus: gpus.set_trouble(index, "The GPU is lost" if lost else None))

    def err(self, index: int, *xids: int) -> None:
        def tell(gpus: SimulatedGpus) -> None:
            for number in xids:
                gpus.set_xid(index, number)

        self._play(tell)

    def hang(self, *, hangs: bool = True) -> None:
        self._play(lambda gpus: gpus.set_hang(3600 if hangs else 0))

    def _play(self, change: Callable[[SimulatedGpus], None]) -> None:
        for gpus in self.opened:
            change(gpus)


@dataclass
class FakeNvmlDriver:
    library: Path
    machine: FakeMachine
    opened: list[NvmlGpus] = field(default_factory=list)

    def open(
        self,
        *,
        timeout_seconds: float = 30.0,
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        retry_seconds: float = 0.0,
        library: Path | None = None,
    ) -> NvmlGpus:
        gpus = NvmlGpus(
            library=str(library or self.library),
            timeout_seconds=timeout_seconds,
            mps_reserve_bytes=mps_reserve_bytes,
            retry_seconds=retry_seconds,
        )
        self.opened.append(gpus)
        return gpus

    async def close(self) -> None:
        self.hang(hangs=False)
        for gpus in self.opened:
            await close_and_join(gpus)

    def hold(self, index: int, pid: int, memory_bytes: int, *, mps_client: bool = False) -> None:
        gpu = self.machine.gpus[index]
        for processes in (gpu.compute, gpu.mps):
            processes.pop(pid, None)
        if memory_bytes:
            (gpu.mps if mps_client else gpu.compute)[pid] = memory_bytes
        self.machine.write()

    def busy(self, index: int, percent: int) -> None:
        self.machine.gpus[index].utilization_percent = percent
        self.machine.write()

    def lose(self, index: int, *, lost: bool = True) -> None:
        self.machine.gpus[index].lost = lost
        self.machine.write()

    def err(self, index: int, *xids: int) -> None:
        self.machine.gpus[index].xids += xids
        self.machine.write()

    def hang(self, *, hangs: bool = True) -> None:
        self.machine.hang = "nvmlDeviceGetMemoryInfo_v2" if hangs else None
        self.machine.write()


@dataclass
class RealDriver:
    opened: list[NvmlGpus] = field(default_factory=list)

    def open(self, *, timeout_seconds: float = 30.0, mps_reserve_bytes: int = MPS_RESERVE_BYTES) -> Gpus:
        gpus = NvmlGpus(timeout_seconds=timeout_seconds, mps_reserve_bytes=mps_reserve_bytes)
        self.opened.append(gpus)
        return gpus

    async def close(self) -> None:
        for gpus in self.opened:
            await close_and_join(gpus)


async def close_and_join(gpus: NvmlGpus | SimulatedGpus) -> None:
    """Close, and see that its thread ends too, so that it cannot disturb the next test."""
    await gpus.close()
    thread = gpus._thread._thread
    if thread is not None:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


async def answers_again(gpus: Gpus) -> tuple[GpuReading, ...]:
    """The first sample that comes, from a driver that may still hang for a moment."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await gpus.sample()
            except (GpusUnavailable, TimedOut):
                await asyncio.sleep(0.005)
