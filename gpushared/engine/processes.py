"""Find the container of a process (proc(5), cgroups(7)), hold processes, and read how they handle signals.

The engine's cgroup names hold the container's full id, 64 hexadecimal digits, in several forms:
``4:memory:/docker/<id>`` (v1, cgroupfs), ``1:name=systemd:/system.slice/docker-<id>.scope`` (v1, systemd),
``0::/docker/<id>`` and ``0::/system.slice/docker-<id>.scope`` (v2). Each may have a longer path behind it,
and one container's id before another's if an engine runs inside a container.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.leases.stop_order import SignalHandling
from gpushared.domain.model.lease import ContainerId

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
STAT_BYTES = 4096
"""The size is more than the 52 fields of a ``stat`` can take."""
_START_TIME = 22 - 3
"""The start time is field 22 of /proc/PID/stat; the fields behind the command begin with field 3."""
MAX_HANDLES = 256
"""A service may have 1024 open files by default, and needs other files for its work."""
INITS = frozenset({"docker-init", "tini", "tini-static", "dumb-init", "catatonit"})
"""Containers run these programs first to forward signals; the names are those in ``comm``."""
_PROC = Path("/proc")
_DEPTH = 2
"""The depth covers an init, and the child that it forwards signals to, which may be another init."""


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """Describe a process that lives.

    ``start_ticks`` (clock ticks since boot) distinguishes it from a later one of the same PID.
    ``container_ids`` holds the containers around it, outermost first; empty for a process of the host.
    """

    pid: int
    start_ticks: int
    container_ids: tuple[ContainerId, ...]

    @property
    def container(self) -> ContainerId | None:
        """Return the innermost container around the process."""
        return self.container_ids[-1] if self.container_ids else None

    def container_among(self, containers: Collection[ContainerId]) -> ContainerId | None:
        """Return the one of these containers that the process belongs to.

        The outermost counts: a container may invent names below its own cgroup, such as the id of another
        user's container, and they then do not matter.
        """
        return next((container for container in self.container_ids if container in containers), None)


def containers_of_cgroup(text: str) -> tuple[ContainerId, ...]:
    """Return the container ids in the text of a ``/proc/PID/cgroup``, outermost first.

    In v1 each controller may have its own place; the deepest nesting is the most informative.
    """
    paths = (line.split(":", 2)[-1] for line in text.splitlines())
    chains = (tuple(map(ContainerId, _ID.findall(path))) for path in paths)
    return max(chains, key=len, default=())


def place_of(pid: int, container: ContainerId, proc: Path = Path("/proc")) -> str | None:
    """Return the cgroup of a container's process, as a path from the top of the tree of cgroup v2.

    Return None if the process is gone, or its PID belongs to another one by now. This reads files: call it
    off the event loop.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    unified = (line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::/"))
    return next((path for path in unified if container in path), None)


def start_ticks_of_stat(text: str) -> int:
    """Return the start time in a ``/proc/PID/stat``; the command there may hold blanks and brackets."""
    return int(text.rpartition(")")[2].split()[_START_TIME])


def began_with(pid: int, env: Mapping[str, str], proc: Path = Path("/proc")) -> bool:
    """Return True if the process began with all of these variables; False if that is unknown."""
    try:
        entries = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return {f"{name}={value}".encode() for name, value in env.items()} <= set(entries)


class ProcessTable:
    """Look processes up; remember those of the last pass, so that a process that stays costs little.

    Reads of ``/proc`` do not wait for anything: 64 processes take about half a millisecond. With ``handles``
    the processes that stay cost one call together, for callers that look again and again.
    """

    def __init__(self, proc: Path = Path("/proc"), *, handles: ProcessHandles | None = None) -> None:
        self._proc = proc
        self._processes: dict[int, LiveProcess] = {}
        self._handles = handles

    def look_up(self, pids: Iterable[int]) -> dict[int, LiveProcess]:
        """Return the living processes among these, and forget all others."""
        if self._handles is not None:
            for pid in self._handles.drop_ended():
                self._processes.pop(pid, None)
        processes = {pid: process for pid in pids if (process := self._find(pid)) is not None}
        if self._handles is not None:
            self._handles.keep_only(processes.keys())
        self._processes = processes
        return dict(processes)

    def _find(self, pid: int) -> LiveProcess | None:
        handles = self._handles
        if handles is None:
            return self._process(pid)
        if pid in handles and pid in self._processes:
            return self._processes[pid]
        # The handle comes first: if another process takes the PID in between, the next pass finds the
        # handle's end.
        handles.take(pid)
        return self._process(pid)

    def _process(self, pid: int) -> LiveProcess | None:
        try:
            start = self._start_ticks(pid)
            earlier = self._processes.get(pid)
            if earlier is not None and earlier.start_ticks == start:
                return earlier
            containers = containers_of_cgroup((self._proc / str(pid) / "cgroup").read_text())
            # If another process had taken the PID between the two reads, they would not match.
            return LiveProcess(pid, start, containers) if self._start_ticks(pid) == start else None
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _start_ticks(self, pid: int) -> int:
        # Each process is read four times a second: pathlib and text files cost three times as much.
        descriptor = os.open(f"{self._proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return start_ticks_of_stat(os.read(descriptor, STAT_BYTES).decode(errors="replace"))
        finally:
            os.close(descriptor)


class ProcessHandles:
    """Keep handles of processes. A PID may pass to another process, a handle never does (pidfd_open(2))."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._pids: dict[int, int] = {}
        """The key is the handle."""
        self._handles: dict[int, int] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._handles

    def take(self, pid: int) -> None:
        """Open a handle, if there may be one more and the process lives."""
        if pid in self._handles or len(self._handles) >= MAX_HANDLES:
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        self._poll.register(handle, select.POLLIN)
        self._pids[handle], self._handles[pid] = pid, handle

    def drop_ended(self) -> frozenset[int]:
        """Return the PIDs whose processes have ended since; their handles are closed."""
        ended = frozenset(self._pids[handle] for handle, _ in self._poll.poll(0))
        for pid in ended:
            self._drop(pid)
        return ended

    def keep_only(self, pids: Collection[int]) -> None:
        for pid in self._handles.keys() - pids:
            self._drop(pid)

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        del self._pids[handle]
        self._poll.unregister(handle)
        os.close(handle)


def members(container: ContainerId, proc: Path = _PROC) -> frozenset[int]:
    """Return the host PIDs of a container's processes.

    This reads all of ``/proc``, which takes some ms: call it off the event loop.
    """
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]
    table = ProcessTable(proc).look_up(pids)
    return frozenset(pid for pid, process in table.items() if process.container_among({container}))


def read_process(pid: int, proc: Path = _PROC, depth: int = _DEPTH) -> SignalHandling | None:
    """Return how a process and its children handle signals; None if the process has ended."""
    try:
        text = (proc / str(pid) / "status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        children = _children(pid, proc) if depth else []
        return SignalHandling(
            caught=int(fields["SigCgt"], 16),
            blocked=int(fields["SigBlk"], 16),
            ignored=int(fields["SigIgn"], 16),
            init=fields["Name"].strip() in INITS,
            first=fields["NSpid"].split()[-1] == "1",
            children=tuple(filter(None, (read_process(child, proc, depth - 1) for child in children))),
        )
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _children(pid: int, proc: Path) -> list[int]:
    files = (proc / str(pid) / "task").glob("*/children")
    return [int(child) for path in files for child in path.read_text().split()]
