"""Put NVML's return codes into words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gpushared.domain.model.errors import GpusUnavailable


class NvmlCode(IntEnum):
    """Number the codes of ``nvmlReturn_t`` (nvml.h) that are treated apart; NVML's ABI fixes the numbers."""

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
"""The driver as a whole is away: nothing holds any more, NVML has to be opened again."""

GPU_AWAY = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED})
"""One GPU is away; the others may be well."""

OLD_DRIVER = frozenset({NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.ARGUMENT_VERSION_MISMATCH, NvmlCode.DEPRECATED})
"""The library does not know the function, or not this version of it; an older function may do."""

NO_FIGURE = OLD_DRIVER | {
    # pynvml raises an error of value 0 where a call succeeds without any data.
    NvmlCode.SUCCESS,
    NvmlCode.NOT_SUPPORTED,
    NvmlCode.NO_PERMISSION,
    NvmlCode.NOT_FOUND,
    NvmlCode.NO_DATA,
    NvmlCode.NOT_READY,
}
"""This GPU does not tell this figure; the GPU itself is well."""


@dataclass(frozen=True, slots=True)
class DriverTrouble:
    """Tell what is wrong, and what to do about it."""

    message: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.message} ({self.hint})"


_TROUBLES = {
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
    """A call of NVML failed. The error stays inside this package."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {code}")
        self.code = code
        self.function = function

    @property
    def trouble(self) -> DriverTrouble:
        known = _TROUBLES.get(NvmlCode(self.code)) if self.code in list(NvmlCode) else None
        return known or DriverTrouble(
            f"The NVIDIA driver answered {self.function} with error {self.code}",
            "`dmesg` may tell why (NVRM, Xid); see also `nvidia-smi`",
        )


def unavailable(error: DriverError) -> GpusUnavailable:
    """Return the error for callers when no GPU can be asked at all."""
    trouble = error.trouble
    return GpusUnavailable(trouble.message, hint=trouble.hint)
