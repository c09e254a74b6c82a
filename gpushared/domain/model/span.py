"""Record what leases held and how long they waited, in spans that add up to the millisecond."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId


@dataclass(frozen=True, slots=True)
class Span:
    """Record that a lease held a part of one GPU from start to end, or waited then if ``gpu`` is None.

    Times are milliseconds of the clock that counts time. ``permille`` is the part that the project is charged
    for: the share of the memory or of the compute, whichever is larger.
    """

    lease: LeaseId
    project: str
    start_ms: int
    end_ms: int
    gpu: GpuId | None = None
    permille: int = 0
    memory_bytes: int = 0


def milliseconds(seconds: float) -> int:
    """Return a moment or a duration in whole milliseconds, rounded as the projects' accounts round it."""
    return round(seconds * 1000)
