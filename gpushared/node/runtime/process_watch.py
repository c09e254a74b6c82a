"""Watch the processes behind waiting leases and jobs, each by a handle of the kernel's."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection

from gpushared.domain.model.request import Process
from gpushared.net.identity import handle_on

log = logging.getLogger(__name__)


class Processes:
    """Tell which processes have ended, and when one ends. Works in the event loop."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """The event is set when a watched process ends; the waiting task must clear it."""
        self._handles: dict[Process, int] = {}
        self._over: set[Process] = set()

    def has_ended(self, process: Process) -> bool:
        """Return True if the process has ended, and watch it from now on.

        The end of a process that cannot be watched is not known.
        """
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
        """Watch only these processes; forget all others."""
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
