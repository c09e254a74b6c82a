"""Call NVML's functions as gpushared needs them: blocking, a missing figure as None, errors as DriverError.

``pynvml`` here is the module of the package nvidia-ml-py. It keeps the loaded library in a global, so one
process has one driver at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, TypeVar

import pynvml

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.ports import GpuProcess


class NvmlCode(IntEnum):
    """Number the codes of ``nvmlReturn_t`` (nvml.h) with their own treatment.

    NVML's ABI fixes the numbers.
    """

    SUCCESS = 0
    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27


DRIVER_AWAY = frozenset(
    {
        NvmlCode.UNINITIALIZED,
        NvmlCode.DRIVER_NOT_LOADED,
        NvmlCode.LIBRARY_NOT_FOUND,
        NvmlCode.LIB_RM_VERSION_MISMATCH,
    }
)
"""The driver as a whole is away: no handle is valid any more, and NVML has to be opened again."""

GPU_AWAY = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED})
"""One GPU is away; the others may be well."""

OLD_DRIVER = frozenset({NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.ARGUMENT_VERSION_MISMATCH, NvmlCode.DEPRECATED})
"""The library does not know the function, or not this version of it; an older function may work."""

NO_FIGURE = OLD_DRIVER | {
    # pynvml raises an error of value 0 where a call succeeds without any data.
    NvmlCode.SUCCESS,
    NvmlCode.NOT_SUPPORTED,
    NvmlCode.NO_PERMISSION,
    NvmlCode.NOT_FOUND,
    NvmlCode.NO_DATA,
    NvmlCode.NOT_READY,
}
"""This GPU does not report this figure; the GPU itself is well."""


@dataclass(frozen=True, slots=True)
class DriverTrouble:
    """State a trouble, and its remedy."""

    message: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.message} ({self.hint})"


_TROUBLES: Mapping[int, DriverTrouble] = {
    NvmlCode.UNINITIALIZED: DriverTrouble("NVML was shut down", "it is opened again with the next call"),
    NvmlCode.NOT_SUPPORTED: DriverTrouble(
        "The NVIDIA driver does not support this", "a newer driver may; see `nvidia-smi -q`"
    ),
    NvmlCode.NO_PERMISSION: DriverTrouble(
        "The daemon has no permission to use the GPU",
        "run it as root and allow /dev/nvidia* (DeviceAllow= of its unit, device cgroups)",
    ),
    NvmlCode.INSUFFICIENT_POWER: DriverTrouble(
        "The GPU's external power is not connected", "check its power cables"
    ),
    NvmlCode.DRIVER_NOT_LOADED: DriverTrouble(
        "The NVIDIA driver is not loaded",
        "try `modprobe nvidia`; after an update of the kernel the driver has to be built again",
    ),
    NvmlCode.TIMEOUT: DriverTrouble(
        "The NVIDIA driver gave up on a call", "`dmesg` may tell why (NVRM, Xid)"
    ),
    NvmlCode.IRQ_ISSUE: DriverTrouble("The GPU's interrupts do not arrive", "`dmesg` may tell why (NVRM)"),
    NvmlCode.LIBRARY_NOT_FOUND: DriverTrouble(
        "There is no NVIDIA driver on this machine: libnvidia-ml.so.1 was not found",
        "install the driver, or simulate GPUs with `gpushared --simulate h100:2`",
    ),
    NvmlCode.FUNCTION_NOT_FOUND: DriverTrouble(
        "The NVIDIA driver is too old: its library lacks a function that is needed", "update the driver"
    ),
    NvmlCode.GPU_IS_LOST: DriverTrouble(
        "The GPU is lost: it does not answer on the PCIe bus any more",
        "see `dmesg` for its Xid; it usually takes a reboot",
    ),
    NvmlCode.RESET_REQUIRED: DriverTrouble(
        "The GPU has to be reset before it can be used",
        "stop what runs on it, then `nvidia-smi --gpu-reset -i INDEX`, or reboot",
    ),
    NvmlCode.LIB_RM_VERSION_MISMATCH: DriverTrouble(
        "The NVIDIA driver was changed while it ran: its library and its kernel module differ",
        "reboot; or unload and load the kernel modules and restart gpushared",
    ),
    NvmlCode.IN_USE: DriverTrouble("The GPU is in exclusive use by another program", "see `nvidia-smi`"),
}


class DriverError(Exception):
    """Report a failed call of NVML. The error stays inside this package."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {code}")
        self.code = code
        self.function = function

    @property
    def trouble(self) -> DriverTrouble:
        return _TROUBLES.get(self.code) or DriverTrouble(
            f"The NVIDIA driver answered {self.function} with error {self.code}",
            "`dmesg` may tell why (NVRM, Xid); see also `nvidia-smi`",
        )


def unavailable(error: DriverError) -> GpusUnavailable:
    """Return the error for callers when no GPU answers at all."""
    trouble = error.trouble
    return GpusUnavailable(trouble.message, hint=trouble.hint)


T = TypeVar("T")
Handle = Any
"""A handle is a ctypes pointer of pynvml's, valid until the driver is closed."""

NO_MEMORY_LIMIT = 2**64 - 1
"""This hard limit means no limit (``NVML_DEVICE_MEMORY_LIMIT_MAX``)."""

_PROCESS_KINDS = ("Compute", "Graphics", "MPSCompute")


@dataclass(frozen=True, slots=True)
class Memory:
    """Hold a GPU's memory. ``used_bytes`` is without ``reserved_bytes`` if the driver reports both."""

    total_bytes: int
    reserved_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Record a process's use of a GPU in one of the driver's samples; the time stamp is in microseconds."""

    pid: int
    at_us: int
    ratio: float


class NvmlDriver:
    """Call the NVIDIA driver through its library. Every method may block; all raise ``DriverError``."""

    def __init__(self, library: str | None = None) -> None:
        """Take ``library``: the file to load instead of the one that the system's loader finds."""
        self._library = library

    def open(self) -> None:
        """Load the library and initialise it; the other calls are allowed between this and ``close``."""
        self._load()
        _ask("nvmlInit")

    def close(self) -> None:
        """Undo ``open``. The library itself stays loaded: Linux gives no safe way to unload it."""
        _ask("nvmlShutdown")

    def _load(self) -> None:
        # pynvml knows one name only, which the loader seeks on the path of the process's start.
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - functions of the library loaded before
        pynvml.nvmlLib = None
        if self._library is None:
            return
        try:
            pynvml.nvmlLib = ctypes.CDLL(self._library)
        except OSError as error:
            raise DriverError(NvmlCode.LIBRARY_NOT_FOUND, "dlopen") from error

    def version(self) -> str:
        """Return the driver's own version, such as ``580.95.05``."""
        return str(_ask("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        """Return the number of this machine's GPUs, with the unusable ones; fixed until the next ``open``."""
        return int(_ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        return _ask("nvmlDeviceGetHandleByIndex", index)

    def uuid(self, handle: Handle) -> str:
        return str(_ask("nvmlDeviceGetUUID", handle))

    def name(self, handle: Handle) -> str:
        return str(_ask("nvmlDeviceGetName", handle))

    def memory(self, handle: Handle) -> Memory | None:
        """Return the GPU's memory; None if it has none of its own, as parts with unified memory.

        The driver's own part is reported since r510; before that it is inside ``used_bytes``.
        """
        try:
            info = _newest(
                lambda: _ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2),
                lambda: _ask("nvmlDeviceGetMemoryInfo", handle),
            )
        except DriverError as error:
            if error.code == NvmlCode.NOT_SUPPORTED:
                return None
            raise
        return Memory(info.total, getattr(info, "reserved", 0), info.used) if info.total else None

    def mig(self, handle: Handle) -> bool | None:
        """Return True if MIG is on: CUDA programs see instances instead of the GPU. None if it has no MIG."""
        modes = _figure(lambda: _ask("nvmlDeviceGetMigMode", handle))
        return None if modes is None else modes[0] != 0

    def nvlinked(self, handle: Handle, other: Handle) -> bool | None:
        """Return True if NVLink joins two GPUs, through a switch or not.

        None if the driver does not report it.
        """
        index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        status = _figure(lambda: int(_ask("nvmlDeviceGetP2PStatus", handle, other, index)))
        return None if status is None else status == pynvml.NVML_P2P_STATUS_OK

    def same_numa_node(self, handle: Handle, other: Handle) -> bool | None:
        """Return True if a path between two GPUs stays in one NUMA node.

        None if the driver does not report it.
        """
        level = _figure(lambda: int(_ask("nvmlDeviceGetTopologyCommonAncestor", handle, other)))
        return None if level is None else level <= pynvml.NVML_TOPOLOGY_NODE

    def max_mig_devices(self, handle: Handle) -> int:
        """Return the most MIG devices that the GPU can have: 7, or 4 on smaller ones; 0 if it has no MIG."""
        return _figure(lambda: int(_ask("nvmlDeviceGetMaxMigDeviceCount", handle))) or 0

    def mig_handle(self, handle: Handle, index: int) -> Handle | None:
        """Return the MIG device of an index; None if there is none, and indexes in between may be empty."""
        try:
            return _ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        except DriverError as error:
            if error.code in (NvmlCode.NOT_FOUND, NvmlCode.NOT_SUPPORTED):
                return None
            raise

    def gpu_instance(self, mig_handle: Handle) -> int | None:
        """Return the GPU instance in which a MIG device lies, and whose memory the device uses."""
        return _figure(lambda: int(_ask("nvmlDeviceGetGpuInstanceId", mig_handle)))

    def compute_slices(self, mig_handle: Handle) -> int | None:
        """Return the compute slices of a MIG device."""
        return _figure(lambda: int(_ask("nvmlDeviceGetAttributes", mig_handle).computeInstanceSliceCount))

    def persistence(self, handle: Handle) -> bool | None:
        """Return True if the driver keeps the GPU awake while no program uses it."""
        mode = _figure(lambda: _ask("nvmlDeviceGetPersistenceMode", handle))
        return None if mode is None else mode != 0

    def compute_mode(self, handle: Handle) -> int | None:
        """Return the compute mode (``nvmlComputeMode_t``).

        0 is open to all programs, 2 to none, 3 to one process.
        """
        return _figure(lambda: int(_ask("nvmlDeviceGetComputeMode", handle)))

    def set_compute_mode(self, handle: Handle, mode: int) -> None:
        """Set the compute mode; for root only. The mode holds until the driver is unloaded."""
        _ask("nvmlDeviceSetComputeMode", handle, mode)

    def compute_capability(self, handle: Handle) -> tuple[int, int] | None:
        """Return major and minor, 7.0 for Volta."""
        pair = _figure(lambda: _ask("nvmlDeviceGetCudaComputeCapability", handle))
        return None if pair is None else (int(pair[0]), int(pair[1]))

    def utilization_ratio(self, handle: Handle) -> float | None:
        """Return the part of the last sample period in which some kernel ran, 0-1."""
        rates = _figure(lambda: _ask("nvmlDeviceGetUtilizationRates", handle))
        return None if rates is None else rates.gpu / 100

    def process_use(self, handle: Handle, since_us: int, attempts: int = 3) -> list[ProcessUse] | None:
        """Return the use by processes in samples after ``since_us``, without idle processes.

        Return None if the GPU does not report it, as for MIG instances.
        """
        try:
            samples = _ask("nvmlDeviceGetProcessUtilization", handle, since_us)
        except DriverError as error:
            # The binding treats a call that succeeds without samples as an error.
            if error.code in (NvmlCode.NOT_FOUND, NvmlCode.SUCCESS):
                return []
            if error.code == NvmlCode.INSUFFICIENT_SIZE and attempts > 1:
                return self.process_use(handle, since_us, attempts - 1)
            if error.code in DRIVER_AWAY | GPU_AWAY:
                raise
            return None
        return [ProcessUse(sample.pid, sample.timeStamp, _busiest(sample)) for sample in samples]

    def temperature_celsius(self, handle: Handle) -> int | None:
        sensor = pynvml.NVML_TEMPERATURE_GPU
        return _figure(
            lambda: _newest(
                lambda: int(_ask("nvmlDeviceGetTemperatureV", handle, sensor)),
                lambda: int(_ask("nvmlDeviceGetTemperature", handle, sensor)),
            )
        )

    def power_watts(self, handle: Handle) -> float | None:
        milliwatts = _figure(lambda: _ask("nvmlDeviceGetPowerUsage", handle))
        return None if milliwatts is None else milliwatts / 1000

    def energy_joules(self, handle: Handle) -> float | None:
        """Return the energy since the driver was loaded; GPUs before Volta do not count it."""
        millijoules = _figure(lambda: _ask("nvmlDeviceGetTotalEnergyConsumption", handle))
        return None if millijoules is None else millijoules / 1000

    def set_memory_limits(self, handle: Handle, cgroup: str, *, soft_bytes: int, hard_bytes: int) -> None:
        """Bound a cgroup's (full path) memory on a GPU: beyond ``hard_bytes`` allocations fail.

        ``soft_bytes`` is a guarantee. Since r615; root only, cgroup v2 only, never for MIG.
        """
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), soft_bytes, hard_bytes)
        _ask("nvmlDeviceSetMemoryLimits_v1", handle, limits)

    def memory_limits(self, handle: Handle, cgroup: str) -> tuple[int, int]:
        """Return the soft and the hard limit of a cgroup in bytes; see ``set_memory_limits``."""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup.encode())
        _ask("nvmlDeviceGetMemoryLimits_v1", handle, limits)
        return int(limits.softLimit), int(limits.hardLimit)

    def event_set(self) -> Handle:
        return _ask("nvmlEventSetCreate")

    def free_event_set(self, events: Handle) -> None:
        _ask("nvmlEventSetFree", events)

    def watch_xids(self, handle: Handle, events: Handle) -> bool:
        """Put the GPU's errors into the event set from now on; False if the driver reports none."""
        xid = pynvml.nvmlEventTypeXidCriticalError
        if not (_figure(lambda: _ask("nvmlDeviceGetSupportedEventTypes", handle)) or 0) & xid:
            return False
        try:
            _ask("nvmlDeviceRegisterEvents", handle, xid, events)
        except DriverError as error:
            if error.code in DRIVER_AWAY | GPU_AWAY:
                raise
            return False
        return True

    def next_xid(self, events: Handle) -> tuple[Handle, int] | None:
        """Return the next pending error, as the GPU's handle and its number; None if there is none."""
        try:
            event = _newest(
                lambda: _ask("nvmlEventSetWait_v2", events, 0), lambda: _ask("nvmlEventSetWait", events, 0)
            )
        except DriverError as error:
            if error.code == NvmlCode.TIMEOUT:
                return None
            raise
        return event.device, int(event.eventData)

    def processes(self, handle: Handle) -> tuple[GpuProcess, ...]:
        """Return the processes on the GPU, by host PID, each once with the largest figure of the lists.

        A process can be in several lists: MPS clients also count as compute, a desktop's as graphics too.
        """
        # The clients are read last: a client that comes in between is then no process without MPS.
        lists = {kind: _process_list(kind, handle) for kind in _PROCESS_KINDS}
        memory_by_pid: dict[int, int | None] = {}
        for process in chain.from_iterable(listed or () for listed in lists.values()):
            largest, used = memory_by_pid.get(process.pid), process.usedGpuMemory
            memory_by_pid[process.pid] = used if largest is None else max(largest, used or 0)
        compute, mps = _pids(lists["Compute"]), _pids(lists["MPSCompute"])
        return tuple(
            GpuProcess(pid, memory_bytes, _is_mps_client(pid, compute, mps))
            for pid, memory_bytes in sorted(memory_by_pid.items())
        )


def _busiest(sample: Any) -> float:
    """Return the largest of the units' percentages as a ratio.

    Drivers were seen to report wrong figures above 100.
    """
    percent = max(map(int, (sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil)))
    return min(100, percent) / 100


def _pids(listed: list[Any] | None) -> frozenset[int] | None:
    return None if listed is None else frozenset(process.pid for process in listed)


def _is_mps_client(pid: int, compute: frozenset[int] | None, mps: frozenset[int] | None) -> bool | None:
    """Return True if the process is an MPS client, False if not.

    Return None if the driver lists no clients, and for a process that only draws.
    """
    if mps is None:
        return None
    return True if pid in mps else False if pid in (compute or ()) else None


def _process_list(kind: str, handle: Handle, attempts: int = 3) -> list[Any] | None:
    """Return the driver's list of processes of a kind; None if the GPU does not report it."""
    function = f"nvmlDeviceGet{kind}RunningProcesses"
    try:
        processes: list[Any] = _newest(
            lambda: _ask(f"{function}_v3", handle), lambda: _ask(f"{function}_v2", handle)
        )
    except DriverError as error:
        if error.code in NO_FIGURE:
            return None
        # Processes came between the call for their number and the call for the list.
        if error.code == NvmlCode.INSUFFICIENT_SIZE and attempts > 1:
            return _process_list(kind, handle, attempts - 1)
        raise
    return processes


def _ask(function: str, *arguments: object) -> Any:
    call = getattr(pynvml, function, None)
    if call is None:
        raise DriverError(NvmlCode.FUNCTION_NOT_FOUND, function)
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise DriverError(error.value, function) from error
    except pynvml.NVMLLibraryMismatchError as error:
        # Wrappers of functions without a version raise this if the library lacks the newest version.
        raise DriverError(NvmlCode.FUNCTION_NOT_FOUND, function) from error


def _newest(newer: Callable[[], T], older: Callable[[], T]) -> T:
    """Return the newer function's answer, or the older one's if driver or binding lack the newer one."""
    try:
        return newer()
    except DriverError as error:
        if error.code not in OLD_DRIVER:
            raise
        return older()


def _figure(ask: Callable[[], T]) -> T | None:
    """Return an optional figure: None if it cannot be read, unless driver or GPU are away."""
    try:
        return ask()
    except DriverError as error:
        if error.code in DRIVER_AWAY | GPU_AWAY:
            raise
        return None
