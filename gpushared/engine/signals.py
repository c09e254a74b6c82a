"""Read how the processes of a container handle signals, from ``/proc/PID/status`` (proc(5))."""

from __future__ import annotations

from pathlib import Path

from gpushared.domain.leases.stop_order import SignalHandling
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.processes import ProcessTable

INITS = frozenset({"docker-init", "tini", "tini-static", "dumb-init", "catatonit"})
"""Containers run these programs first to hand signals on; the names are those in ``comm``."""
_PROC = Path("/proc")
_DEPTH = 2
"""The depth covers an init, and the child that it hands signals on to, which may be another init."""


def members(container: ContainerId, proc: Path = _PROC) -> frozenset[int]:
    """Return the host PIDs of a container's processes.

    This reads all of ``/proc``: some ms, so not on the loop.
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
            children=tuple(one for child in children if (one := read_process(child, proc, depth - 1))),
        )
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _children(pid: int, proc: Path) -> list[int]:
    found = (proc / str(pid) / "task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]
