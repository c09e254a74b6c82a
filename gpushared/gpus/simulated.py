"""GPUs that are not there: the ``Gpus`` port for machines without hardware, settable at run time."""

from __future__ import annotations

import difflib
import math
import os
import re
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpushared.domain.errors import RequestError
from gpushared.domain.gpu import MIB, Gpu, GpuId
from gpushared.gpus.call_thread import CallThread
from gpushared.gpus.memory import MPS_RESERVE_BYTES, leasable_bytes
from gpushared.ports import GpuProcess, GpuReading

MAX_GPUS = 64
_MAX_SPEC_LENGTH = 1000
_MAX_HANG_SECONDS = 24 * 3600.0
_UUID_SPACE = uuid.UUID("6f2f9d7c-1f0b-5d0e-9a53-3f1b6d2f4a10")
_SPEC_PART = re.compile(r"(?P<model>[a-z][a-z0-9-]{0,31})(?::(?P<count>[0-9]{1,4}))?")
_IDLE_CELSIUS, _BUSY_CELSIUS = 30, 70


STAT_BYTES = 4096
"""More than the 52 fields of a ``stat`` can take."""


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model: total and driver-reserved memory about as ``nvidia-smi -q`` shows them."""

    name: str
    total_mib: int
    reserved_mib: int
    idle_watts: float
    busy_watts: float


MODELS: Mapping[str, Model] = {
    "h100": Model("NVIDIA H100 80GB HBM3", 81559, 551, 70.0, 700.0),
    "a100": Model("NVIDIA A100-SXM4-80GB", 81920, 634, 60.0, 400.0),
    "rtx4090": Model("NVIDIA GeForce RTX 4090", 24564, 346, 20.0, 450.0),
    "t4": Model("Tesla T4", 15360, 443, 10.0, 70.0),
}


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process on a simulated GPU. ``started`` tells it from a later one of the same PID."""

    started: int
    memory_bytes: int
    mps_client: bool | None = None


@dataclass(frozen=True, slots=True)
class _SimulatedGpu:
    id: GpuId
    index: int
    model: Model
    holders: Mapping[int, _Holder] = field(default_factory=dict)
    utilization_ratio: float = 0.0
    trouble: str | None = None

    @property
    def usable_bytes(self) -> int:
        return (self.model.total_mib - self.model.reserved_mib) * MIB

    def living(self) -> dict[int, _Holder]:
        """A process that ended gives its memory back, as with a real driver."""
        return {
            pid: holder for pid, holder in sorted(self.holders.items()) if _start_time(pid) == holder.started
        }


class SimulatedGpus:
    """Simulated GPUs that behave to callers as the NVIDIA driver's do, hanging calls included.

    The ``set_...`` methods play the driver; they take effect with the next call of the port and raise
    ``RequestError`` for what a real GPU could not be like. Call them on the event loop's thread.
    """

    simulated = True

    def __init__(
        self,
        models: tuple[str, ...],
        *,
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        timeout_seconds: float = 10.0,
    ) -> None:
        """``models``: keys of ``MODELS``, one for each GPU; the same ones give the same UUIDs every time."""
        self._mps_reserve_bytes = mps_reserve_bytes
        self._gpus = _make_gpus(models)
        self._thread = CallThread("The simulated driver", timeout_seconds=timeout_seconds)
        self._hang_seconds = 0.0
        self._unhang = threading.Event()

    @classmethod
    def parse(
        cls,
        spec: str,
        *,
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        timeout_seconds: float = 10.0,
    ) -> Self:
        """GPUs as ``MODEL[:COUNT],...`` says, such as ``h100:2,t4``. Errors: ``RequestError``."""
        return cls(_parse(spec), mps_reserve_bytes=mps_reserve_bytes, timeout_seconds=timeout_seconds)

    async def survey(self) -> tuple[Gpu, ...]:
        return await self._thread.call(self._survey)

    async def sample(self) -> tuple[GpuReading, ...]:
        return await self._thread.call(self._sample)

    async def close(self) -> None:
        await self._thread.close(lambda: None)

    def set_processes(
        self, gpu_index: int, memory_by_pid: Mapping[int, int], *, mps_client: bool | None = None
    ) -> None:
        """Let processes, by host PID, hold so many bytes from now on; 0 takes one off the GPU.

        Others that hold memory go on holding it. A process that ends leaves the GPU by itself.
        ``mps_client``: as which the driver lists these; None is a driver that does not tell.
        """
        gpu = self._gpu(gpu_index)
        holders = gpu.living()
        for pid, memory_bytes in memory_by_pid.items():
            if memory_bytes == 0:
                holders.pop(pid, None)
            else:
                holders[pid] = _holder(pid, memory_bytes, mps_client)
        held_bytes = sum(holder.memory_bytes for holder in holders.values())
        if held_bytes > gpu.usable_bytes:
            raise RequestError(
                f"The simulated GPU {gpu_index} has {gpu.usable_bytes // MIB} MiB for its processes, "
                f"not {-(-held_bytes // MIB)} MiB",
                hint="a real GPU would refuse such an allocation",
            )
        self._change(replace(gpu, holders=holders))

    def set_utilization(self, gpu_index: int, ratio: float) -> None:
        """How busy the GPU is from now on, 0-1; temperature and power go with it."""
        if not 0 <= ratio <= 1:
            raise RequestError(f"A utilisation of {ratio:g} does not exist", hint="it is a ratio from 0 to 1")
        self._change(replace(self._gpu(gpu_index), utilization_ratio=ratio))

    def set_trouble(self, gpu_index: int, trouble: str | None) -> None:
        """Lose the GPU, for the reason that the sentence says; None or an empty one heals it."""
        self._change(replace(self._gpu(gpu_index), trouble=trouble or None))

    def set_hang(self, seconds: float) -> None:
        """Let every call take so long from now on; 0 ends that, also for calls that hang right now."""
        if not (math.isfinite(seconds) and 0 <= seconds <= _MAX_HANG_SECONDS):
            raise RequestError(
                f"Calls cannot hang for {seconds:g} s", hint=f"give 0 to {_MAX_HANG_SECONDS:.0f} seconds"
            )
        self._hang_seconds = seconds
        if seconds:
            self._unhang.clear()
        else:
            self._unhang.set()

    def _gpu(self, index: int) -> _SimulatedGpu:
        if not 0 <= index < len(self._gpus):
            raise RequestError(
                f"There is no simulated GPU {index}", hint=f"they go from 0 to {len(self._gpus) - 1}"
            )
        return self._gpus[index]

    def _change(self, gpu: _SimulatedGpu) -> None:
        """The tuple is replaced as a whole, so the thread always sees a state that was true."""
        self._gpus = (*self._gpus[: gpu.index], gpu, *self._gpus[gpu.index + 1 :])

    # --- on the thread ---

    def _survey(self) -> tuple[Gpu, ...]:
        self._hang()
        return tuple(self._described(gpu) for gpu in self._gpus)

    def _sample(self) -> tuple[GpuReading, ...]:
        self._hang()
        return tuple(_reading(gpu) for gpu in self._gpus)

    def _hang(self) -> None:
        if self._hang_seconds:
            self._unhang.wait(self._hang_seconds)

    def _described(self, gpu: _SimulatedGpu) -> Gpu:
        total_bytes, reserved_bytes = gpu.model.total_mib * MIB, gpu.model.reserved_mib * MIB
        leasable = leasable_bytes(total_bytes, reserved_bytes, self._mps_reserve_bytes)
        return Gpu(gpu.id, gpu.index, gpu.model.name, total_bytes, leasable, gpu.trouble)


def _reading(gpu: _SimulatedGpu) -> GpuReading:
    if gpu.trouble is not None:
        return GpuReading(gpu.id, trouble=gpu.trouble)
    holders, model, busy = gpu.living(), gpu.model, gpu.utilization_ratio
    return GpuReading(
        gpu=gpu.id,
        memory_used_bytes=sum(holder.memory_bytes for holder in holders.values()),
        utilization_ratio=busy,
        temperature_celsius=round(_IDLE_CELSIUS + busy * (_BUSY_CELSIUS - _IDLE_CELSIUS)),
        power_watts=model.idle_watts + busy * (model.busy_watts - model.idle_watts),
        processes=tuple(
            GpuProcess(pid, holder.memory_bytes, holder.mps_client) for pid, holder in holders.items()
        ),
    )


def _holder(pid: int, memory_bytes: int, mps_client: bool | None) -> _Holder:
    if memory_bytes < 0:
        raise RequestError(
            f"The process {pid} cannot hold {memory_bytes} bytes", hint="give 0 to take it off the GPU"
        )
    started = _start_time(pid)
    if started is None:
        raise RequestError(
            f"There is no process {pid} on this machine",
            hint="give the PID of one that runs, as the host sees it",
        )
    return _Holder(started, memory_bytes, mps_client)


def _start_time(pid: int) -> int | None:
    """Ticks from boot to the process's start, None when it is gone (fields 3 and 22 of proc_pid_stat(5))."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(descriptor, STAT_BYTES)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Only the last parenthesis ends the name, which may hold any character.
    fields = stat.rpartition(b")")[2].split()
    # A zombie has closed its files already, so a driver has freed its memory.
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def _make_gpus(models: tuple[str, ...]) -> tuple[_SimulatedGpu, ...]:
    """UUIDs go by the model and its place among its like, so that they outlive changes of the others."""
    made: Counter[str] = Counter()
    gpus = []
    for index, model in enumerate(models):
        gpu_id = GpuId(f"GPU-{uuid.uuid5(_UUID_SPACE, f'{model}:{made[model]}')}")
        made[model] += 1
        gpus.append(_SimulatedGpu(gpu_id, index, MODELS[model]))
    return tuple(gpus)


def _parse(spec: str) -> tuple[str, ...]:
    if len(spec) > _MAX_SPEC_LENGTH:
        raise _bad_spec(f"The list of simulated GPUs is {len(spec)} characters long")
    models = tuple(model for part in spec.lower().split(",") for model in _parse_part(part.strip()))
    if len(models) > MAX_GPUS:
        raise _bad_spec(f"{len(models)} simulated GPUs are too many")
    return models


def _parse_part(part: str) -> tuple[str, ...]:
    match = _SPEC_PART.fullmatch(part)
    if match is None:
        raise _bad_spec(f"{part[:40]!r} does not name simulated GPUs")
    model, count = match["model"], int(match["count"] or 1)
    if model not in MODELS:
        near = difflib.get_close_matches(model, MODELS, n=1, cutoff=0.0)[0]
        raise RequestError(
            f"There is no simulated GPU model {model!r}",
            hint=f"did you mean {near!r}? There are {', '.join(MODELS)}",
        )
    if not 1 <= count <= MAX_GPUS:
        raise _bad_spec(f"{part!r} asks for {count} simulated GPUs")
    return (model,) * count


def _bad_spec(message: str) -> RequestError:
    return RequestError(
        message, hint=f"write MODEL[:COUNT],... such as h100:2,t4 for 1 to {MAX_GPUS} GPUs in all"
    )
