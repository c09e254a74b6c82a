"""Run as a separate program that looks at paths as a caller, and holds the files that the caller may mount.

The program reads an order as JSON and writes the answer. It starts as root. A child becomes the caller, opens
the paths, so that the kernel decides on them, and hands the open files back: nobody can replace these any
more. Standard library only.

Paths are looked up as the machine's first process sees them, not as the service does, for which nearly the
whole machine is mounted read-only. Held files are mounted where the engine sees them.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

from gpushared.gate.mounts import kernel, volume_owners
from gpushared.mountinfo import Mount, is_under

Order = dict[str, Any]
ANSWER_BYTES = 64 * 1024
MOST_ON_EACH_OTHER = 16
ROOT_OPTIONS = "mode=0700,size=1m,nr_inodes=0"
MACHINE = 1
"""The id of the machine's first process."""

DELETED = " (deleted)"
"""The kernel adds this text to the name of an open file without any name left."""
GONE = "it does not exist, or you may not see it"
BARRED = "the daemon may not open it (openat2, faccessat2); its service or its kernel forbids that"
NO_CALL = frozenset({errno.ENOSYS, errno.EPERM})
"""Filters of system calls refuse a call with these errors; a failed look at a path has other errors."""
FOREIGN = "it is in a mount namespace of its own"
OF_A_USER = (
    "it is on a file system of a user's own (FUSE), which can keep the engine waiting; copy it elsewhere"
)


class HelperRefusedError(Exception):
    """Report that the helper cannot do its work; the text states the reason."""


# --- as the caller -------------------------------------------------------------------------------------


def open_as(order: Order) -> tuple[list[tuple[int, str]], list[str]]:
    """Return for each wish an open file, or -1 and the caller's refusal, and the prefixes' real paths.

    The caller opens the prefixes too: in a caller's home root would wait in a file system mounted there.
    """
    own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (child := os.fork()) == 0:
        own_end.close()
        status = 1
        try:
            _become(order)
            for wish in order["wishes"]:
                _hand_over(child_end, wish["path"], write=wish["write"])
            for prefix in order["prefixes"]:
                _hand_over(child_end, prefix, write=False)
            status = 0
        finally:
            os._exit(status)
    child_end.close()
    opened = [_take(own_end) for _ in order["wishes"]]
    roots = [_real_path(_take(own_end)[0], prefix) for prefix in order["prefixes"]]
    os.waitpid(child, 0)
    return opened, roots


def _become(order: Order) -> None:
    # The parent waits for the end of these files, and a child that hangs in a file system must not keep
    # them open.
    for descriptor in (0, 1):
        os.close(descriptor)
    os.setgroups(order["groups"])
    os.setresgid(order["gid"], order["gid"], order["gid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    # A caller can stop processes with its ids, but not keep this one for ever.
    kernel.die_with_parent()


def _hand_over(channel: socket.socket, path: str, *, write: bool) -> None:
    try:
        descriptor = _open(path)
        trouble = _access_trouble(descriptor, write=write)
    except OSError as error:
        channel.sendall((BARRED if error.errno in NO_CALL else GONE).encode())
        return
    socket.send_fds(channel, [trouble.encode() or b"\0"], [descriptor])
    os.close(descriptor)


def _open(path: str) -> int:
    try:
        # This opens, and so mounts, a directory that is mounted on demand.
        return kernel.open_as_named(f"{path}/.")
    except NotADirectoryError:
        return kernel.open_as_named(path)


# The system's words do not do: clients read "no such file or directory" as "no such program" (exit code 127).
def _access_trouble(descriptor: int, *, write: bool) -> str:
    is_directory = kernel.may(descriptor, os.F_OK) and stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if not kernel.may(descriptor, os.R_OK | (os.X_OK if is_directory else 0)):
        return "you may not read it"
    if write and not kernel.may(descriptor, os.W_OK):
        return "you may not write to it; mount it read-only"
    return ""


def _take(channel: socket.socket) -> tuple[int, str]:
    data, descriptors, _, _ = socket.recv_fds(channel, ANSWER_BYTES, 1)
    if not data:
        raise HelperRefusedError("the caller's own look at the paths broke off")
    return (descriptors[0] if descriptors else -1), data.decode().rstrip("\0")


def _real_path(descriptor: int, path: str) -> str:
    """Return the open file's path; a prefix that the caller cannot open holds nothing to mount."""
    if descriptor < 0:
        return os.path.normpath(path)
    try:
        return _name_of(descriptor)
    finally:
        os.close(descriptor)


# --- files that may be mounted -------------------------------------------------------------------------


class Judge:
    """Judge files by the mounts of the machine and by the barred paths."""

    def __init__(self, order: Order, prefixes: list[str]) -> None:
        self._uid = order["uid"]
        self._table = kernel.read_table()
        self._prefixes = prefixes
        self._barred = [location for path in order["barred"] if (location := self._locate(path))]

    def look(self, descriptor: int, refusal: str, *, again: bool) -> dict[str, str]:
        """Return the file's real path, with a mark if it is outside all prefixes, or the refusal."""
        path = _name_of(descriptor)
        if (mount := kernel.mount_of(descriptor, self._table)) is None:
            return _finding(path, FOREIGN)
        if not any(prefix != "/" and is_under(path, prefix) for prefix in self._prefixes):
            return {**_finding(path), "outside": "yes"}
        trouble = self._trouble(descriptor, path, mount) or refusal
        return _finding(path, trouble or ("" if again else self._missed(path)))

    def _missed(self, path: str) -> str:
        """Name a FUSE file system of the caller's own below the path, which the held mount would leave out.

        FUSE file systems of other users are left out too, but the caller does not look for these.
        """
        for each in kernel.below(path, self._table):
            if kernel.user_of(each) == self._uid:
                return f"{each.point} in it is a file system of your own (FUSE): mount what is beside it"
        return ""

    def _trouble(self, descriptor: int, path: str, mount: Mount) -> str:
        # This check comes before any question to the file itself: a user's file system need not answer.
        if kernel.user_of(mount) is not None:
            return OF_A_USER
        status = os.fstat(descriptor)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            return "it is neither a file nor a directory"
        if status.st_nlink == 0 or path.endswith(DELETED):
            return GONE
        inside = kernel.below(path, self._table)
        locations = [
            kernel.location(path, mount),
            *(kernel.location(each.point, each) for each in inside),
        ]
        for location in locations:
            if barred := next((each for each in self._barred if each.touches(location)), None):
                return f"{barred.path} is for the system only"
        for each in (mount, *inside):
            if each.kind in kernel.KERNELS_OWN:
                return f"{each.point} is the kernel's own ({each.kind})"
        return ""

    def _locate(self, path: str) -> kernel.Location | None:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                mount = kernel.mount_of(descriptor, self._table)
                return None if mount is None else kernel.location(_name_of(descriptor), mount)
            finally:
                os.close(descriptor)
        return None


def _name_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _finding(path: str, trouble: str = "") -> dict[str, str]:
    return {"path": path, "trouble": trouble}


def look_at(order: Order) -> tuple[list[int], list[dict[str, str]]]:
    """Return the open files, and the finding for each wish."""
    opened, prefixes = open_as(order)
    judge = Judge(order, prefixes)
    findings = []
    for (descriptor, refusal), wish in zip(opened, order["wishes"], strict=True):
        path = os.path.normpath(wish["path"])
        if descriptor < 0:
            findings.append(_finding(path, refusal))
        else:
            findings.append(judge.look(descriptor, refusal, again=wish["fixed"]))
    return [descriptor for descriptor, _ in opened], findings


# --- held files ----------------------------------------------------------------------------------------


def hold(order: Order, engine: int | None) -> dict[str, Any]:
    """Look, and if no wish is refused, hold all files under the order's name."""
    files, findings = look_at(order)
    moved = any(
        wish["fixed"] and finding["path"] != wish["path"]
        for wish, finding in zip(order["wishes"], findings, strict=True)
    )
    refused = any(finding["trouble"] or finding.get("outside") for finding in findings)
    if moved or refused or not order["name"]:
        return {"found": findings}
    trees = [
        (os.fstat(each), kernel.clone(each, read_only=not wish["write"]))
        for each, wish in zip(files, order["wishes"], strict=True)
    ]
    folder = _root(order["root"], engine) / order["name"]
    folder.mkdir(mode=0o700, exist_ok=True)
    leaves = [folder / str(number) for number in range(len(trees))]
    new = [leaf for leaf, tree in zip(leaves, trees, strict=True) if _mount_leaf(leaf, *tree)]
    try:
        _leave_out_users_own([str(leaf) for leaf in leaves])
    except BaseException:
        for leaf in new:
            _remove_leaf(leaf)
        raise
    return {"found": findings}


def _mount_leaf(leaf: Path, source: os.stat_result, tree: int) -> bool:
    """Mount the tree on the leaf, unless the same is mounted there already."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(leaf.lstat(), source):
            return False
        _remove_leaf(leaf)
    if stat.S_ISDIR(source.st_mode):
        leaf.mkdir(mode=0)
    else:
        leaf.touch(mode=0)
    target = os.open(leaf, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    kernel.attach(tree, target)
    os.close(target)
    return True


def _leave_out_users_own(leaves: list[str]) -> None:
    """Detach users' own mounts below: one that does not answer would hold up the engine at a start."""
    for _ in range(MOST_ON_EACH_OTHER):
        mounts = kernel.read_table()
        own = [mount for mount in mounts if kernel.user_of(mount) is not None]
        points = {leaf: {each.point for each in kernel.below(leaf, own)} for leaf in leaves}
        if not any(points.values()):
            return
        for leaf in leaves:
            # A mount in another mount is reached through the outer mount, and ends with it.
            for point in kernel.outermost(points[leaf]):
                _detach_users_own(leaf, point.removeprefix(f"{leaf}/"), mounts)
    raise HelperRefusedError("a file system of a user's own (FUSE) could not be left out")


def _detach_users_own(leaf: str, path: str, mounts: list[Mount]) -> None:
    folder = os.open(leaf, os.O_PATH | os.O_CLOEXEC)
    try:
        # Directories on the path belong to the user, who could replace one with a link to anywhere.
        descriptor = kernel.open_below(folder, path)
        top = kernel.mount_of(descriptor, mounts)
        if top is not None and kernel.user_of(top) is not None:
            kernel.detach_opened(descriptor)
        os.close(descriptor)
    finally:
        os.close(folder)


def drop(order: Order, engine: int | None) -> dict[str, Any]:
    """Drop all given names; a container that uses a held file keeps it."""
    root = _root(order["root"], engine)
    for name in order["names"]:
        with contextlib.suppress(FileNotFoundError):
            for leaf in sorted((root / name).iterdir()):
                _remove_leaf(leaf)
            (root / name).rmdir()
    return {}


def names(order: Order, engine: int | None) -> dict[str, Any]:
    """Return the names with the given beginning under which files are held."""
    root = _root(order["root"], engine)
    return {"names": sorted(each.name for each in root.glob(f"{order['beginning']}*"))}


def _remove_leaf(leaf: Path) -> None:
    """Detach the leaf's mounts and remove the leaf; this never removes the mounted files themselves."""
    with contextlib.suppress(OSError):  # the leaf is no mount any more
        while True:
            kernel.detach(str(leaf))
    if stat.S_ISDIR(leaf.lstat().st_mode):
        leaf.rmdir()
    else:
        leaf.unlink()


def _root(path: str, engine: int | None) -> Path:
    """Enter the engine's mount namespace, and return the directory for all held files there.

    The directory is a file system of its own, whose mounts other services do not see: their namespaces would
    get a copy of each mount. Only root may enter, because a mount bypasses the directories above its source.
    """
    if engine is not None:
        kernel.enter(engine)
    root = Path(path)
    root.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # If two helpers look at the same time, the second finds the mount of the first.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(mount.point == path for mount in kernel.read_table()):
            kernel.mount_private_tmpfs(path, ROOT_OPTIONS)
    finally:
        os.close(lock)
    return root


# --- namespaces ----------------------------------------------------------------------------------------


def engine_namespace(pid: int) -> int | None:
    """Open the mount namespace of the engine's process; return None, for the machine's, if it is unknown."""
    if pid == MACHINE:
        return None
    if pid == 0:
        raise HelperRefusedError("the engine runs in another PID namespace")
    try:
        if not os.path.samestat(Path(f"/proc/{pid}/ns/user").stat(), Path("/proc/self/ns/user").stat()):
            raise HelperRefusedError("the engine is not root on this machine")
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HelperRefusedError(f"the engine's mounts cannot be seen ({error.strerror})") from error


def enter_machine() -> None:
    """Enter the first process's namespace, unless this process may not see the first process."""
    try:
        descriptor = os.open(f"/proc/{MACHINE}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError):
        return
    if not os.path.samestat(os.fstat(descriptor), Path("/proc/self/ns/mnt").stat()):
        kernel.enter(descriptor)
    os.close(descriptor)


DEEDS = {
    "hold": hold,
    "drop": drop,
    "names": names,
    "empty-volumes": volume_owners.empty,
    "give-volumes": volume_owners.give,
}


def main() -> None:
    order = json.load(sys.stdin)
    try:
        # Without an engine the order only looks.
        engine = engine_namespace(order["engine"]) if order["engine"] is not None else None
        enter_machine()
        answer = DEEDS[order["deed"]](order, engine)
    except HelperRefusedError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        code = "" if error.errno == errno.ENOSYS else f", error {error.errno}"
        answer = {"refused": f"{error.strerror}{code}"}
    json.dump(answer, sys.stdout)
