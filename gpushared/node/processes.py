"""The processes behind leases and jobs that wait: each is watched by a handle of the kernel's."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection

from gpushared.domain.request import Process
from gpushared.serving.identity import handle_on

log = logging.getLogger(__name__)


class Processes:
    """Tells which processes have ended, and when one does. Lives in the event loop."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Set when a process ends that is watched; to be cleared by whoever waits for it."""
        self._handles: dict[Process, int] = {}
        self._over: set[Process] = set()

    def has_ended(self, process: Process) -> bool:
        """Watches it from now on. Where it cannot be watched, nothing is known of its end."""
        if process in self._over:
            return True
        if process in self._handles:
            return False
        try:
            handle = handle_on(process)
        except OSError as error:
            log.warning("process %d cannot be watched: %s", process.pid, error)
            return False
        if handle is None:
            self._over.add(process)
            return True
        self._handles[process] = handle
        asyncio.get_running_loop().add_reader(handle, self._has_ended, process)
        return False

    def watch_only(self, processes: Collection[Process]) -> None:
        """Forget all others."""
        self._over &= set(processes)
        for process in self._handles.keys() - set(processes):
            self._let_go(process)

    def close(self) -> None:
        self.watch_only(())

    def _has_ended(self, process: Process) -> None:
        self._let_go(process)
        self._over.add(process)
        self.ended.set()

    def _let_go(self, process: Process) -> None:
        handle = self._handles.pop(process)
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
