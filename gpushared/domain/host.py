"""What this machine has besides its GPUs, and what a container may take of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSize:
    """CPU in thousandths of a core, memory in bytes; None where that is not known, or not to be counted."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """Of the host's memory: how much a container may take, 0 where it has no limit, and how much it has.

    What the kernel can take back at once, such as files that were read, is not counted.
    """

    limit_bytes: int = 0
    used_bytes: int = 0
