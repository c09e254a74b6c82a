"""A GPU as the rules see it."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import NewType

from gpushared.domain.errors import Unavailable

GpuId = NewType("GpuId", str)
"""NVML's UUID, such as ``GPU-8f6d...``; never an index, because indices change between tools and boots."""

MIB = 1024 * 1024
WHOLE_PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class MigInstance:
    """What a MIG instance is of its GPU.

    ``index``: its place there, which changes when others come and go. ``profile``: such as ``1g.10gb``. The
    shares are permille of the GPU's memory and compute, 0 where the driver does not tell.
    """

    index: int
    profile: str
    memory_permille: int
    compute_permille: int


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
    mig: MigInstance | None = None
    """What it is of its parent; None for a GPU."""
    exclusive_process: bool = False
    """While it is shared it takes one MPS server and nothing else, as the configuration wants it."""
    split: bool = False
    """MIG is on: programs find its instances, which are listed after it, and never the GPU itself."""
    link_group: int | None = None
    """GPUs of one group reach each other fast: by NVLink, else on one NUMA node. None where nobody tells."""

    @property
    def label(self) -> str:
        """How people name it: ``0``, and ``0:1`` for an instance, as NVIDIA's container tools do."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig.index}"

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


@dataclass(frozen=True, slots=True)
class Drained:
    """Why a GPU gets no new leases until somebody undrains it, since when, and by whom.

    ``sick``: the node found that it must not be used, so that leases there end too; else an admin's wish.
    ``reason`` of a sick GPU is what it did, as in "GPU 1 fell off the bus"; an admin's is the admin's.
    """

    reason: str
    since: float
    by: str
    sick: bool = False

    @property
    def trouble(self) -> str:
        """What is to be said of the GPU: ``fell off the bus``, ``is drained by root: new fan``."""
        return self.reason if self.sick else f"is drained by {self.by}: {self.reason}"


def drained_among(drained: Mapping[GpuId, Drained], gpu_id: GpuId, parent: GpuId | None) -> Drained | None:
    """The drain that holds for a GPU: its own, or that of the GPU of which it is a part."""
    return drained.get(gpu_id) or (drained.get(parent) if parent is not None else None)


def check_any(gpus: Sized) -> None:
    """Raises Unavailable while the driver has told of no GPU: then nothing can be said of any."""
    if not gpus:
        raise Unavailable("this node knows no GPU at the moment", hint="`gpushare gpus` says why")
