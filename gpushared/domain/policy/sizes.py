"""What a part of a GPU counts for in quotas, limits and fair share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpushared.domain.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.lease import Grant


def permille_on(grant: Grant, gpu: Gpu) -> int:
    """Its share of the memory or of the compute, whichever is larger, in permille of a GPU."""
    if gpu.mig is not None:
        return max(gpu.mig.memory_permille, gpu.mig.compute_permille)
    memory = -(-grant.memory_bytes * WHOLE_PERMILLE // max(1, gpu.leasable_bytes))
    return min(WHOLE_PERMILLE, max(grant.compute_permille, memory))


def permille_of(grants: Iterable[Grant], gpus: Mapping[GpuId, Gpu]) -> int:
    """What grants count for together. A GPU that is not here any more counts by its compute."""
    return sum(
        permille_on(grant, gpus[grant.gpu]) if grant.gpu in gpus else grant.compute_permille
        for grant in grants
    )
