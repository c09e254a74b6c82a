"""Describe a GPU as the rules see it."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import NewType

from gpushared.domain.model.errors import Unavailable

GpuId = NewType("GpuId", str)
"""The id is NVML's UUID, such as ``GPU-8f6d...``, never an index: indices change between tools and boots."""

MIB = 1024 * 1024
WHOLE_PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Describe a MIG instance as a part of its GPU.

    ``index`` is the instance's place on the GPU, which changes when other instances come and go. ``profile``
    is a name such as ``1g.10gb``. The shares are permille of the GPU's memory and compute, 0 if the driver
    does not report them.
    """

    index: int
    profile: str
    memory_permille: int
    compute_permille: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """Describe one GPU of this node.

    ``leasable_bytes`` is the total less the memory that the driver and an MPS server hold, rounded down to
    whole MiB; shares are shares of it. ``trouble`` is a sentence if the GPU must not get new leases, else
    None.
    """

    id: GpuId
    index: int
    name: str
    memory_total_bytes: int
    leasable_bytes: int
    trouble: str | None = None
    parent: GpuId | None = None
    """The GPU of which this one is a MIG instance; None for a whole GPU. Both have the same index."""
    mig: MigInstance | None = None
    """The instance's part of its parent GPU; None for a whole GPU."""
    exclusive_process: bool = False
    """The configured compute mode lets a shared GPU take one MPS server and nothing else."""
    split: bool = False
    """MIG is on: programs find the GPU's instances, which are listed after the GPU, and never the GPU
    itself."""
    link_group: int | None = None
    """GPUs of one group reach each other fast: by NVLink, else on one NUMA node. None if the group is
    unknown."""

    @property
    def label(self) -> str:
        """Return the GPU's name for people: ``0``, or ``0:1`` for an instance, as NVIDIA's tools write it."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig.index}"

    def memory_of_share(self, permille: int) -> int:
        """Return the bytes of a share of this GPU, rounded down to whole MiB."""
        return self.leasable_bytes * permille // WHOLE_PERMILLE // MIB * MIB

    def share_of_memory(self, memory_bytes: int) -> int:
        """Return the share for this much memory: in permille, rounded down, at least 1.

        Rounding down lets three thirds of a GPU's memory fit on the GPU.
        """
        if self.leasable_bytes <= 0:
            return WHOLE_PERMILLE
        return max(1, memory_bytes * WHOLE_PERMILLE // self.leasable_bytes)


@dataclass(frozen=True, slots=True)
class Drained:
    """Record why a GPU gets no new leases until an admin undrains it, since when, and who drained it.

    ``sick``: the node found that the GPU must not be used, so its leases end too; else an admin asked for the
    drain. The ``reason`` of a sick GPU is its failure, as in "GPU 1 fell off the bus"; an admin's drain has
    the admin's words.
    """

    reason: str
    since: float
    by: str
    sick: bool = False

    @property
    def trouble(self) -> str:
        """Return the words about the GPU: ``fell off the bus``, ``is drained by root: new fan``."""
        return self.reason if self.sick else f"is drained by {self.by}: {self.reason}"


def gpu_label(gpu_id: GpuId, gpus: Mapping[GpuId, Gpu]) -> str:
    """Return the GPU's label, or its id if the GPU is not known now."""
    return gpus[gpu_id].label if gpu_id in gpus else gpu_id


def describe_gpu(gpu_id: GpuId, gpus: Mapping[GpuId, Gpu]) -> str:
    """Return ``GPU 0``, or only the id if the GPU is not known now."""
    return f"GPU {gpus[gpu_id].label}" if gpu_id in gpus else gpu_id


def drained_among(drained: Mapping[GpuId, Drained], gpu_id: GpuId, parent: GpuId | None) -> Drained | None:
    """Return the drain that applies to a GPU: its own, or that of the GPU of which it is a part."""
    return drained.get(gpu_id) or (drained.get(parent) if parent is not None else None)


def check_any(gpus: Sized) -> None:
    """Raise Unavailable while the driver has reported no GPU.

    Without a GPU no answer about any GPU is possible.
    """
    if not gpus:
        raise Unavailable("this node knows no GPU at the moment", hint="`gpushare gpus` says why")
