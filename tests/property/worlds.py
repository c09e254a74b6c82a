"""Small worlds for the property tests: GPUs, requests, callers."""

from __future__ import annotations

from hypothesis import strategies as st

from gpushared.domain.gpu import MIB, Gpu, GpuId
from gpushared.domain.request import Caller, Isolation, Request

GIB = 1024 * MIB
SIZES_MIB = (81079, 24000, 16000, 7777)
"""Leasable memory; odd figures, so that rounding to whole MiB matters."""

CALLERS = (
    Caller(0, 0, "root", trusted=True),
    Caller(1000, 1000, "alice"),
    Caller(1001, 1001, "bob"),
)


def gpu(index: int, leasable_mib: int, trouble: str | None = None) -> Gpu:
    return Gpu(GpuId(f"GPU-{index}"), index, "H100", (leasable_mib + 500) * MIB, leasable_mib * MIB, trouble)


def gpu_sets(most: int = 4) -> st.SearchStrategy[tuple[Gpu, ...]]:
    sizes = st.lists(st.sampled_from(SIZES_MIB), min_size=1, max_size=most)
    return sizes.map(lambda chosen: tuple(gpu(index, size) for index, size in enumerate(chosen)))


LIMITS = st.sampled_from((None, None, 30, 300, 3600))
_SHARES = st.sampled_from((10, 100, 250, 333, 500, 700, 1000))
_BYTES = st.sampled_from((MIB, 2 * GIB, 7 * GIB, 20 * GIB, 60 * GIB))
_COUNTS = st.integers(1, 4)

_BESIDE_OTHERS = st.sampled_from((Isolation.SHARED, Isolation.SHARED, Isolation.SEPARATE))

SLICES = st.builds(
    lambda count, share, isolation, limit: Request(
        count, share, None, share, isolation=isolation, time_limit_seconds=limit
    ),
    st.sampled_from((1, 1, 1, 2, 3)),
    _SHARES,
    _BESIDE_OTHERS,
    LIMITS,
)
MEMORY_ONLY = st.builds(
    lambda count, size, limit: Request(count, None, size, time_limit_seconds=limit), _COUNTS, _BYTES, LIMITS
)
COMPUTE_BESIDE = st.builds(
    lambda share, memory, limit: Request(1, share, memory, time_limit_seconds=limit), _SHARES, _BYTES, LIMITS
)
WHOLE = st.builds(
    lambda count, limit: Request(
        count, 1000, None, 1000, isolation=Isolation.EXCLUSIVE, time_limit_seconds=limit
    ),
    _COUNTS,
    LIMITS,
)
PINNED = st.builds(
    lambda index, share: Request(1, share, None, share, gpus=(GpuId(f"GPU-{index}"),)),
    st.integers(0, 3),
    _SHARES,
)
REQUESTS = st.one_of(SLICES, SLICES, MEMORY_ONLY, COMPUTE_BESIDE, WHOLE, PINNED)
