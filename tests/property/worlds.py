"""Small worlds for the property tests: GPUs, requests, callers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from gpushared.domain.model.gpu import (
    MIB,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.domain.model.request import Caller, Isolation, Request

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


def instance(index: int, place: int, slices: int, trouble: str | None = None) -> Gpu:
    """A MIG instance with so many eighths of the memory and sevenths of the compute of GPU ``index``."""
    leasable = slices * 9777 * MIB
    mig = MigInstance(place, f"{slices}g", slices * 1000 // 8, slices * 1000 // 7)
    identity, parent = GpuId(f"MIG-{index}-{place}"), GpuId(f"GPU-{index}")
    return Gpu(identity, index, "H100 MIG", leasable, leasable, trouble, parent=parent, mig=mig)


def _units(index: int, size: int | tuple[int, ...]) -> list[Gpu]:
    """A GPU of so many MiB, or one that is split into instances of so many slices."""
    if isinstance(size, int):
        return [gpu(index, size)]
    parent = replace(gpu(index, 80_000), leasable_bytes=0, split=True)
    return [parent, *(instance(index, place, slices) for place, slices in enumerate(size))]


_WAYS = st.one_of(
    st.sampled_from(SIZES_MIB), st.sampled_from(SIZES_MIB), st.sampled_from(((1, 1, 3), (2, 3), (7,), ()))
)


def gpu_sets(most: int = 4) -> st.SearchStrategy[tuple[Gpu, ...]]:
    sizes = st.lists(_WAYS, min_size=1, max_size=most)
    return sizes.map(lambda chosen: tuple(one for at, size in enumerate(chosen) for one in _units(at, size)))


LIMITS = st.sampled_from((None, None, 30, 300, 3600))
_SHARES = st.sampled_from((10, 100, 250, 333, 500, 700, 1000))
_BYTES = st.sampled_from((MIB, 2 * GIB, 7 * GIB, 20 * GIB, 60 * GIB))
_COUNTS = st.integers(1, 4)

_BESIDE_OTHERS = st.sampled_from((Isolation.SHARED, Isolation.SHARED, Isolation.SEPARATE))

SLICES = st.builds(
    lambda count, share, isolation, limit, again: Request(
        count, share, None, share, isolation=isolation, time_limit_seconds=limit, restart_on_fault=again
    ),
    st.sampled_from((1, 1, 1, 2, 3)),
    _SHARES,
    _BESIDE_OTHERS,
    LIMITS,
    st.sampled_from((0, 0, 2)),
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
INSTANCES = st.builds(
    lambda count, memory, share, limit: Request(
        count, share, memory, None if memory else share, isolation=Isolation.MIG, time_limit_seconds=limit
    ),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from((None, None, 7 * GIB, 20 * GIB)),
    st.sampled_from((None, None, 125, 250, 500)),
    LIMITS,
)
_ENDS = st.sampled_from(((10, 1000), (100, 333), (250, 500), (500, 1000)))
SHARE_RANGES = st.builds(
    lambda count, ends, isolation, limit: Request(
        count,
        ends[0],
        None,
        ends[0],
        isolation=isolation,
        time_limit_seconds=limit,
        max_compute_permille=ends[1],
        max_memory_permille=ends[1],
    ),
    st.sampled_from((1, 1, 2)),
    _ENDS,
    _BESIDE_OTHERS,
    LIMITS,
)
MEMORY_RANGES = st.builds(
    lambda count, share, ends, limit: Request(
        count, share, ends[0], time_limit_seconds=limit, max_memory_bytes=ends[1]
    ),
    st.sampled_from((1, 1, 2)),
    st.sampled_from((None, None, 100, 500)),
    st.sampled_from(((MIB, 2 * GIB), (2 * GIB, 20 * GIB), (7 * GIB, 500 * GIB))),
    LIMITS,
)
RANGES_OF_BOTH = st.builds(
    lambda shares, limit: Request(
        1,
        shares[0],
        2 * GIB,
        time_limit_seconds=limit,
        max_compute_permille=shares[1],
        max_memory_bytes=20 * GIB,
    ),
    _ENDS,
    LIMITS,
)
BURSTS = st.builds(
    lambda share, limit: Request(
        1, share, None, share, time_limit_seconds=limit, compute_limit_permille=1000
    ),
    _SHARES.filter(lambda share: share < 1000),
    LIMITS,
)
COUNT_RANGES = st.builds(
    lambda least, more, limit: Request(
        least,
        1000,
        None,
        1000,
        isolation=Isolation.EXCLUSIVE,
        time_limit_seconds=limit,
        max_gpu_count=least + more,
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    LIMITS,
)
ELASTIC = st.one_of(SHARE_RANGES, SHARE_RANGES, MEMORY_RANGES, RANGES_OF_BOTH, COUNT_RANGES)
REQUESTS = st.one_of(
    SLICES, SLICES, MEMORY_ONLY, COMPUTE_BESIDE, WHOLE, PINNED, INSTANCES, BURSTS, ELASTIC, ELASTIC
)
