"""Simulate GPUs: the ``Gpus`` port for machines without hardware, settable at run time."""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpushared.domain.model.errors import RequestError, SharingUnavailable
from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.gpus.call_thread import CallThread
from gpushared.gpus.mig import MPS_RESERVE_BYTES, leasable_bytes
from gpushared.gpus.simulated_models import (
    MEMORY_SLICES,
    MIG_SLICES,
    MODELS,
    Model,
    SimulatedModel,
    parse_models,
)
from gpushared.ports import GpuProcess, GpuReading

_MAX_HANG_SECONDS = 24 * 3600.0
_MAX_XID = 999
_MAX_KEPT_XIDS = 1024
_UUID_SPACE = uuid.UUID("6f2f9d7c-1f0b-5d0e-9a53-3f1b6d2f4a10")
_IDLE_CELSIUS, _BUSY_CELSIUS = 30, 70


STAT_BYTES = 4096
"""The size is more than the 52 fields of a ``stat`` can take."""


@dataclass(frozen=True, slots=True)
class _SimulatedProcess:
    """Describe a process on a simulated GPU.

    ``started`` (clock ticks since boot) distinguishes it from a later one of the same PID.
    """

    started: int
    memory_bytes: int
    mps_client: bool | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class _SimulatedGpu:
    id: GpuId
    index: int
    model: Model
    holders: Mapping[int, _SimulatedProcess] = field(default_factory=dict)
    utilization_ratio: float = 0.0
    trouble: str | None = None
    parent: GpuId | None = None
    mig: MigInstance | None = None
    split: bool = False
    link_group: int | None = None
    used_joules: float = 0.0
    """The energy until ``drawing_since``."""
    drawing_since: float = field(default_factory=time.monotonic)
    """Since this time the GPU draws the power that it draws now."""

    @property
    def power_watts(self) -> float:
        idle, busy = self.model.idle_watts, self.model.busy_watts
        return idle + self.utilization_ratio * (busy - idle)

    def energy_joules(self, now: float) -> float:
        """Return the energy since the GPU was made."""
        return self.used_joules + self.power_watts * (now - self.drawing_since)

    @property
    def usable_bytes(self) -> int:
        return (self.model.total_mib - self.model.reserved_mib) * MIB

    @property
    def label(self) -> str:
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig.index}"

    @property
    def held_bytes(self) -> int:
        return sum(holder.memory_bytes for holder in self.living().values())

    def living(self) -> dict[int, _SimulatedProcess]:
        """Return the living processes: one that ended gives its memory back, as with a real driver."""
        return {
            pid: holder for pid, holder in sorted(self.holders.items()) if _start_time(pid) == holder.started
        }


class SimulatedGpus:
    """Simulate GPUs that behave to callers as the NVIDIA driver's do, hanging calls included.

    The ``set_...`` methods play the driver; they take effect with the next call of the port and raise
    ``RequestError`` for a state that a real GPU could not have. Call them on the event loop's thread.
    """

    simulated = True

    def __init__(
        self,
        models: tuple[SimulatedModel, ...],
        *,
        machine: str = "",
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        timeout_seconds: float = 10.0,
    ) -> None:
        """Take ``models``, one for each GPU.

        The same models give the same UUIDs every time on a ``machine``.
        """
        self._mps_reserve_bytes = mps_reserve_bytes
        self._gpus = _make_gpus(models, machine)
        self._thread = CallThread("The simulated driver", timeout_seconds=timeout_seconds)
        self._xids: deque[tuple[GpuId, int]] = deque(maxlen=_MAX_KEPT_XIDS)
        self._hang_seconds = 0.0
        self._unhang = threading.Event()

    @classmethod
    def parse(
        cls,
        spec: str,
        *,
        machine: str = "",
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        timeout_seconds: float = 10.0,
    ) -> Self:
        """Make GPUs as ``parse_models`` reads them, such as ``h100:2,t4``. Errors: ``RequestError``."""
        return cls(
            parse_models(spec),
            machine=machine,
            mps_reserve_bytes=mps_reserve_bytes,
            timeout_seconds=timeout_seconds,
        )

    async def survey(self) -> tuple[Gpu, ...]:
        return await self._thread.call(self._survey)

    async def sample(self) -> tuple[GpuReading, ...]:
        readings = await self._thread.call(self._sample)
        # The XIDs are taken last, so that a call that came back too late does not lose them.
        xids: dict[GpuId, list[int]] = {}
        while self._xids:
            gpu, number = self._xids.popleft()
            xids.setdefault(gpu, []).append(number)
        return tuple(replace(reading, xids=tuple(xids.get(reading.gpu, ()))) for reading in readings)

    async def close(self) -> None:
        await self._thread.close(lambda: None)

    def set_processes(
        self, gpu_index: int, memory_by_pid: Mapping[int, int], *, mig_index: int | None = None
    ) -> None:
        """Let processes, by host PID, hold this many bytes from now on; 0 takes a process off the GPU.

        Other processes with memory go on holding it. A process that ends leaves the GPU by itself. On a GPU
        that is split by MIG, ``mig_index`` names the instance.
        """
        gpu = self._gpu(gpu_index, mig_index)
        if gpu.split:
            raise RequestError(
                f"No process runs on the simulated GPU {gpu_index} itself: MIG is on",
                hint=f"name an instance, such as {gpu_index}:0",
            )
        holders = gpu.living()
        for pid, memory_bytes in memory_by_pid.items():
            if memory_bytes == 0:
                holders.pop(pid, None)
            else:
                holders[pid] = _new_process(pid, memory_bytes)
        held_bytes = sum(holder.memory_bytes for holder in holders.values())
        if held_bytes > gpu.usable_bytes:
            raise RequestError(
                f"The simulated GPU {gpu.label} has {gpu.usable_bytes // MIB} MiB for its processes, "
                f"not {-(-held_bytes // MIB)} MiB",
                hint="a real GPU would refuse such an allocation",
            )
        self._change(replace(gpu, holders=holders))

    def set_mps_clients(self, gpu_index: int, clients: Mapping[int, bool]) -> None:
        """Set for processes with memory if the driver lists them as MPS clients."""
        gpu = self._gpu(gpu_index)
        holders = {
            pid: replace(holder, mps_client=clients.get(pid, holder.mps_client))
            for pid, holder in gpu.holders.items()
        }
        self._change(replace(gpu, holders=holders))

    def set_process_utilization(
        self, gpu_index: int, ratios: Mapping[int, float], *, mig_index: int | None = None
    ) -> None:
        """Set how busy each of these processes keeps the GPU, 0-1.

        The driver does not report other processes. Only processes that hold memory there can be set. The
        figure of the GPU as a whole is set separately.
        """
        gpu = self._gpu(gpu_index, mig_index)
        for ratio in ratios.values():
            _check_ratio(ratio)
        holders = {
            pid: replace(holder, utilization_ratio=ratios.get(pid, holder.utilization_ratio))
            for pid, holder in gpu.holders.items()
        }
        self._change(replace(gpu, holders=holders))

    def held_by(self, pid: int) -> dict[int, int]:
        """Return the bytes that a process holds, by the index of the GPU; not on MIG instances."""
        whole = (gpu for gpu in self._gpus if gpu.mig is None)
        return {gpu.index: gpu.living()[pid].memory_bytes for gpu in whole if pid in gpu.living()}

    def set_utilization(self, gpu_index: int, ratio: float) -> None:
        """Set how busy the GPU is from now on, 0-1; temperature and power follow."""
        _check_ratio(ratio)
        gpu, now = self._gpu(gpu_index), time.monotonic()
        energy = gpu.energy_joules(now)
        self._change(replace(gpu, utilization_ratio=ratio, used_joules=energy, drawing_since=now))

    def set_trouble(self, gpu_index: int, trouble: str | None) -> None:
        """Lose the GPU and its instances, for the reason in the sentence; None or an empty text heals it."""
        gpu = self._gpu(gpu_index)
        for device in self._gpus:
            if gpu.id in (device.id, device.parent):
                self._change(replace(device, trouble=trouble or None))

    def set_xid(self, gpu_index: int, number: int) -> None:
        """Let the driver report an error, by NVIDIA's number. The GPU's own figures stay as they are."""
        if not 1 <= number <= _MAX_XID:
            raise RequestError(f"There is no XID {number}", hint=f"they go from 1 to {_MAX_XID}")
        self._xids.append((self._gpu(gpu_index).id, number))

    def set_hang(self, seconds: float) -> None:
        """Let every call take this long from now on; 0 ends that, also for calls that hang right now."""
        if not (math.isfinite(seconds) and 0 <= seconds <= _MAX_HANG_SECONDS):
            raise RequestError(
                f"Calls cannot hang for {seconds:g} s", hint=f"give 0 to {_MAX_HANG_SECONDS:.0f} seconds"
            )
        self._hang_seconds = seconds
        if seconds:
            self._unhang.clear()
        else:
            self._unhang.set()

    def _gpu(self, index: int, mig_index: int | None = None) -> _SimulatedGpu:
        label = str(index) if mig_index is None else f"{index}:{mig_index}"
        gpu = next((gpu for gpu in self._gpus if gpu.label == label), None)
        if gpu is None:
            labels = [gpu.label for gpu in self._gpus]
            raise RequestError(f"there is no simulated GPU {label}", hint=f"GPUs here: {', '.join(labels)}")
        return gpu

    def _change(self, gpu: _SimulatedGpu) -> None:
        """Replace the tuple as a whole, so that the thread always sees a consistent state."""
        self._gpus = tuple(gpu if other.id == gpu.id else other for other in self._gpus)

    # --- on the thread ---

    def _survey(self) -> tuple[Gpu, ...]:
        self._hang()
        return tuple(self._described(gpu) for gpu in self._gpus)

    def _sample(self) -> tuple[GpuReading, ...]:
        self._hang()
        return tuple(_reading(gpu, self._gpus) for gpu in self._gpus)

    def _hang(self) -> None:
        if self._hang_seconds:
            self._unhang.wait(self._hang_seconds)

    def _described(self, gpu: _SimulatedGpu) -> Gpu:
        total_bytes, reserved_bytes = gpu.model.total_mib * MIB, gpu.model.reserved_mib * MIB
        reserve = self._mps_reserve_bytes if gpu.parent is None else 0
        leasable = 0 if gpu.split else leasable_bytes(total_bytes, reserved_bytes, reserve)
        return Gpu(
            gpu.id,
            gpu.index,
            gpu.model.name,
            total_bytes,
            leasable,
            gpu.trouble,
            parent=gpu.parent,
            mig=gpu.mig,
            split=gpu.split,
            link_group=gpu.link_group,
        )


def _reading(gpu: _SimulatedGpu, gpus: tuple[_SimulatedGpu, ...]) -> GpuReading:
    """Return a reading as the driver reports it: with MIG, use by instance, temperature and power by GPU."""
    if gpu.trouble is not None:
        return GpuReading(gpu.id, trouble=gpu.trouble, lost=True)
    holders, busy = gpu.living(), gpu.utilization_ratio
    used = sum(holder.memory_bytes for holder in holders.values())
    used += sum(part.held_bytes for part in gpus if part.parent == gpu.id)
    if gpu.mig is not None:
        return GpuReading(gpu.id, used, processes=_processes(holders))
    return GpuReading(
        gpu=gpu.id,
        memory_used_bytes=used,
        utilization_ratio=None if gpu.split else busy,
        temperature_celsius=round(_IDLE_CELSIUS + busy * (_BUSY_CELSIUS - _IDLE_CELSIUS)),
        power_watts=gpu.power_watts,
        energy_joules=gpu.energy_joules(time.monotonic()),
        processes=_processes(holders),
    )


def _processes(holders: Mapping[int, _SimulatedProcess]) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(pid, holder.memory_bytes, holder.mps_client, holder.utilization_ratio)
        for pid, holder in holders.items()
    )


def _check_ratio(ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise RequestError(f"A utilisation of {ratio:g} does not exist", hint="it is a ratio from 0 to 1")


def _new_process(pid: int, memory_bytes: int) -> _SimulatedProcess:
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
    return _SimulatedProcess(started, memory_bytes)


def _start_time(pid: int) -> int | None:
    """Return the ticks from boot to the process's start, None if it is gone.

    The source is fields 3 and 22 of proc_pid_stat(5).
    """
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


def _make_gpus(models: tuple[SimulatedModel, ...], machine: str) -> tuple[_SimulatedGpu, ...]:
    """Make GPUs with UUIDs by model and number within the model, so that changes of other models keep them.

    The UUIDs depend on the machine too: nodes of a pool must not have GPUs of the same name.
    """
    counts: Counter[str] = Counter()
    gpus: list[_SimulatedGpu] = []
    for index, simulated in enumerate(models):
        number = counts[simulated.model]
        counts[simulated.model] += 1
        gpu_id = GpuId(f"GPU-{uuid.uuid5(_UUID_SPACE, f'{machine}{simulated.model}:{number}')}")
        gpu = _SimulatedGpu(
            gpu_id,
            index,
            MODELS[simulated.model],
            split=simulated.instances is not None,
            link_group=simulated.link_group,
        )
        gpus.append(gpu)
        gpus += [_instance(gpu, mig_index, name) for mig_index, name in enumerate(simulated.instances or ())]
    return tuple(gpus)


def _instance(gpu: _SimulatedGpu, mig_index: int, profile_name: str) -> _SimulatedGpu:
    profile = gpu.model.profile(profile_name)
    assert profile is not None, "checked when it was read"
    mig = MigInstance(
        mig_index,
        profile.name,
        memory_permille=profile.memory_slices * WHOLE_PERMILLE // MEMORY_SLICES,
        compute_permille=profile.compute_slices * WHOLE_PERMILLE // MIG_SLICES,
    )
    model = Model(f"{gpu.model.name} MIG {profile.name}", profile.total_mib, 0, 0.0, 0.0)
    instance_id = GpuId(f"MIG-{uuid.uuid5(_UUID_SPACE, f'{gpu.id}:{mig_index}:{profile.name}')}")
    return _SimulatedGpu(instance_id, gpu.index, model, parent=gpu.id, mig=mig)


class SimulatedCheckpoints:
    """Implement the ``Checkpoints`` port without CUDA: for every process, with true figures of memory."""

    with_mps = True
    needs_host_memory = False

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus
        self._saved: dict[int, dict[int, int]] = {}
        """The bytes of each saved process on each GPU, by index."""

    async def trouble(self) -> str:
        return ""

    async def save(self, pids: Collection[int]) -> None:
        for pid in sorted(pids):
            bytes_by_gpu = self._gpus.held_by(pid)
            if bytes_by_gpu:
                self._saved[pid] = bytes_by_gpu
                for index in bytes_by_gpu:
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
        """Do nothing, because nothing is open."""
