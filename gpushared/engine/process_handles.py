"""Keep handles of processes, by which one call tells which processes have ended."""

from __future__ import annotations

import os
import select
from collections.abc import Collection

MAX_HANDLES = 256
"""A service may have 1024 open files by default, and needs other files for its work."""


class ProcessHandles:
    """Keep handles. A handle is of a process, not of a PID, which may have changed hands (pidfd_open(2))."""

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
