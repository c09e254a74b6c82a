"""A program of its own that becomes a caller, and says which paths that caller may use.

Reads {"uid", "gid", "groups", "wishes": [{"path", "write"}]} as JSON, writes a list of {"path", "trouble"}.
It starts as root, because the interpreter itself may lie where the caller cannot read. Standard library only.
"""

import json
import os
import sys
from pathlib import Path


# Not in the system's words: clients read "no such file or directory" as "no such program" (exit code 127).
def trouble(real: Path, write: bool) -> str:
    if not real.exists():
        return "it does not exist, or you may not see it"
    if not (real.is_dir() or real.is_file()):
        return "it is neither a file nor a directory"
    if not os.access(real, os.R_OK | (os.X_OK if real.is_dir() else 0)):
        return "you may not read it"
    if write and not os.access(real, os.W_OK):
        return "you may not write to it; mount it read-only"
    return ""


def check(path: str, write: bool) -> dict[str, str]:
    real = Path(os.path.realpath(path))
    return {"path": str(real), "trouble": trouble(real, write)}


order = json.load(sys.stdin)
os.setgroups(order["groups"])
os.setresgid(order["gid"], order["gid"], order["gid"])
os.setresuid(order["uid"], order["uid"], order["uid"])
json.dump([check(each["path"], each["write"]) for each in order["wishes"]], sys.stdout)
