"""The mounts of a mount namespace, and where in which file system a path lies.

One file can have many names, by mounts of one directory in several places. What must not be given away is
therefore compared by file system and by the path within it. Standard library only.
"""

import os
from pathlib import Path
from typing import NamedTuple

KERNELS_OWN = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "fusectl", "mqueue", "nfsd", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs"),
        *("selinuxfs", "smackfs", "sysfs", "tracefs"),
    }
)
"""File systems that hold no files of anybody's."""


class Mount(NamedTuple):
    """One line of mountinfo, see proc_pid_mountinfo(5)."""

    identity: int
    device: str
    root: str
    """The directory of the file system that is mounted."""
    point: str
    kind: str
    options: frozenset[str]

    @property
    def by_a_user(self) -> bool:
        """A FUSE file system whose answers are up to a user, who may leave them out."""
        return self.kind.startswith("fuse") and "user_id=0" not in self.options


class Location(NamedTuple):
    """A path within a file system, and the name by which it is reached."""

    device: str
    inner: str
    path: str

    def touches(self, other: "Location") -> bool:
        """Whether either is the other, or lies in it."""
        if self.device == other.device and _related(self.inner, other.inner):
            return True
        return _related(self.path, other.path)


def read_table() -> list[Mount]:
    """The mounts that this process sees."""
    with Path("/proc/self/mountinfo").open("rb") as lines:
        return [_parse(os.fsdecode(line)) for line in lines]


def mount_of(descriptor: int, table: list[Mount]) -> Mount | None:
    """The mount on which an open file lies, None where it is of another mount namespace."""
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            identity = int(line.partition(":")[2])
            return next((mount for mount in table if mount.identity == identity), None)
    return None


def location(path: str, mount: Mount) -> Location:
    """Where a path on that mount lies."""
    rest = path.removeprefix(mount.point if mount.point != "/" else "")
    return Location(mount.device, (mount.root.rstrip("/") + rest) or "/", path)


def below(path: str, table: list[Mount]) -> list[Mount]:
    """The mounts at places below a path, which come with it."""
    return [mount for mount in table if mount.point != path and is_under(mount.point, path)]


def is_under(path: str, directory: str) -> bool:
    """Whether the path is the directory, or lies in it; both normal."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _related(one: str, other: str) -> bool:
    return is_under(one, other) or is_under(other, one)


def _parse(line: str) -> Mount:
    first, _, last = line.rstrip("\n").partition(" - ")
    identity, _, device, root, point = first.split(" ")[:5]
    kind, _, options = last.split(" ")[:3]
    return Mount(int(identity), device, _plain(root), _plain(point), kind, frozenset(options.split(",")))


def _plain(word: str) -> str:
    """Blanks, line ends and backslashes stand there as octal numbers."""
    for octal, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(octal, plain)
    return word
