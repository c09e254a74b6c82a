"""Write a cgroup's limits on memory, CPUs and processes into the kernel's files, for cgroup v1 and v2.

Sources: cgroup-v2.rst, and for v1 memory.rst, pids.rst and sched-bwc.rst, of the kernel's documentation.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushared.ports import UserBounds, UserUse

ROOT = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mounts")
PERIOD_US = 100_000
MAX_FILE_BYTES = 64 * 1024
"""The kernel's files here are no longer than this, and one read returns a whole file."""
BESIDE = "beside-containers"
"""The cgroup of v2 below a user's for processes of ours: see ``Trees.join_files``."""
CONTROLLERS = ("memory", "cpu", "pids")
_NO_LIMIT_FROM = 1 << 62
"""From this number on v1 means no limit of memory: it writes the largest number of whole pages."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Describe one file. ``optional``: some kernels have neither the file nor the limit.

    ``in_pages``: the kernel rounds the value down to whole pages.
    """

    path: Path
    value: str
    optional: bool = False
    in_pages: bool = False

    def is_set(self) -> bool:
        """Return True if the kernel has this value; raises OSError for a required file that is missing."""
        if self.optional and not self.path.exists():
            return True
        return _plain(_text(self.path), self.in_pages) == _plain(self.value, self.in_pages)

    def write(self) -> None:
        self.path.write_text(self.value)


@dataclass(frozen=True, slots=True)
class Trees:
    """Locate the cgroups of this machine. ``tops``: the tree of each controller with v1, empty with v2."""

    root: Path
    tops: dict[str, Path]

    @classmethod
    def find(cls, version: int, root: Path = ROOT, mounts: Path = MOUNTS) -> Trees:
        """Return the trees as they are mounted. Raises OSError."""
        if version > 1:
            if not (root / "cgroup.controllers").exists():
                raise FileNotFoundError(errno.ENOENT, "cgroup v2 is not mounted there", str(root))
            return cls(root, {})
        tops: dict[str, Path] = {}
        for line in mounts.read_text().splitlines():
            _, target, kind, options, *_ = line.split()
            if kind == "cgroup":
                tops |= {name: Path(target) for name in CONTROLLERS if name in options.split(",")}
        return cls(root, tops)

    def directories(self, path: str) -> list[Path]:
        """Return the cgroup at this path from the top, in each of the trees in which it has a limit."""
        own = path.lstrip("/")
        return sorted({top / own for top in self.tops.values()}) if self.tops else [self.root / own]

    def make(self, path: str) -> None:
        """Make the cgroup, and let the kernel count in it. Raises OSError."""
        for directory in self.directories(path):
            directory.mkdir(parents=True, exist_ok=True)
        names = path.strip("/").split("/")
        for length in range(len(names)):
            self._count_below("/".join(names[:length]))

    def join_files(self, path: str) -> list[Path]:
        """Return the files by which a process joins the cgroup. Raises OSError.

        With v2 a process joins a cgroup below, since no process is in a cgroup that has others below
        (cgroup-v2.rst).
        """
        if not self.tops:
            (self.root / path.lstrip("/") / BESIDE).mkdir(exist_ok=True)
            path = f"{path}/{BESIDE}"
        return [directory / "cgroup.procs" for directory in self.directories(path)]

    def remove(self, path: str) -> None:
        """Remove the cgroup; raises OSError if anything is in it."""
        for directory in self.directories(path):
            if directory.is_dir():
                directory.rmdir()

    def limits(self, path: str, limits: UserBounds) -> list[Limit]:
        """Return the limits in the order in which the kernel takes them.

        Raises OSError, KeyError for a missing tree.
        """
        own = path.lstrip("/")
        if not self.tops:
            return list(_limits_v2(self.root / own, limits))
        memory, cpu, pids = (self.tops[name] / own for name in CONTROLLERS)
        quota = str(round(limits.cpus * PERIOD_US)) if limits.cpus else "-1"
        return [
            *_memory_v1(memory, limits.memory_bytes),
            Limit(cpu / "cpu.cfs_period_us", str(PERIOD_US)),
            Limit(cpu / "cpu.cfs_quota_us", quota),
            Limit(pids / "pids.max", str(limits.pids) if limits.pids else "max"),
        ]

    def use(self, path: str) -> UserUse:
        """Return the use of the cgroup; raises OSError, KeyError and ValueError if it cannot be read."""
        own = path.lstrip("/")
        memory, pids = (
            (self.tops["memory"] / own, self.tops["pids"] / own)
            if self.tops
            else (self.root / own, self.root / own)
        )
        lines = (line.split() for line in _text(memory / "memory.stat").splitlines())
        figures = {name: int(figure) for name, figure in lines}
        counted = (
            ("total_rss", "total_shmem") if self.tops else ("anon", "shmem", "kernel_stack", "pagetables")
        )
        memory_bytes = sum(figures.get(name, 0) for name in counted)
        return UserUse(memory_bytes, int(_text(pids / "pids.current")))

    def _count_below(self, path: str) -> None:
        if not self.tops:
            control = self.root / path / "cgroup.subtree_control"
            if missing := set(CONTROLLERS) - set(control.read_text().split()):
                control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
            return
        # Kernels before 5.11 count the cgroups below only if this file says so.
        hierarchy = self.tops["memory"] / path / "memory.use_hierarchy"
        if path and hierarchy.exists() and hierarchy.read_text().strip() == "0":
            hierarchy.write_text("1")


def _limits_v2(own: Path, limits: UserBounds) -> Iterator[Limit]:
    memory, pids = (str(number) if number else "max" for number in (limits.memory_bytes, limits.pids))
    quota = str(round(limits.cpus * PERIOD_US)) if limits.cpus else "max"
    yield Limit(own / "memory.max", memory, in_pages=True)
    # Swap counts apart here: no swap at all is the only way to bound both together.
    yield Limit(own / "memory.swap.max", "0" if limits.memory_bytes else "max", optional=True)
    yield Limit(own / "cpu.max", f"{quota} {PERIOD_US}")
    yield Limit(own / "pids.max", pids)


def _memory_v1(own: Path, memory_bytes: int) -> list[Limit]:
    """Return both limits of memory, in an order that never has memory with swap below memory alone."""
    value = str(memory_bytes) if memory_bytes else "-1"
    both = [
        Limit(own / "memory.limit_in_bytes", value, in_pages=True),
        Limit(own / "memory.memsw.limit_in_bytes", value, optional=True, in_pages=True),
    ]
    now = int(both[0].path.read_text()) if both[0].path.exists() else 0
    return both if memory_bytes and memory_bytes < now else both[::-1]


def _text(path: Path) -> str:
    """Read a file in as few calls as possible: after each call the thread must wait for its turn to run."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, MAX_FILE_BYTES).decode()
    finally:
        os.close(descriptor)


def _plain(text: str, in_pages: bool) -> str:
    """Drop the part that the kernel rounds, and write no limit in one word."""
    first, *rest = text.split()
    number = int(first) if first.lstrip("-").isdecimal() else -1
    if number < 0 or number >= _NO_LIMIT_FROM:
        return " ".join(["max", *rest])
    return " ".join([str(number // mmap.PAGESIZE if in_pages else number), *rest])
