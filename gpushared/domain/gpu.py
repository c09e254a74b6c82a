"""A GPU as the rules see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

GpuId = NewType("GpuId", str)
"""NVML's UUID, such as ``GPU-8f6d...``; never an index, because indices change between tools and boots."""

MIB = 1024 * 1024
WHOLE_PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this node.

    ``leasable_bytes`` is the total less what the driver and an MPS server hold, rounded down to whole MiB;
    shares are shares of it. ``trouble`` is a sentence when the GPU must not get new leases, else None.
    """

    id: GpuId
    index: int
    name: str
    memory_total_bytes: int
    leasable_bytes: int
    trouble: str | None = None
    parent: GpuId | None = None
    """The GPU of which this is a MIG instance; None for a GPU. Both have the same index."""

    def memory_of_share(self, permille: int) -> int:
        """Bytes of a share of this GPU, rounded down to whole MiB."""
        return self.leasable_bytes * permille // WHOLE_PERMILLE // MIB * MIB

    def share_of_memory(self, memory_bytes: int) -> int:
        """The share (permille, rounded down, at least 1) that stands beside so much memory.

        Rounded down, so that three thirds of a GPU's memory fit on it.
        """
        if self.leasable_bytes <= 0:
            return WHOLE_PERMILLE
        return max(1, memory_bytes * WHOLE_PERMILLE // self.leasable_bytes)
