"""Takes device memory through torch's allocator in steps, as the probe's ``alloc`` does."""

from __future__ import annotations

import importlib
import json
import os
import sys

MIB = 1024 * 1024


def main(upto_mib: int, step_mib: int) -> int:
    torch = importlib.import_module("torch")
    blocks: list[object] = []
    result = "CUDA_SUCCESS"
    try:
        while len(blocks) * step_mib + step_mib <= upto_mib:
            blocks.append(torch.ones(step_mib * MIB, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        result = "torch.cuda.OutOfMemoryError"
    line = {
        "action": "alloc",
        "method": "torch",
        "configuration": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "result": result,
        "asked_mib": upto_mib,
        "step_mib": step_mib,
        "allocated_mib": len(blocks) * step_mib,
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2])))
