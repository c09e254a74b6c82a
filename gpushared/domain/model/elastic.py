"""Size elastic requests: the least that will do, and as much more as there is room for.

Every decision whether and when a request may start uses its least size, which every request has. The request
grows only when it starts, into room that is free and kept for no other request. All GPUs of a lease get the
same size, because the processes of one program mostly run at the pace of the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import Grant
from gpushared.domain.model.request import Request

Place = Callable[[Request], tuple[Grant, ...]]
"""Return the grants for a request of one size; empty if the node has no room for that size."""


class _Side(NamedTuple):
    """Hold a figure that may grow from ``low`` to ``high``; ``sized`` puts the figure into a request."""

    low: int
    high: int
    sized: Callable[[Request, int], Request]


def is_elastic(request: Request) -> bool:
    """Return True if the request leaves a choice of sizes."""
    return any(True for _ in _sides(request))


def least(request: Request) -> Request:
    """Return the same request for its smallest size, and no other."""
    request = replace(request, max_memory_bytes=None, max_memory_permille=None)
    return replace(request, max_gpu_count=None, max_compute_permille=None)


def most(request: Request) -> Request:
    """Return the same request for its largest size, which may be more than any GPU has."""
    top = least(request)
    for side in _sides(request):
        top = side.sized(top, side.high)
    return top


def largest(request: Request, place: Place) -> tuple[Grant, ...]:
    """Return the grants for the largest size that has room; empty if even the least has none.

    ``place`` is called about a dozen times. If one size has room, every smaller size must have room. If
    memory and compute grow separately, memory grows first.
    """
    chosen = least(request)
    grants = place(chosen)
    for side in _sides(request) if grants else ():
        chosen, grants = _grow(chosen, grants, side, place)
    return grants


def as_held(request: Request, grants: tuple[Grant, ...]) -> Request:
    """Return the request for exactly these parts of these GPUs."""
    gpus = tuple(grant.gpu for grant in grants)
    request = replace(least(request), gpus=gpus, gpu_count=len(gpus) or request.gpu_count)
    if request.wants_whole_gpus or not grants:
        return request
    memories = {grant.memory_bytes for grant in grants}
    computes = {grant.compute_permille for grant in grants}
    by_share = len(memories) > 1 and request.memory_permille == request.compute_permille
    return replace(
        request,
        # If GPUs of several models gave the same share or the same memory, the other figure differs.
        compute_permille=max(computes) if len(computes) == 1 else request.compute_permille,
        compute_limit_permille=grants[0].compute_limit_permille or None,
        memory_bytes=None if by_share else max(memories),
        memory_permille=max(computes) if by_share else None,
    )


def _grow(
    chosen: Request, grants: tuple[Grant, ...], side: _Side, place: Place
) -> tuple[Request, tuple[Grant, ...]]:
    """Find the largest figure that has room, by halving the range.

    The upper end is tried first, because often all of the range has room.
    """
    low, high = side.low, side.high
    tried = high
    while low < high:
        larger = side.sized(chosen, tried)
        larger_grants = place(larger)
        if larger_grants:
            grants, low = larger_grants, tried
        else:
            high = tried - 1
        tried = (low + high + 1) // 2
    return side.sized(chosen, low), grants


def _sides(request: Request) -> Iterator[_Side]:
    if request.max_gpu_count is not None:
        yield _Side(request.gpu_count, request.max_gpu_count, _with_count)
    if _is_one_share(request):
        yield _Side(request.compute_permille or 0, request.max_compute_permille or 0, _with_share)
        return
    if request.memory_bytes is not None and request.max_memory_bytes is not None:
        yield _Side(request.memory_bytes // MIB, request.max_memory_bytes // MIB, _with_mib)
    if request.memory_permille is not None and request.max_memory_permille is not None:
        yield _Side(request.memory_permille, request.max_memory_permille, _with_memory_share)
    if request.compute_permille is not None and request.max_compute_permille is not None:
        yield _Side(request.compute_permille, request.max_compute_permille, _with_compute)


def _is_one_share(request: Request) -> bool:
    """Return True if memory and compute grow together, as in ``0.25..1``."""
    low, high = request.memory_permille, request.max_memory_permille
    ranges = low is not None and high is not None
    return ranges and (low, high) == (request.compute_permille, request.max_compute_permille)


def _with_count(request: Request, count: int) -> Request:
    return replace(request, gpu_count=count)


def _with_share(request: Request, permille: int) -> Request:
    return replace(request, compute_permille=permille, memory_permille=permille)


def _with_mib(request: Request, mib: int) -> Request:
    return replace(request, memory_bytes=mib * MIB)


def _with_memory_share(request: Request, permille: int) -> Request:
    return replace(request, memory_permille=permille)


def _with_compute(request: Request, permille: int) -> Request:
    return replace(request, compute_permille=permille)
