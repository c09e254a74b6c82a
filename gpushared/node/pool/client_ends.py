"""Tell the pool about interactive jobs whose client has ended, so that they hold nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from gpushared.domain.model.lease import JobId
from gpushared.node.runtime.client_presence_checks import Processes
from gpushared.pool.member.outbox import Outbox, OutboxRecord

LOOK_SECONDS = 2.0
"""The link repeats so often that a client is gone, as nobody acknowledges that.

The repetition stops when the job ends or its container runs.
"""
_HAS_CONTAINER = frozenset({"running", "paused"})


class ClientEndsLink(Protocol):
    """The stream to the coordinator."""

    def client_gone(self, job: JobId) -> None: ...


class PoolClients:
    """Watch the processes that wait for jobs in the outbox."""

    def __init__(self, outbox: Outbox, link: ClientEndsLink) -> None:
        self._outbox = outbox
        self._link = link

    async def run(self) -> None:
        """Watch the clients of interactive jobs, for ever."""
        processes = Processes()
        try:
            while True:
                self._look(processes)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await processes.ended.wait()
                processes.ended.clear()
        finally:
            processes.close()

    def _look(self, processes: Processes) -> None:
        waiting = [record for record in self._outbox.attended() if not _has_container(record)]
        holders = {record.job: record.holder for record in waiting if record.holder is not None}
        processes.watch_only(holders.values())
        for job, holder in holders.items():
            if processes.has_ended(holder):
                self._link.client_gone(job)


def _has_container(record: OutboxRecord) -> bool:
    """Return True if the pool's last word shows a container; the job's node knows better, and decides."""
    view = record.mirrored()
    return view is not None and view.state in _HAS_CONTAINER
