"""Read the machine's side: kernel, file systems, groups, the daemon's unit. This blocks: for ``Readers``."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import psutil

from gpushared.doctor.facts import Directory, Groups, HostFacts, SocketFile, Unit

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""The number is ``PROC_PID_INIT_INO``, fixed in the kernel's include/linux/proc_ns.h."""
NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
NO_LIMIT_BYTES = 2**60
"""cgroup v1 writes no limit as the largest number of whole pages."""
PROGRAM_SECONDS = 4.0
OTHERS_ENTER = 0o001


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read the machine. ``root`` is the top of its file systems; another one than ``/`` is for tests."""
    return HostFacts(
        kernel=os.uname().release,
        cgroup_version=2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        init_pid_namespace=str((root / "proc/self/ns/pid").readlink()) == INIT_PID_NAMESPACE,
        selinux_enforces=_text(root / "sys/fs/selinux/enforce") == "1",
        memory_limit_bytes=_memory_limit(root),
        persistence_daemon=(root / "run/nvidia-persistenced/socket").exists(),
        missing_device_nodes=tuple(node for node in NEEDED_NODES if not _under(root, node).exists()),
        missing_char_links=tuple(_missing_char_links(root)),
    )


def read_groups(names: Collection[str], passwd: Path = Path("/etc/passwd")) -> Groups:
    """Return the members by the name services, and the users whose first group it is in ``passwd``.

    The user root is left out.
    """
    return Groups({name: _members(name, passwd) for name in names})


def read_unit(environ: Mapping[str, str], root: Path = Path("/")) -> Unit | None:
    """Return the unit whose main process this is, or None outside systemd. This asks ``systemctl``."""
    if "INVOCATION_ID" not in environ:
        return None
    names = {Path(path).name for _, path in _own_cgroups(root)}
    for name in sorted(name for name in names if name.endswith(".service")):
        properties = _properties(name)
        if properties.get("MainPID") == str(os.getpid()):
            return Unit(name, properties["KillMode"], properties["RuntimeDirectoryPreserve"])
    return None


def read_socket(path: Path) -> SocketFile:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return SocketFile(str(path), is_socket=False)
    closed = (one for one in reversed(path.parents) if not one.stat().st_mode & OTHERS_ENTER)
    first = next(closed, None)
    return SocketFile(str(path), stat.S_ISSOCK(mode), stat.S_IMODE(mode), str(first) if first else "")


def read_directory(path: Path) -> Directory:
    """Describe a directory; its free space is the part that is left for users other than root."""
    figures = os.statvfs(path)
    return Directory(
        path=str(path),
        file_system=file_system(path),
        free_bytes=figures.f_bavail * figures.f_frsize,
        free_inodes=figures.f_favail if figures.f_files else None,
        writable=os.access(path, os.W_OK | os.X_OK),
    )


def file_system(path: Path) -> str:
    """Return the type of a path's file system, such as ``tmpfs``; empty if nothing tells the type."""
    types = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = path.resolve()
    return next((types[parent] for parent in (resolved, *resolved.parents) if parent in types), "")


def program_output(*words: str) -> str:
    """Return a program's output. Raises ``OSError`` if the program is missing or takes too long."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(0, f"{words[0]} did not end within {PROGRAM_SECONDS:g} s") from None
    return done.stdout


def _members(name: str, passwd: Path) -> tuple[str, ...]:
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return ()
    rows = (line.split(":") for line in passwd.read_text(errors="replace").splitlines())
    first = {row[0] for row in rows if len(row) > 3 and row[3] == str(group.gr_gid)}  # noqa: PLR2004 - passwd(5)
    return tuple(sorted((first | set(group.gr_mem)) - {"root"}))


def _properties(unit: str) -> dict[str, str]:
    wanted = "--property=MainPID,KillMode,RuntimeDirectoryPreserve"
    lines = program_output("systemctl", "show", wanted, unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _missing_char_links(root: Path) -> Iterator[str]:
    """Return the nodes without a link by which systemd looks devices up: ``/dev/char/<major>:<minor>``."""
    for node in sorted((root / "dev").glob("nvidia*")):
        about = node.stat()
        if stat.S_ISCHR(about.st_mode):
            link = f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
            if not (root / "dev/char" / link).exists():
                yield f"/dev/{node.name}"


def _memory_limit(root: Path) -> int | None:
    """Return the tightest limit of this process's cgroup and those above it."""
    limits = [limit for file in _limit_files(root) if (limit := _number(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    for controllers, path in _own_cgroups(root):
        if not controllers:
            home, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            home, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = _under(home, path)
        yield from (one / name for one in (own, *own.parents) if one.is_relative_to(home))


def _own_cgroups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers (none for cgroup v2) and path of each line, see cgroups(7)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None


def _text(file: Path) -> str:
    """Return a file's text; empty if there is no such file."""
    try:
        return file.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
