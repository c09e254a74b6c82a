"""Tell the least and the most that an elastic lease may have; a fixed lease has exactly its grant."""

from __future__ import annotations

from gpushared.domain.elastic import is_elastic, least, most
from gpushared.domain.gpu import Gpu
from gpushared.domain.lease import Grant
from gpushared.domain.placement import need_on
from gpushared.domain.request import Request


def bounds(request: Request, grant: Grant, gpu: Gpu) -> tuple[Grant, Grant]:
    """Return the least and the most that the request may have of this GPU, on which it has a grant."""
    if request.wants_whole_gpus or not is_elastic(request):
        return grant, grant
    low, high = need_on(least(request), gpu), need_on(most(request), gpu)
    return (
        Grant(
            grant.gpu,
            min(low.memory_bytes, grant.memory_bytes),
            min(low.compute_permille, grant.compute_permille),
        ),
        Grant(
            grant.gpu,
            max(min(high.memory_bytes, gpu.leasable_bytes), grant.memory_bytes),
            max(high.compute_permille, grant.compute_permille),
        ),
    )


def count_bounds(request: Request) -> tuple[int, int]:
    """Return the least and the most GPUs that the request may have."""
    low = len(request.gpus) or request.gpu_count
    return low, max(low, request.max_gpu_count or 0)
