"""Declare the ports that read GPUs and set them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpushared.domain.model.gpu import Gpu, GpuId


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Describe a process on a GPU; ``pid`` is a host PID, ``memory_bytes`` None if the driver reports none.

    ``mps_client`` is True if the driver lists the process as a client of an MPS server; None if it does not
    report that. ``utilization_ratio`` is how busy the process kept the GPU since the last look, 0-1; None if
    unknown.
    """

    pid: int
    memory_bytes: int | None
    mps_client: bool | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Hold one look at one GPU; a figure is None if the GPU does not report it. Utilisation is a ratio 0-1.

    ``xids`` are the errors (NVIDIA's XID numbers) that the driver reported since the last reading. ``lost``
    means that the GPU is off the bus or needs a reset, so that nothing on it can go on; ``trouble`` has the
    cause.
    """

    gpu: GpuId
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    """The energy since the driver was loaded, in the driver's own counter."""
    processes: tuple[GpuProcess, ...] = ()
    trouble: str | None = None
    xids: tuple[int, ...] = ()
    lost: bool = False


class Gpus(Protocol):
    """Read the GPUs of this machine. Raises ``GpusUnavailable``, ``TimedOut``."""

    simulated: bool

    async def survey(self) -> tuple[Gpu, ...]:
        """Return all GPUs, by index, each before its MIG instances.

        A lost one is listed with its ``trouble``.
        """
        ...

    async def sample(self) -> tuple[GpuReading, ...]:
        """Return a reading of each GPU; a GPU that fails gives a reading with ``trouble`` and no figures."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Hold the driver's settings for one GPU; None if GPU or driver do not report one.

    ``compute_mode`` is NVML's number: 0 default, 2 prohibited, 3 exclusive process.
    """

    gpu: GpuId
    index: int
    name: str
    persistence: bool | None = None
    compute_mode: int | None = None
    mig: bool | None = None
    mig_instances: tuple[GpuId, ...] = ()
    compute_capability: tuple[int, int] | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """Describe the driver itself, and its settings for each of its GPUs."""

    version: str
    gpus: tuple[GpuSettings, ...] = ()


class Driver(Protocol):
    """Describe a driver that reports on itself. Raises ``GpusUnavailable``, ``TimedOut``."""

    async def describe(self) -> DriverFacts: ...


class ComputeModes(Protocol):
    """Read and set GPUs' modes, as ``GpuSettings`` numbers them.

    Raises ``GpusUnavailable``, ``TimedOut``.
    """

    async def compute_mode(self, gpu: GpuId) -> int | None:
        """Return the mode; None if the GPU does not report it."""
        ...

    async def set_compute_mode(self, gpu: GpuId, mode: int) -> None: ...


class MemoryLimiter(Protocol):
    """Set the driver's own limit on a cgroup's GPU memory. Raises ``GpusUnavailable``, ``TimedOut``."""

    async def memory_limits_trouble(self) -> str | None:
        """Return why this machine has no such limits, found by trial; None if it has them."""
        ...

    async def limit_memory(self, gpu: GpuId, cgroup: str, limit_bytes: int) -> None:
        """Let the processes of a cgroup (its full path) hold at most ``limit_bytes`` on a GPU."""
        ...

    async def release_memory(self, gpu: GpuId, cgroup: str) -> None:
        """Remove the limit and the guarantee, before the cgroup goes.

        Without them this is harmless.
        """
        ...
