"""Read a container's use of the host's memory from its cgroup.

Cgroup v2: "Memory Interface Files" of the kernel's cgroup-v2.rst; v1: memory.rst of cgroup-v1.
"""

from __future__ import annotations

from pathlib import Path

from gpushared.domain.model.lease import ContainerId

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_USE = ("memory.current", "memory.usage_in_bytes")
"""The first file is that of v2, the second that of v1."""
_FILES = frozenset({"active_file", "inactive_file"}), frozenset({"total_active_file", "total_inactive_file"})
"""These are pages of files, which the kernel takes back before it ends any process; tmpfs has none of
them."""


def memory_used(pid: int, container: ContainerId, *, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that the kernel cannot take back; 0 if they cannot be read. This reads files.

    ``pid``: any process of the container.
    """
    try:
        own, version = _place(pid, container, proc, cgroups)
        used = int((own / _USE[version]).read_text())
        stat = (line.split() for line in (own / "memory.stat").read_text().splitlines())
        return max(0, used - sum(int(amount) for name, amount in stat if name in _FILES[version]))
    except (OSError, ValueError):
        return 0


def _place(pid: int, container: ContainerId, proc: Path, cgroups: Path) -> tuple[Path, int]:
    """Return the container's directory, and 0 for v2 or 1 for v1. Raises OSError, or ValueError without one.

    A process may be in a cgroup below, which a program in the container has made; the container's counts.
    """
    found: dict[int, Path] = {}
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        at = next((at for at, part in enumerate(parts) if container in part), None)
        if at is not None and not controllers:
            found[0] = cgroups.joinpath(*parts[: at + 1])
        elif at is not None and "memory" in controllers.split(","):
            found[1] = cgroups.joinpath("memory", *parts[: at + 1])
    if not found:
        raise ValueError(f"process {pid} is in no cgroup of {container}")
    version = max(found)  # if v1 has the memory, v2 does not have it
    return found[version], version
