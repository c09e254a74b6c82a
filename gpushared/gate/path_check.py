"""A program of its own that becomes a caller, and says which paths that caller may use.

Reads {"uid", "gid", "groups", "wishes": [{"path", "write"}]} as JSON, writes a list of {"path", "trouble"}.
It starts as root, because the interpreter itself may lie where the caller cannot read. Standard library only.

Whether a path is writable is asked of the machine as its first process, and the engine with it, sees it: for
the service nearly all of it is mounted read-only.
"""

import json
import os
import sys
from pathlib import Path


def root_of_machine() -> int:
    """To be opened as root; what runs where it may not see that process has its own root."""
    try:
        return os.open("/proc/1/root", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return os.open("/", os.O_PATH | os.O_DIRECTORY)


# Not in the system's words: clients read "no such file or directory" as "no such program" (exit code 127).
def trouble(real: Path, write: bool, machine: int) -> str:
    if not real.exists():
        return "it does not exist, or you may not see it"
    if not (real.is_dir() or real.is_file()):
        return "it is neither a file nor a directory"
    if not os.access(real, os.R_OK | (os.X_OK if real.is_dir() else 0)):
        return "you may not read it"
    if write and not os.access(real.relative_to("/"), os.W_OK, dir_fd=machine):
        return "you may not write to it; mount it read-only"
    return ""


def check(path: str, write: bool, machine: int) -> dict[str, str]:
    real = Path(os.path.realpath(path))
    return {"path": str(real), "trouble": trouble(real, write, machine)}


order = json.load(sys.stdin)
root = root_of_machine()
os.setgroups(order["groups"])
os.setresgid(order["gid"], order["gid"], order["gid"])
os.setresuid(order["uid"], order["uid"], order["uid"])
json.dump([check(each["path"], each["write"], root) for each in order["wishes"]], sys.stdout)
