"""Read this machine's CPUs and main memory from the kernel."""

from __future__ import annotations

import psutil

from gpushared.domain.model.host import HostSize


def host_size() -> HostSize:
    """Return the machine's CPU threads and main memory; CPU is None if the kernel does not tell."""
    cpus = psutil.cpu_count()
    return HostSize(None if cpus is None else 1000 * cpus, psutil.virtual_memory().total)
