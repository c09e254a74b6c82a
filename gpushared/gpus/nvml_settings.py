"""Set over NVML the driver's limit on a cgroup's GPU memory (r615 and later), and compute modes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_driver import NO_MEMORY_LIMIT, OLD_DRIVER, DriverError, Handle, NvmlCode, NvmlDriver

CGROUP_ROOT = Path("/sys/fs/cgroup")
"""The driver expects cgroup v2 at this path."""
TRIAL_CGROUP = "gpushare-trial"
TRIAL_BYTES = 2**30

_NO_LIMITS: Mapping[int, str] = {
    **dict.fromkeys(OLD_DRIVER, "the driver has no memory limits for cgroups (release 615 brings them)"),
    NvmlCode.NO_PERMISSION: "the driver sets memory limits for root only",
    NvmlCode.NOT_SUPPORTED: "the driver does not support memory limits on this machine",
}


class NvmlMemoryLimits:
    """Implement the ``MemoryLimiter`` port on the GPUs of an ``NvmlGpus``, whose thread makes the calls.

    The soft limit is always 0. A soft limit is a guarantee, which the cgroup's ancestors would go on keeping
    free if the cgroup went with one; a hard limit alone binds nothing but the cgroup.
    """

    def __init__(self, gpus: NvmlGpus, *, cgroup_root: Path = CGROUP_ROOT) -> None:
        self._gpus = gpus
        self._cgroup_root = cgroup_root

    async def memory_limits_trouble(self) -> str | None:
        """Try to set a limit on a cgroup made for the trial, on the first GPU without MIG.

        The result names the first missing part, in the order in which an admin would fix them.
        """
        if not (self._cgroup_root / "cgroup.controllers").is_file():
            return f"{self._cgroup_root} is not cgroup v2, which the driver needs"
        if os.geteuid() != 0:
            return _NO_LIMITS[NvmlCode.NO_PERMISSION]
        facts = await self._gpus.describe()
        usable = [gpu.gpu for gpu in facts.gpus if gpu.trouble is None]
        whole = [gpu.gpu for gpu in facts.gpus if gpu.trouble is None and not gpu.mig]
        if not usable:
            raise GpusUnavailable("there is no GPU to try memory limits on")
        if not whole:
            return "every GPU is split by MIG, where the driver sets no memory limits"
        return await self._gpus.on_gpu(whole[0], self._try)

    async def limit_memory(self, gpu: GpuId, cgroup: str, limit_bytes: int) -> None:
        """Set a limit; see the port.

        Raises ``GpusUnavailable`` also if the driver then reports another limit.
        """
        await self._gpus.on_gpu(gpu, lambda driver, handle: _limit(driver, handle, cgroup, limit_bytes))

    async def release_memory(self, gpu: GpuId, cgroup: str) -> None:
        await self._gpus.on_gpu(gpu, lambda driver, handle: _set(driver, handle, cgroup, NO_MEMORY_LIMIT))

    def _try(self, driver: NvmlDriver, handle: Handle) -> str | None:
        """Return why no limit can be set; None if a limit held and could be taken off."""
        try:
            with self._scratch_cgroup() as cgroup:
                _limit(driver, handle, cgroup, TRIAL_BYTES)
                _set(driver, handle, cgroup, NO_MEMORY_LIMIT)
        except DriverError as error:
            return _NO_LIMITS.get(error.code, error.trouble.sentence)
        except GpusUnavailable as error:
            return str(error)
        except OSError as error:
            return f"no cgroup can be made below {self._cgroup_root}: {error.strerror}"
        return None

    @contextlib.contextmanager
    def _scratch_cgroup(self) -> Iterator[str]:
        path = self._cgroup_root / TRIAL_CGROUP
        path.mkdir(exist_ok=True)
        try:
            yield str(path)
        finally:
            with contextlib.suppress(OSError):
                path.rmdir()


def _set(driver: NvmlDriver, handle: Handle, cgroup: str, hard_bytes: int) -> None:
    driver.set_memory_limits(handle, cgroup, soft_bytes=0, hard_bytes=hard_bytes)


def _limit(driver: NvmlDriver, handle: Handle, cgroup: str, limit_bytes: int) -> None:
    _set(driver, handle, cgroup, limit_bytes)
    soft, hard = driver.memory_limits(handle, cgroup)
    if (soft, hard) != (0, limit_bytes):
        raise GpusUnavailable(
            f"the driver keeps {cgroup} to {hard} bytes of GPU memory instead of {limit_bytes}",
            hint="somebody else may be setting limits (`nvidia-smi memory-limits`)",
        )


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
