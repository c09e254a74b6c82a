"""Describe this machine's CPU and memory, and a container's limit of the memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSize:
    """Hold CPU in thousandths of a core and memory in bytes; None if unknown, or not to be counted."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """Hold a container's limit of the host's memory (0 if it has none), and its present use.

    Memory that the kernel can take back at once, such as files that were read, is not counted.
    """

    limit_bytes: int = 0
    used_bytes: int = 0
