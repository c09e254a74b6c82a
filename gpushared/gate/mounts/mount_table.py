"""Read the mounts of a mount namespace, and find a path's place in its file system.

One file can have many names, by mounts of one directory in several places. Barred paths are therefore
compared by file system and by the path within it. Standard library only.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gpushared.mountinfo import Mount, is_under, parse_line

KERNELS_OWN = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "fusectl", "mqueue", "nfsd", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs"),
        *("selinuxfs", "smackfs", "sysfs", "tracefs"),
    }
)
"""These file systems hold no users' files."""


NOBODY = -1
"""This uid stands for the user of a FUSE file system that does not name one."""


class Location(NamedTuple):
    """Hold a path within a file system, and the name by which it is reached."""

    device: str
    inner: str
    path: str

    def touches(self, other: "Location") -> bool:
        """Return True if one location is the other, or lies in it."""
        if self.device == other.device and _related(self.inner, other.inner):
            return True
        return _related(self.path, other.path)


def read_table() -> list[Mount]:
    """Read the mounts that this process sees."""
    with Path("/proc/self/mountinfo").open("rb") as lines:
        return [parse_line(os.fsdecode(line)) for line in lines]


def mount_of(descriptor: int, table: list[Mount]) -> Mount | None:
    """Return the mount on which an open file lies, None for a mount of another mount namespace."""
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            identity = int(line.partition(":")[2])
            return next((mount for mount in table if mount.identity == identity), None)
    return None


def user_of(mount: Mount) -> int | None:
    """Return the user whose program answers for a FUSE file system; None for root's and other kinds."""
    if not mount.kind.startswith("fuse") or "user_id=0" in mount.options:
        return None
    said = [option.removeprefix("user_id=") for option in mount.options if option.startswith("user_id=")]
    return int(said[0]) if said and said[0].isdecimal() else NOBODY


def location(path: str, mount: Mount) -> Location:
    """Return the location of a path on that mount."""
    rest = path.removeprefix(mount.point if mount.point != "/" else "")
    return Location(mount.device, (mount.root.rstrip("/") + rest) or "/", path)


def below(path: str, table: list[Mount]) -> list[Mount]:
    """Return the mounts at places below a path, which come with it."""
    return [mount for mount in table if mount.point != path and is_under(mount.point, path)]


def outermost(points: Iterable[str]) -> list[str]:
    """Return the points that lie in none of the others."""
    kept: list[str] = []
    for point in sorted(points, key=lambda each: each.split("/")):
        if not kept or not is_under(point, kept[-1]):
            kept.append(point)
    return kept


def _related(one: str, other: str) -> bool:
    return is_under(one, other) or is_under(other, one)
