"""Replay the queue as it was: when would a smaller request have started?

The replay looks at the GPUs that the lease got in the end, because these could take it for certain. The
smaller request starts at the first moment from which it has room there beside all that others held, up to
the lease's own start, and at which nobody waited who asked earlier or was served earlier. So nobody else
would have started later. The replay leaves out other GPUs, and room that the queue would have filled past
somebody who waited, so it often promises nothing. The history does not have the CPUs and the memory of the
host that leases hold, nor the times in which a GPU was drained: where these were short, it promises too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpushared.domain.model.gpu import WHOLE_PERMILLE


@dataclass(frozen=True, slots=True)
class OthersPart:
    """Record what somebody else held of a GPU, from a time to a time."""

    start_ms: int
    end_ms: int
    permille: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuThen:
    """Hold a GPU's memory, and what others held of it while the lease waited."""

    memory_mib: int
    parts: Sequence[OthersPart]


@dataclass(frozen=True, slots=True)
class QueueThen:
    """Hold the wait of a lease, the GPUs that it got, and the times in which somebody ahead of it waited."""

    wait_began_ms: int
    started_ms: int
    gpus: Sequence[GpuThen]
    ahead: Sequence[tuple[int, int]]


def earlier_ms(queue: QueueThen, memory_mib: int) -> int:
    """Return how much earlier a request for so much memory on each GPU would have started; 0 is no earlier."""
    since = max((_room_since(queue, gpu, memory_mib) for gpu in queue.gpus), default=queue.started_ms)
    for start, end in sorted(queue.ahead):
        if start <= since < end:
            since = end
    return max(0, queue.started_ms - since)


def _room_since(queue: QueueThen, gpu: GpuThen, memory_mib: int) -> int:
    """Return since when the GPU had room for the request, without a break up to the lease's start."""
    permille = -(-memory_mib * WHOLE_PERMILLE // max(1, gpu.memory_mib))
    since = queue.started_ms
    for start, end in reversed(list(_pieces(queue, gpu.parts))):
        beside = [part for part in gpu.parts if part.start_ms < end and part.end_ms > start]
        memory = sum(part.memory_mib for part in beside) + memory_mib
        if memory > gpu.memory_mib or sum(part.permille for part in beside) + permille > WHOLE_PERMILLE:
            break
        since = start
    return since


def _pieces(queue: QueueThen, parts: Sequence[OthersPart]) -> Iterable[tuple[int, int]]:
    """Yield the pieces of the wait in which nothing changed."""
    first, last = queue.wait_began_ms, queue.started_ms
    changes = {moment for part in parts for moment in (part.start_ms, part.end_ms) if first < moment < last}
    moments = sorted({first, last, *changes})
    return pairwise(moments)
