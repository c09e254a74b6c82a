"""Hold the part of a request that placement reads: equal requests are one kind, decided alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.demand_profile import Size
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity, need_on, refuse

Kind = tuple[object, ...]
"""Kinds are equal for requests that fit on the same hosts and score the same there."""


def kind_of(request: Request) -> Kind:
    """Return the part of a request that decides where it fits.

    The user, the time limit and the leases near the request are left out.
    """
    return (
        request.gpu_count,
        request.compute_permille,
        request.memory_bytes,
        request.memory_permille,
        request.isolation.value,
        request.gpus,
        request.models,
        request.host_cpu_milli,
        request.host_memory_bytes,
    )


@dataclass(slots=True, eq=False)
class Need:
    """Describe one kind of request, with its part of a GPU of each size."""

    request: Request
    count: int
    cpu_milli: int
    memory_bytes: int
    models: frozenset[str]
    whole: bool
    plain: bool
    """True for a slice of any GPU: two numbers tell if an ordinary GPU can take its part."""
    least_permille: int
    """No GPU with less free compute than this can take its part."""
    _sizes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> Need:
        plain = not request.gpus and not request.wants_whole_gpus
        return cls(
            request,
            len(request.gpus) or request.gpu_count,
            request.host_cpu_milli or 0,
            request.host_memory_bytes or 0,
            frozenset(request.models),
            request.wants_whole_gpus,
            plain,
            (request.compute_permille or 0) if plain and request.gpu_count else 0,
        )

    def on(self, gpu: Gpu) -> tuple[int, int]:
        """Return the memory bytes and compute permille that the request takes of such a GPU."""
        size = self._sizes.get(gpu.leasable_bytes)
        if size is None:
            grant = need_on(self.request, gpu)
            size = self._sizes[gpu.leasable_bytes] = (grant.memory_bytes, grant.compute_permille)
        return size

    def fits(self, capacity: FreeCapacity) -> bool:
        """Return True if the GPU can take its part.

        ``free_capacity.refuse`` is the rule; the code below it is the rule's common case.
        """
        gpu = capacity.gpu
        if (self.models and gpu.name not in self.models) or (self.whole and capacity.leases):
            return False
        if not self.plain or gpu.exclusive_process or gpu.split or gpu.parent is not None:
            return refuse(self.request, capacity) is None
        if capacity.exclusive or gpu.trouble is not None:
            return False
        memory, permille = self.on(gpu)
        return 0 < memory <= capacity.free_bytes and permille <= capacity.free_permille

    @property
    def permille(self) -> int:
        """Return the request's size on one GPU, the same on all; the demand profile counts it."""
        if self.whole:
            return WHOLE_PERMILLE
        share = max(self.request.compute_permille or 0, self.request.memory_permille or 0)
        return share or max((size[1] for size in self._sizes.values()), default=WHOLE_PERMILLE)

    @property
    def pinned(self) -> tuple[GpuId, ...]:
        return self.request.gpus


def size_of(request: Request, gpus: Iterable[Gpu] = ()) -> Size | None:
    """Return the size of such a request for the demand profile; None for a request without GPUs.

    ``gpus``: a size in bytes is a share of the smallest of these.
    """
    need = Need.of(request)
    if need.count == 0:
        return None
    for gpu in gpus:
        if gpu.leasable_bytes > 0:
            need.on(gpu)
    permille = min(need.permille, WHOLE_PERMILLE)
    parts = need.count * permille or WHOLE_PERMILLE
    cpu, memory = need.cpu_milli * WHOLE_PERMILLE, need.memory_bytes * WHOLE_PERMILLE
    return Size(need.count, permille, cpu / parts, memory / parts, need.models)
