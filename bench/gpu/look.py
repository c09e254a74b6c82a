"""Print NVML's figures of the GPU in CUDA_VISIBLE_DEVICES as one line of JSON.

A process of its own, because NVML's calls may hang.

lists           processes and their memory, by each of the driver's lists
utilization S   what processes used within the last S seconds
adapter         the same through gpushared's own adapter
limits PATH     the cgroup's memory limits (driver r615)
limit PATH SOFT HARD    set them, in bytes; HARD may be "max"
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "")
LISTS = ("Compute", "MPSCompute", "Graphics")
NO_LIMIT = (1 << 64) - 1


def main(words: list[str]) -> int:
    try:
        print(json.dumps(_answer(words)))
    except ImportError as error:
        print(json.dumps({"action": words[0], "result": f"not installed: {error}"}))
        return 3
    return 0


def _answer(words: list[str]) -> dict[str, Any]:
    if words[0] == "adapter":
        return asyncio.run(_adapter())
    import pynvml

    known = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(GPU)
        return {"action": words[0], "result": "ok", **_ask(pynvml, known, handle, words)}
    except known as error:
        return {"action": words[0], "result": str(error)}


def _ask(pynvml: Any, known: tuple[type[Exception], ...], handle: Any, words: list[str]) -> dict[str, Any]:
    match words:
        case ["lists"]:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            device = {name: getattr(memory, name) for name in ("total", "reserved", "used", "free")}
            return {"device": device, "lists": {kind: _list(pynvml, known, handle, kind) for kind in LISTS}}
        case ["utilization", seconds]:
            since = int((time.time() - float(seconds)) * 1e6)
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
            return {
                "samples": [{"pid": one.pid, "sm_percent": one.smUtil} for one in samples],
                "newer_call": _newer_samples(pynvml, known, handle, since),
            }
        case ["limits", path]:
            limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=path.encode())
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
            return {
                "soft": limits.softLimit,
                "hard": limits.hardLimit,
                "used": limits.currentUsed,
            }
        case ["limit", path, soft, hard]:
            wanted = NO_LIMIT if hard == "max" else int(hard)
            pynvml.nvmlDeviceSetMemoryLimits_v1(
                handle,
                pynvml.c_nvmlSetMemoryLimits_v1_t(
                    nameSpace=path.encode(), softLimit=int(soft), hardLimit=wanted
                ),
            )
            return {}
    raise SystemExit(__doc__)


def _newer_samples(pynvml: Any, known: tuple[type[Exception], ...], handle: Any, since: int) -> Any:
    """Return what nvmlDeviceGetProcessesUtilizationInfo says, which came with driver release 550."""
    try:
        samples = pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, since)
    except known as error:
        return str(error)
    return [{"pid": one.pid, "sm_percent": one.smUtil} for one in samples]


def _list(pynvml: Any, known: tuple[type[Exception], ...], handle: Any, kind: str) -> Any:
    try:
        found = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
    except known as error:
        return str(error)
    return [{"pid": one.pid, "memory_bytes": one.usedGpuMemory} for one in found]


async def _adapter() -> dict[str, Any]:
    from gpushared.domain.model.errors import GpushareError
    from gpushared.gpus.nvml import NvmlGpus

    gpus = NvmlGpus()
    try:
        surveyed, sampled = await gpus.survey(), await gpus.sample()
    except GpushareError as error:
        return {"action": "adapter", "result": error.message}
    finally:
        await gpus.close()
    gpu = next(one for one in surveyed if one.id == GPU)
    reading = next(one for one in sampled if one.gpu == GPU)
    return {
        "action": "adapter",
        "result": "ok",
        "total_bytes": gpu.memory_total_bytes,
        "leasable_bytes": gpu.leasable_bytes,
        "used_bytes": reading.memory_used_bytes,
        "processes": [{"pid": one.pid, "memory_bytes": one.memory_bytes} for one in reading.processes],
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["help"]))
