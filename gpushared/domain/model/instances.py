"""Lease MIG instances as a whole, each with the memory and the compute that it was made with.

The admin makes and destroys the instances. Requests of isolation ``mig`` get only instances, all other
requests get only GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.model.units import format_memory, format_share


def wants_instances(request: Request) -> bool:
    return request.isolation is Isolation.MIG


def wrong_kind(request: Request, gpu: Gpu) -> str | None:
    """Return why the request is not for such a GPU at all, or None."""
    if wants_instances(request):
        return None if gpu.parent is not None else "is no MIG instance"
    if gpu.parent is not None:
        return "is a MIG instance, which only --isolation mig asks for"
    return "is split by MIG, and only --isolation mig asks for its instances" if gpu.split else None


def of_kind(request: Request, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs or instances that the request is for, whatever their size."""
    return [gpu for gpu in gpus if wrong_kind(request, gpu) is None]


def too_small(request: Request, gpu: Gpu) -> bool:
    """Return True if the instance is less than the request's bytes, or its shares of the GPU."""
    assert gpu.mig is not None, "asked of instances only"
    return (
        (request.memory_bytes or 0) > gpu.leasable_bytes
        or (request.memory_permille or 0) > gpu.mig.memory_permille
        or (request.compute_permille or 0) > gpu.mig.compute_permille
    )


def could_do(request: Request, gpu: Gpu) -> bool:
    """Return True if the GPU is of the right kind, and if it is an instance, large enough."""
    if wrong_kind(request, gpu) is not None:
        return False
    return not (wants_instances(request) and too_small(request, gpu))


def best_fit(gpu: Gpu) -> tuple[int, int, int, int, str]:
    """Return a sort key for instances: the least memory, then the least compute, then the listed order."""
    assert gpu.mig is not None, "asked of instances only"
    return gpu.leasable_bytes, gpu.mig.compute_permille, gpu.index, gpu.mig.index, gpu.id


def describe_instances(request: Request) -> str:
    """Write the request: ``a MIG instance``, ``2 MIG instances``, with the least that each must have."""
    count = len(request.gpus) or request.gpu_count
    noun = "a MIG instance" if count == 1 else f"{count} MIG instances"
    memory, share = request.memory_bytes, max(request.memory_permille or 0, request.compute_permille or 0)
    least = [format_memory(memory)] if memory else []
    least += [f"{format_share(share)} of a GPU"] if share else []
    each = " each" if count > 1 else ""
    return f"{noun} with at least {' and '.join(least)}{each}" if least else noun


def never_fits_hint(request: Request, gpus: Iterable[Gpu]) -> str:
    """Return a hint with another request, if no empty node could give these instances."""
    gpus = list(gpus)
    candidates = of_kind(request, gpus)
    if not candidates and any(gpu.split for gpu in gpus):
        return "MIG is on here, but has no instances; `gpushare gpus` says how the admin makes some"
    if not candidates:
        return "no GPU here is split by MIG; ask for a part of one without --isolation mig"
    enough = [gpu for gpu in candidates if could_do(request, gpu)]
    if enough:
        return f"this node has {len(enough)} such instance" + ("s" if len(enough) > 1 else "")
    largest = max(candidates, key=best_fit)
    assert largest.mig is not None
    share = min(largest.mig.memory_permille, largest.mig.compute_permille)
    size = f"{format_memory(largest.leasable_bytes)} and {format_share(share)} of its GPU"
    return f"the largest instance here is a {largest.mig.profile} with {size}"
