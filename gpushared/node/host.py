"""What this machine has besides GPUs, as the kernel tells."""

from __future__ import annotations

import psutil

from gpushared.domain.host import HostSize


def host_size() -> HostSize:
    """Its CPU threads and main memory; CPU None where the kernel does not tell."""
    cpus = psutil.cpu_count()
    return HostSize(None if cpus is None else 1000 * cpus, psutil.virtual_memory().total)
