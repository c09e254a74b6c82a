"""What this machine has besides its GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSize:
    """CPU in thousandths of a core, memory in bytes; None where that is not known, or not to be counted."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
