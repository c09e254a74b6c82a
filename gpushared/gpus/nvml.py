"""Implement the ``Gpus`` port with the NVIDIA driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.domain.model.gpu import Gpu, GpuId, MigInstance
from gpushared.gpus.call_thread import CallThread
from gpushared.gpus.mig import MPS_RESERVE_BYTES, Instance, MigInstances, leasable_bytes, no_instances
from gpushared.gpus.nvml_driver import (
    DRIVER_AWAY,
    GPU_AWAY,
    DriverError,
    Handle,
    Memory,
    NvmlDriver,
    unavailable,
)
from gpushared.gpus.process_activity import ProcessActivity
from gpushared.gpus.topology import link_groups
from gpushared.gpus.xids import XidWatch
from gpushared.ports import DriverFacts, GpuProcess, GpuReading, GpuSettings

T = TypeVar("T")

_GONE = (
    "The GPU is gone: the driver does not list it any more (see `dmesg` for its Xid; reboot to get it back)"
)
_NO_MEMORY_FIGURES = (
    "The driver does not tell this GPU's memory, so shares of it cannot be counted "
    "(usual where GPU and CPU share one memory)"
)


@dataclass(frozen=True, slots=True)
class _Device:
    """Describe a GPU of the session with NVML, or a MIG instance of one (``parent``).

    ``handle`` is None and ``trouble`` set if the device does not answer; a device with both may still be
    looked at.
    """

    id: GpuId
    index: int
    name: str
    handle: Handle | None = None
    trouble: str | None = None
    parent: GpuId | None = None
    mig: MigInstance | None = None
    split: bool = False
    lost: bool = False
    """The GPU is off the bus or needs a reset, or the driver does not list it any more."""
    link_group: int | None = None


class NvmlGpus:
    """Read the GPUs that the NVIDIA driver shows, each followed by its MIG instances.

    All calls of NVML run on one thread (``CallThread``). NVML is opened with the first call and again after
    the driver went away. A GPU once seen stays listed, with its trouble when it is lost. While a GPU is lost,
    NVML is opened anew now and then, because its facts about a GPU stay the same until then.
    """

    simulated = False

    def __init__(
        self,
        *,
        library: str | None = None,
        mps_reserve_bytes: int = MPS_RESERVE_BYTES,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
    ) -> None:
        """Prepare the reading; nothing is asked before the first call.

        Args:
            library: the file to load instead of ``libnvidia-ml.so.1`` on the loader's path, which is fixed
                when the process starts; for drivers in unusual places, and for tests that meet several.
            mps_reserve_bytes: the memory to keep back on each GPU for an MPS server.
            timeout_seconds: for each call of the port; opening NVML wakes every GPU, which without
                persistence mode takes seconds on a machine with many.
            retry_seconds: how soon NVML is opened anew while a GPU is lost.
        """
        self._driver = NvmlDriver(library)
        self._mig = MigInstances(self._driver)
        self._xids = XidWatch(self._driver)
        self._activity = ProcessActivity(self._driver)
        self._mps_reserve_bytes = mps_reserve_bytes
        self._retry_seconds = retry_seconds
        self._thread = CallThread("The NVIDIA driver", timeout_seconds=timeout_seconds)
        # Only the thread uses the attributes from here on.
        self._devices: tuple[_Device, ...] | None = None
        self._opened_at = 0.0
        self._seen: dict[GpuId, _Device] = {}
        self._memory: dict[GpuId, Memory] = {}
        self._any_lost = False

    async def survey(self) -> tuple[Gpu, ...]:
        return await self._thread.call(lambda: self._for_each_device(self._gpu, self._lost_gpu))

    async def sample(self) -> tuple[GpuReading, ...]:
        return self._xids.add_xids(await self._thread.call(self._sample))

    async def describe(self) -> DriverFacts:
        """Return the driver's version and settings. Errors: ``GpusUnavailable``, ``TimedOut``."""
        return await self._thread.call(self._describe)

    async def on_gpu(self, gpu: GpuId, work: Callable[[NvmlDriver, Handle], T]) -> T:
        """Do other work with the driver on one GPU, on the adapter's thread.

        Errors: ``GpusUnavailable`` (also for a ``DriverError`` of the work's), ``TimedOut``.
        """
        return await self._thread.call(lambda: self._on_gpu(gpu, work))

    async def close(self) -> None:
        await self._thread.close(self._shut)

    # --- on the thread ---

    def _sample(self) -> tuple[GpuReading, ...]:
        readings = self._for_each_device(self._reading, _lost_reading)
        # This comes after the readings: the reason for a lost GPU is then known as soon as the loss.
        self._xids.collect()
        return readings

    def _for_each_device(
        self,
        look: Callable[[_Device], T],
        when_lost: Callable[[_Device, str], T],
        *,
        instances: bool = True,
    ) -> tuple[T, ...]:
        try:
            devices = self._open()
            if instances:
                devices = tuple(unit for device in devices for unit in self._with_instances(device))
            return tuple(self._look(device, look, when_lost) for device in devices)
        except DriverError as error:
            self._shut()
            raise unavailable(error) from error

    def _on_gpu(self, gpu: GpuId, work: Callable[[NvmlDriver, Handle], T]) -> T:
        try:
            device = next((device for device in self._open() if device.id == gpu), None)
            if device is not None and device.handle is not None:
                return work(self._driver, device.handle)
            trouble = None if device is None else device.trouble
            raise GpusUnavailable(
                trouble or f"there is no GPU {gpu}", hint="`gpushare gpus` lists what there is"
            )
        except DriverError as error:
            if error.code in DRIVER_AWAY:
                self._shut()
            raise unavailable(error) from error

    def _describe(self) -> DriverFacts:
        gpus = self._for_each_device(self._settings, _lost_settings, instances=False)
        try:
            return DriverFacts(self._driver.version(), gpus)
        except DriverError as error:
            raise unavailable(error) from error

    def _look(
        self, device: _Device, look: Callable[[_Device], T], when_lost: Callable[[_Device, str], T]
    ) -> T:
        if device.handle is None:
            return when_lost(device, device.trouble or _GONE)
        try:
            return look(device)
        except DriverError as error:
            if error.code in DRIVER_AWAY:
                raise
            self._any_lost = True
            return when_lost(replace(device, lost=error.code in GPU_AWAY), error.trouble.sentence)

    def _gpu(self, device: _Device) -> Gpu:
        memory = self._driver.memory(device.handle)
        if memory is None:
            return Gpu(device.id, device.index, device.name, 0, 0, _NO_MEMORY_FIGURES)
        self._memory[device.id] = memory
        return self._described(device, memory, device.trouble)

    def _lost_gpu(self, device: _Device, trouble: str) -> Gpu:
        return self._described(device, self._memory.get(device.id, Memory(0, 0, 0)), trouble)

    def _described(self, device: _Device, memory: Memory, trouble: str | None) -> Gpu:
        # An instance never has an MPS server, and a split GPU has nothing but instances.
        reserve = self._mps_reserve_bytes if device.parent is None else 0
        leasable = 0 if device.split else leasable_bytes(memory.total_bytes, memory.reserved_bytes, reserve)
        return Gpu(
            device.id,
            device.index,
            device.name,
            memory.total_bytes,
            leasable,
            trouble,
            parent=device.parent,
            mig=device.mig,
            split=device.split,
            link_group=device.link_group,
        )

    def _settings(self, device: _Device) -> GpuSettings:
        driver, handle = self._driver, device.handle
        mig = driver.mig(handle)
        instances = self._mig.look(device.id, handle, split=bool(mig))
        return GpuSettings(
            gpu=device.id,
            index=device.index,
            name=device.name,
            persistence=driver.persistence(handle),
            compute_mode=driver.compute_mode(handle),
            mig=mig,
            mig_instances=tuple(instance.id for instance in instances),
            compute_capability=driver.compute_capability(handle),
        )

    def _reading(self, device: _Device) -> GpuReading:
        driver, handle = self._driver, device.handle
        memory = driver.memory(handle)
        # A GPU with a trouble is read too: processes on a GPU that cannot be leased must be known.
        return GpuReading(
            trouble=_NO_MEMORY_FIGURES if memory is None else device.trouble,
            gpu=device.id,
            memory_used_bytes=None if memory is None else memory.used_bytes,
            utilization_ratio=driver.utilization_ratio(handle),
            temperature_celsius=driver.temperature_celsius(handle),
            power_watts=driver.power_watts(handle),
            energy_joules=driver.energy_joules(handle),
            # Some GPUs also list their instances' processes; each process is reported once, where it runs.
            processes=() if device.split else self._processes(device),
        )

    def _processes(self, device: _Device) -> tuple[GpuProcess, ...]:
        processes = self._driver.processes(device.handle)
        return self._activity.add_utilization(device.id, device.handle, processes)

    # --- MIG ---

    def _with_instances(self, device: _Device) -> tuple[_Device, ...]:
        """Return the GPU as MIG leaves it, then its instances."""
        if device.handle is None:
            lost = self._mig.lost(device.id, device.trouble or _GONE)
            return (device, *(_instance(instance, device) for instance in lost))
        try:
            split = bool(self._driver.mig(device.handle))
            instances = self._mig.look(device.id, device.handle, split=split)
        except DriverError as error:
            if error.code in DRIVER_AWAY:
                raise
            # The look at the GPU itself will report the same.
            lost = self._mig.lost(device.id, error.trouble.sentence)
            gone = replace(device, lost=error.code in GPU_AWAY)
            return (device, *(_instance(instance, gone) for instance in lost))
        empty = split and not any(instance.handle is not None for instance in instances)
        trouble = no_instances(device.index) if empty else None
        gpu = replace(device, split=split, trouble=trouble)
        return (gpu, *(_instance(instance, device) for instance in instances))

    # --- the session with NVML ---

    def _open(self) -> tuple[_Device, ...]:
        """Return the devices of the session; open it if there is none, or anew if a GPU is lost for long."""
        if self._any_lost and time.monotonic() - self._opened_at >= self._retry_seconds:
            self._shut()
        if self._devices is None:
            self._driver.open()
            self._opened_at, self._any_lost = time.monotonic(), False
            # Even if listing the devices fails, NVML is open and has to be shut.
            self._devices = ()
            self._devices = self._list_devices()
            self._watch_xids(self._devices)
        return self._devices

    def _watch_xids(self, devices: tuple[_Device, ...]) -> None:
        """Watch the GPUs' XIDs; the next call to a GPU that is lost by now finds the loss."""
        with contextlib.suppress(DriverError):
            self._xids.open({device.id: device.handle for device in devices if device.handle is not None})

    def _shut(self) -> None:
        if self._devices is None:
            return
        self._devices = None
        self._activity.forget()
        self._xids.close()
        # A driver that is away refuses this too, and then there is nothing left to undo.
        with contextlib.suppress(DriverError):
            self._driver.close()

    def _list_devices(self) -> tuple[_Device, ...]:
        """Return the devices that NVML lists, then those that it listed earlier and does not list now."""
        listed = self._with_links([self._identify(index) for index in range(self._driver.count())])
        readable = {device.id: device for device in listed if device.handle is not None}
        missing = {gpu_id: old for gpu_id, old in self._seen.items() if gpu_id not in readable}
        self._seen |= {gpu_id: replace(device, handle=None) for gpu_id, device in readable.items()}
        recognised = [_recognise(device, missing) for device in listed]
        gone = [replace(old, trouble=_GONE, lost=True) for old in missing.values()]
        devices = (*recognised, *gone)
        self._any_lost = len(readable) < len(devices)
        return devices

    def _with_links(self, devices: list[_Device]) -> list[_Device]:
        handles = {device.index: device.handle for device in devices if device.handle is not None}
        groups = link_groups(self._driver, handles)
        return [replace(device, link_group=groups.get(device.index)) for device in devices]

    def _identify(self, index: int) -> _Device:
        try:
            handle = self._driver.handle(index)
            return _Device(GpuId(self._driver.uuid(handle)), index, self._driver.name(handle), handle)
        except DriverError as error:
            if error.code in DRIVER_AWAY:
                raise
            # Not even the device's UUID can be read.
            trouble = error.trouble.sentence
            unreadable = _Device(GpuId(f"GPU-unreadable-{index}"), index, "unreadable GPU", trouble=trouble)
            return replace(unreadable, lost=error.code in GPU_AWAY)


def _recognise(device: _Device, missing: dict[GpuId, _Device]) -> _Device:
    """Return the device that was seen in the place of an unreadable one, and remove it from ``missing``."""
    if device.handle is not None:
        return device
    for old in missing.values():
        if old.index == device.index:
            return replace(missing.pop(old.id), trouble=device.trouble, lost=device.lost)
    return replace(device, lost=False)  # no lease was ever on this device


def _instance(instance: Instance, gpu: _Device) -> _Device:
    return _Device(
        id=instance.id,
        index=gpu.index,
        name=instance.name,
        handle=instance.handle,
        trouble=instance.trouble,
        parent=gpu.id,
        mig=instance.mig,
        lost=gpu.lost,
    )


def _lost_settings(device: _Device, trouble: str) -> GpuSettings:
    return GpuSettings(device.id, device.index, device.name, trouble=trouble)


def _lost_reading(device: _Device, trouble: str) -> GpuReading:
    return GpuReading(device.id, trouble=trouble, lost=device.lost)
