"""Cgroups for tests: real ones where this machine has cgroup v2 mounted anywhere, and trees that pass for it.

A machine that boots with v1 usually has an empty v2 beside it (``/sys/fs/cgroup/unified``), in which
cgroups can be made and processes put like anywhere; only the controllers are missing. What is not exercised
for real there: the driver's accounting, and Docker's systemd cgroup driver.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def real_root() -> Path:
    """Where cgroup v2 is mounted; skips the test where it is not."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None or not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("there is no cgroup v2 here in which cgroups can be made")
    return root


def tree(path: Path) -> Path:
    """Directories that pass for cgroup v2: no kernel looks at them."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").touch()
    return path


@contextmanager
def process_in(cgroup: Path) -> Iterator[int]:
    """The PID of a process whose cgroup, made for it, this is."""
    cgroup.mkdir()
    process = subprocess.Popen(["sleep", "600"])
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        process.wait()
        cgroup.rmdir()
