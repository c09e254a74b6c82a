"""Made-up lines, shaped like those of a run. Nothing in them was measured; they only exercise the report."""

from __future__ import annotations

from typing import Any

from bench.gpu.observe import Observation

MIB = 1024 * 1024
SERVERS = [4242]


def taken(mib: int, limit_mib: int = 4096, *, sm_count: int = 33, **more: Any) -> dict[str, Any]:
    """A client's values: it got so much under a limit."""
    result = "CUDA_SUCCESS" if mib == 6144 else "CUDA_ERROR_OUT_OF_MEMORY"
    info = {"sm_count": sm_count, "free_bytes": (limit_mib - 300) * MIB, "total_bytes": 81920 * MIB}
    alloc = {"allocated_mib": mib, "result": result}
    return {"info": info, "alloc": alloc, "limit_mib": limit_mib, "servers": SERVERS, **more}


def line(step: str, case: str, **values: Any) -> Observation:
    return Observation(step, case, 0, values, 1.0)


def sample() -> list[Observation]:
    return [
        line("G0", "machine", kernel="6.0-made-up"),
        line("G0", "gpu", name="Made-up GPU", driver_version="999.0"),
        line("G0", "mps-version", says="made-up"),
        line("G0", "plain", info={"sm_count": 132}),
        line("G1", "by-client", **taken(3840)),
        line("G1", "by-uuid", **taken(6144, read_back="")),
        line("G1", "odd-size", **taken(1440, 1536, read_back="1G")),
        line("G2", "managed-client", **taken(6144)),
        Observation("G2", "torch", None, {"skipped": "torch is not installed"}),
        Observation("G5", "fault", None, {"timed_out": "it took longer than 70 s"}),
        line("G6", "4-plain", matmul={"rounds_per_second": 100.0}),
        line("G6", "4-one-server", matmul={"rounds_per_second": 150.0}, servers=SERVERS),
    ]
