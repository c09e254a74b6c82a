"""Count parts of GPUs for quotas, limits and fair share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant

Sizes = Mapping[str, int]
"""The value is permille of a GPU, the key the model."""


class GpuLookup(Protocol):
    """Know GPUs by their ids."""

    def gpu(self, gpu: GpuId) -> Gpu:
        """Return a GPU by its id; KeyError if the GPU is unknown."""


def permille_on(grant: Grant, gpu: Gpu) -> int:
    """Return the grant's share of the memory or of the compute, whichever is larger, in permille of a GPU."""
    if gpu.mig is not None:
        return max(gpu.mig.memory_permille, gpu.mig.compute_permille)
    memory = -(-grant.memory_bytes * WHOLE_PERMILLE // max(1, gpu.leasable_bytes))
    return min(WHOLE_PERMILLE, max(grant.compute_permille, memory))


def permille_of(grants: Iterable[Grant], gpus: Mapping[GpuId, Gpu]) -> int:
    """Return the size of the grants together. A GPU that is not here any more counts by its compute."""
    return sum(
        permille_on(grant, gpus[grant.gpu]) if grant.gpu in gpus else grant.compute_permille
        for grant in grants
    )


def sizes_of(grants: Sequence[Grant], lookup: GpuLookup) -> Sizes:
    """Return the sizes of the grants. A GPU that is not here any more counts by its compute."""
    sizes: dict[str, int] = {}
    if len(grants) == 1:
        try:
            gpu = lookup.gpu(grants[0].gpu)
        except KeyError:
            return _alone("", grants[0].compute_permille)
        return _alone(gpu.name, permille_on(grants[0], gpu))
    for grant in grants:
        try:
            gpu = lookup.gpu(grant.gpu)
        except KeyError:
            model, size = "", grant.compute_permille
        else:
            model, size = gpu.name, permille_on(grant, gpu)
        sizes[model] = sizes.get(model, 0) + size
    return sizes


@lru_cache(maxsize=4096)
def _alone(model: str, size: int) -> Sizes:
    """Cache the sizes of one GPU: most leases have one GPU, and most of those one of few sizes."""
    return MappingProxyType({model: size})
