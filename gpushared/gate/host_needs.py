"""Read the host's CPU and memory that a create body gives to its container."""

from __future__ import annotations

from gpushared.gate.body import CPU_PERIOD_US, Body

NANO_PER_MILLI = 1_000_000


def host_needs(host: Body) -> dict[str, str]:
    """Return fields of an ``Ask``, only for the values that the body gives."""
    needs = {"host_cpu_milli": _cpu_milli(host), "host_memory_bytes": _whole(host, "Memory")}
    return {name: str(value) for name, value in needs.items() if value > 0}


def _cpu_milli(host: Body) -> int:
    nano = _whole(host, "NanoCpus")
    if nano > 0:
        return -(-nano // NANO_PER_MILLI)
    period = _whole(host, "CpuPeriod") or CPU_PERIOD_US
    return -(-_whole(host, "CpuQuota") * 1000 // period) if period > 0 else 0


def _whole(host: Body, key: str) -> int:
    value = host.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
