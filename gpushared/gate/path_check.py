"""Run as a caller, by source text: says which paths that caller may use. Standard library only.

Reads a list of {"path", "write"} as JSON, writes a list of {"path"} or {"error"}.
"""

import json
import os
import sys
from pathlib import Path


def check(path: str, write: bool) -> dict[str, str]:
    real = Path(os.path.realpath(path))
    if not real.exists():
        return {"error": "there is no such file or directory, or none that you may see"}
    if not (real.is_dir() or real.is_file()):
        return {"error": "it is neither a file nor a directory"}
    if not os.access(real, os.R_OK | (os.X_OK if real.is_dir() else 0)):
        return {"error": "you may not read it"}
    if write and not os.access(real, os.W_OK):
        return {"error": "you may not write to it; mount it read-only"}
    return {"path": str(real)}


json.dump([check(each["path"], each["write"]) for each in json.load(sys.stdin)], sys.stdout)
