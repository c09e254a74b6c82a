"""Find the leases whose client is gone: they leave the queue, or are given back if they have no container.

A client is gone when its process is known to have ended, or when no call has asked for the lease for too
long. The time without a call is recorded in steps, so that a restart of the daemon does not give a client the
whole time once more.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gpushared.domain.leases.events import RequestMissed
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import Lease, LeaseId, Queued, Reserved
from gpushared.domain.model.request import Process
from gpushared.net.identity import handle_on

STEP_SECONDS = 5
"""A restart of the daemon forgets less than this much of a silence."""
log = logging.getLogger(__name__)


class ClientPresence:
    """Count waiting clients per lease, and watch the processes that hold leases."""

    def __init__(self, started_at: float) -> None:
        self.processes = Processes()
        self._present: Counter[LeaseId] = Counter()
        self._last_seen: dict[LeaseId, float] = {}
        self._started_at = started_at

    def opened(self, now: float) -> None:
        """Count silence from now on: no client could ask before."""
        self._started_at = now

    def seen(self, lease: LeaseId, now: float) -> None:
        """Note that a client asked for this lease just now."""
        self._last_seen[lease] = now

    @contextmanager
    def waiting(self, lease: LeaseId, now: float) -> Iterator[None]:
        """Count a client as present while the block runs; then call ``seen`` with the time of its end."""
        self.seen(lease, now)
        self._present[lease] += 1
        try:
            yield
        finally:
            self._present[lease] -= 1
            if not self._present[lease]:
                del self._present[lease]

    def abandoned(self, state: NodeState, now: float, patience_seconds: float) -> list[LeaseId]:
        """Return the leases without a container whose process has ended or whose client is gone.

        A client is gone when no call has asked for the lease for ``patience_seconds``.
        """
        waiting = self._awaited(state, now)
        silent = [lease.id for lease in waiting if self._silence(lease, now) >= patience_seconds]
        return [*self.with_ended_client(state), *silent]

    def with_ended_client(self, state: NodeState) -> list[LeaseId]:
        """Return the leases without a container whose process has ended."""
        unclaimed = [lease for lease in state.leases.values() if _is_unclaimed(lease)]
        holders = {lease.id: lease.holder for lease in unclaimed if lease.holder is not None}
        self.processes.watch_only(holders.values())
        return [lease for lease, holder in holders.items() if self.processes.has_ended(holder)]

    def missed(self, state: NodeState, now: float) -> list[RequestMissed]:
        """Return an event for each silence that has grown by a step, or ended, since its last record."""
        steps = [(lease, _step(self._silence(lease, now))) for lease in self._awaited(state, now)]
        return [RequestMissed(lease.id, step) for lease, step in steps if step != lease.missed_seconds]

    def _awaited(self, state: NodeState, now: float) -> list[Lease]:
        """Return the queued leases for which a client should wait."""
        queued = [lease for lease in state.waiting() if _is_awaited(lease)]
        last_seen = {
            lease.id: self._last_seen.get(lease.id, self._started_at - lease.missed_seconds)
            for lease in queued
        }
        self._last_seen = last_seen | dict.fromkeys(last_seen.keys() & self._present.keys(), now)
        return queued

    def _silence(self, lease: Lease, now: float) -> float:
        return now - self._last_seen[lease.id]


def _step(seconds: float) -> int:
    return int(seconds) // STEP_SECONDS * STEP_SECONDS


def _is_awaited(lease: Lease) -> bool:
    """Return True if a client should wait for the lease; a job's lease waits without a client."""
    return isinstance(lease.state, Queued) and lease.attempt is None


def _is_unclaimed(lease: Lease) -> bool:
    state = lease.state
    return isinstance(state, Queued) or (isinstance(state, Reserved) and not state.claimed)


class Processes:
    """Report which processes have ended, and when one ends. Works in the event loop."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """The event is set when a watched process ends; the waiting task must clear it."""
        self._handles: dict[Process, int] = {}
        self._over: set[Process] = set()

    def has_ended(self, process: Process) -> bool:
        """Return True if the process has ended, and watch the process from now on.

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
