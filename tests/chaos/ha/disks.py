"""A disk of its own for each machine, in a file, whose writes can be made slow by the kernel's own means.

The kernel lets a control group write so many times a second to a device. This reaches every program, unlike
a library that is loaded before it, and only those that are in the group. Both versions of cgroups can do it.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Final

DISK_BYTES: Final = 1024**3
"""What a disk can hold; room is taken only for what is written."""
SLOW_WRITES_PER_SECOND: Final = 2
"""One fsync of a database is one to four writes: half a second to two."""
CGROUPS: Final = Path("/sys/fs/cgroup")


class Disk:
    """A file with a file system, mounted at ``folder``; ``prefix`` begins the names of its control groups."""

    def __init__(self, image: Path, folder: Path, prefix: str) -> None:
        self.folder = folder
        self._image = image
        self._prefix = prefix
        self._device = ""

    def mount(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.folder))
        self._device = _run("findmnt", "--noheadings", "--output", "MAJ:MIN", str(self.folder)).strip()

    def slow(self, program: str, pid: int) -> None:
        """Make the writes of this process slow, and those of what it starts from now on."""
        group = self._group(program)
        group.mkdir(exist_ok=True)
        self._limit(group, str(SLOW_WRITES_PER_SECOND))
        (group / "cgroup.procs").write_text(str(pid))

    def heal(self, program: str) -> None:
        """Let all writes go that wait, and later ones at once."""
        group = self._group(program)
        if not group.exists():
            return
        self._limit(group, "")
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it may have ended
                (_root() / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()

    def _limit(self, group: Path, writes: str) -> None:
        if _is_unified():
            (group / "io.max").write_text(f"{self._device} wiops={writes or 'max'}")
        else:
            (group / "blkio.throttle.write_iops_device").write_text(f"{self._device} {writes or 0}")

    def _group(self, program: str) -> Path:
        return _root() / f"{self._prefix}-{program}"


def remove_groups(prefix: str) -> None:
    """Remove the control groups that a run left, after their processes have ended."""
    for group in _root().glob(f"{prefix}-*"):
        with contextlib.suppress(OSError):
            group.rmdir()


def _root() -> Path:
    """The folder of all groups; where cgroup v2 is alone, the root hands ``io`` to the groups below."""
    if not _is_unified():
        return CGROUPS / "blkio"
    (CGROUPS / "cgroup.subtree_control").write_text("+io")
    return CGROUPS


def _is_unified() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
