"""Read the MIG instances of GPUs as the driver lists them, and how much GPU memory may be leased.

MIG splits a GPU into GPU instances, which have memory of their own, and these into compute instances, which
NVML calls MIG devices and programs use. Sources: NVIDIA's MIG User Guide and its NVML reference (Multi
Instance GPU Management).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE, GpuId, MigInstance
from gpushared.gpus.nvml_driver import Handle, NvmlDriver

MEMORY_SLICES = 8
"""A profile's memory is counted in at most this many equal parts, on every GPU with MIG."""

_SHARED = (
    "The MIG instance shares its memory with others of the same GPU instance, so that nothing holds a lease "
    "to its part (make one compute instance for each GPU instance: `nvidia-smi mig -cgi PROFILE -C`)"
)


def no_instances(gpu_index: int) -> str:
    """Return a sentence on a GPU in MIG mode without instances."""
    return (
        f"MIG is on, but there are no instances to use (`nvidia-smi mig -i {gpu_index} -lgip` lists the "
        f"profiles, `nvidia-smi mig -i {gpu_index} -cgi PROFILE -C` makes one; "
        f"`nvidia-smi -i {gpu_index} -mig 0` ends MIG)"
    )


@dataclass(frozen=True, slots=True)
class Instance:
    """Describe a MIG instance; ``handle`` is None and ``trouble`` set if it does not answer.

    An instance with a handle and a trouble can be looked at, but not be leased.
    """

    id: GpuId
    name: str
    mig: MigInstance
    gpu_instance: int | None
    handle: Handle | None = None
    trouble: str | None = None


class MigInstances:
    """Find the instances of GPUs anew with every look; raises ``DriverError``."""

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._seen: dict[GpuId, dict[GpuId, Instance]] = {}

    def look(self, gpu: GpuId, handle: Handle, *, split: bool) -> tuple[Instance, ...]:
        """Return the instances of a GPU, by their index there."""
        listed = self._list(handle, self._seen.get(gpu, {})) if split else ()
        self._seen[gpu] = {instance.id: instance for instance in listed}
        return listed

    def lost(self, gpu: GpuId, trouble: str) -> tuple[Instance, ...]:
        """Return the known instances of a GPU that does not answer now."""
        instances = self._seen.get(gpu, {}).values()
        return tuple(replace(instance, handle=None, trouble=trouble) for instance in instances)

    def _list(self, gpu: Handle, seen: dict[GpuId, Instance]) -> tuple[Instance, ...]:
        count = self._driver.max_mig_devices(gpu)
        handles = [(index, self._driver.mig_handle(gpu, index)) for index in range(count)]
        instances = [
            self._identify(gpu, handle, index, count, seen) for index, handle in handles if handle is not None
        ]
        crowd = Counter(instance.gpu_instance for instance in instances)
        return tuple(
            replace(instance, trouble=_SHARED if _shares_memory(instance, crowd) else None)
            for instance in instances
        )

    def _identify(
        self, gpu: Handle, handle: Handle, index: int, count: int, seen: dict[GpuId, Instance]
    ) -> Instance:
        """Describe an instance; its fixed facts are read once, because only its index and its handle change."""
        uuid = GpuId(self._driver.uuid(handle))
        old = seen.get(uuid)
        if old is not None:
            return replace(old, mig=replace(old.mig, index=index), handle=handle)
        name = self._driver.name(handle)
        slices = self._driver.compute_slices(handle)
        mig = MigInstance(
            index=index,
            profile=name.rpartition(" MIG ")[2],
            memory_permille=self._memory_permille(gpu, handle),
            compute_permille=0 if slices is None else min(slices, count) * WHOLE_PERMILLE // max(1, count),
        )
        return Instance(uuid, name, mig, self._driver.gpu_instance(handle), handle)

    def _memory_permille(self, gpu: Handle, handle: Handle) -> int:
        """Return the share of the GPU's memory, by slices.

        The bytes fall short of the slices by the driver's part on each instance.
        """
        whole, part = self._driver.memory(gpu), self._driver.memory(handle)
        if whole is None or part is None:
            return 0
        slices = -(-part.total_bytes * MEMORY_SLICES // whole.total_bytes)
        return min(slices, MEMORY_SLICES) * WHOLE_PERMILLE // MEMORY_SLICES


def _shares_memory(instance: Instance, crowd: Counter[int | None]) -> bool:
    return instance.gpu_instance is not None and crowd[instance.gpu_instance] > 1


MPS_RESERVE_BYTES = 300 * MIB
"""An MPS server itself may hold this much on a GPU: an estimate on the safe side, not a measured figure. The
true figure depends on driver and GPU; a caller who measures it passes it to the adapter's constructor."""


def leasable_bytes(total_bytes: int, reserved_bytes: int, mps_reserve_bytes: int) -> int:
    """Return the total less the driver's and an MPS server's part, rounded down to whole MiB, at least 0."""
    return max(0, total_bytes - reserved_bytes - mps_reserve_bytes) // MIB * MIB
