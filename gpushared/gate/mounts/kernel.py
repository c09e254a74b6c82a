"""Read the kernel's mounts, and make its mount calls by number, because older C libraries lack the names.

A program without site packages loads this module: standard library only. All functions raise ``OSError``.
Numbers of 424 and above are the same on all architectures. Sources: open_tree(2), move_mount(2),
mount_setattr(2), openat2(2), fsopen(2), fsconfig(2), fsmount(2).
"""

import ctypes
import errno
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gpushared.mountinfo import Mount, is_under, parse_line

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_PRIVATE = 2, 4, 8, 1 << 18
NOSUID_NODEV_NOEXEC = MS_NOSUID | MS_NODEV | MS_NOEXEC

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _FACCESSAT2, _MOUNT_SETATTR = 428, 429, 437, 439, 442
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_NAMES = {
    _OPEN_TREE: "open_tree",
    _MOVE_MOUNT: "move_mount",
    _FSOPEN: "fsopen",
    _FSCONFIG: "fsconfig",
    _FSMOUNT: "fsmount",
    _OPENAT2: "openat2",
    _FACCESSAT2: "faccessat2",
    _MOUNT_SETATTR: "mount_setattr",
}
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_EMPTY_PATHS = 0x4 | 0x40
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x01, 0x02, 0x04, 0x08
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
LONGEST_VALUE = 255
"""The kernel takes at most this many bytes for an option of a file system."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITIES_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
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


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def open_as_named(path: str) -> int:
    """Open a descriptor that only names the file.

    Links of /proc that lead to another process's files, or to our own, are refused here: ``ELOOP``.
    """
    return _openat2(AT_FDCWD, path, _RESOLVE_NO_MAGICLINKS)


def open_below(directory: int, path: str) -> int:
    """Open a path so that it stays in the directory and has no link in it, only to name the file."""
    return _openat2(directory, path, _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)


def open_entry(directory: int, name: str) -> int:
    """Open the directory's own entry, also a link, only to name the file: ``EXDEV`` for a mount."""
    resolve = _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
    return _openat2(directory, name, resolve, os.O_NOFOLLOW)


def _openat2(directory: int, path: str, resolve: int, flags: int = 0) -> int:
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC | flags, 0, resolve)
    return _call(_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))


def may(descriptor: int, mode: int) -> bool:
    """Return True if this process may use the file in this mode; a read-only mount counts too."""
    try:
        _call(_FACCESSAT2, descriptor, b"", mode, AT_EMPTY_PATH)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        return False
    return True


def clone(descriptor: int, *, read_only: bool) -> int:
    """Copy the mount at that file with the mounts below it, and return an unattached descriptor.

    No program in the copy gains rights, no device node works, and no mount elsewhere appears in it.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    tree = _call(_OPEN_TREE, descriptor, b"", flags)
    attributes = _MountAttr(_ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if read_only else 0), 0, MS_PRIVATE, 0)
    size = ctypes.sizeof(attributes)
    try:
        _call(_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, ctypes.byref(attributes), size)
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: int) -> None:
    """Put a cloned mount on a file or directory of this process's mount namespace."""
    _call(_MOVE_MOUNT, tree, b"", target, b"", _MOVE_MOUNT_EMPTY_PATHS)


def mount_overlay(lower: Sequence[str], upper: str = "", work: str = "") -> int:
    """Mount layers as the engine does, attached nowhere: the mount ends with the last process that is in it.

    Without an upper layer it is read-only. The names are looked up from the working directory, and have no
    comma and no colon. No program in the mount gains rights, and no device node works.
    """
    joined = ":".join(lower)
    options = [("lowerdir", joined), ("index", "off")]
    if len(joined) > LONGEST_VALUE:
        options = [("index", "off"), *(("lowerdir+", each) for each in lower)]  # Linux 6.8 and newer
    if upper:
        options += [("upperdir", upper), ("workdir", work)]
    context = _call(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC)
    try:
        for name, value in options:
            _call(_FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        _call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _FSMOUNT_CLOEXEC, _ATTR_NOSUID | _ATTR_NODEV | _ATTR_NOEXEC)
    finally:
        os.close(context)


def enter(namespace: int) -> None:
    """Go to another mount namespace, to its root."""
    _checked(_LIBC.setns(namespace, CLONE_NEWNS))


def mount_private_tmpfs(path: str, options: str) -> None:
    """Mount a new tmpfs, whose own mounts are seen in this mount namespace only."""
    name = b"gpushare-pins"
    _checked(_LIBC.mount(name, os.fsencode(path), b"tmpfs", NOSUID_NODEV_NOEXEC, options.encode()))
    _checked(_LIBC.mount(b"none", os.fsencode(path), None, MS_PRIVATE, None))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; a change of ids undoes this."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Become that user for good, even root, without a capability, and protected from the user's debuggers."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    version = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _checked(_LIBC.capset(version, (ctypes.c_uint32 * 6)()))
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def detach(path: str) -> None:
    """Detach a mount and the mounts below it; processes that use them keep them."""
    _checked(_LIBC.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW))


def detach_opened(descriptor: int) -> None:
    """Detach a mount whose top is open."""
    _checked(_LIBC.umount2(f"/proc/self/fd/{descriptor}".encode(), MNT_DETACH))


def _call(number: int, *arguments: object) -> int:
    call_arguments = [ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *arguments)]
    try:
        return _checked(_LIBC.syscall(*call_arguments))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise OSError(errno.ENOSYS, f"the kernel has no {_NAMES[number]}, Linux 5.12 is needed") from None


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Location(NamedTuple):
    """Hold a path within a file system, and the name by which it is reached.

    One file can have many names, by mounts of one directory in several places. Barred paths are therefore
    compared by file system and by the path within it.
    """

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
    users = [option.removeprefix("user_id=") for option in mount.options if option.startswith("user_id=")]
    return int(users[0]) if users and users[0].isdecimal() else NOBODY


def location(path: str, mount: Mount) -> Location:
    """Return the location of a path on a mount."""
    rest = path.removeprefix(mount.point if mount.point != "/" else "")
    return Location(mount.device, (mount.root.rstrip("/") + rest) or "/", path)


def below(path: str, table: list[Mount]) -> list[Mount]:
    """Return the mounts at places below a path, which belong to the path's tree."""
    return [mount for mount in table if mount.point != path and is_under(mount.point, path)]


def outermost(points: Iterable[str]) -> list[str]:
    """Return the points that lie in none of the others."""
    outer: list[str] = []
    for point in sorted(points, key=lambda each: each.split("/")):
        if not outer or not is_under(point, outer[-1]):
            outer.append(point)
    return outer


def _related(path: str, other: str) -> bool:
    return is_under(path, other) or is_under(other, path)
