"""Watch the steps of a coordinator, and notify of jobs that begin and end, and of nodes that fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from gpushared.domain.jobs.coordinator_state import PoolState, PoolStep
from gpushared.domain.jobs.job import Ended, Job
from gpushared.domain.jobs.job_notifications import JOB_SUBJECT, NODE_SUBJECT, of_job, of_nodes
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.notification import Notification, NotificationKind
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.notify.outbox import RECENT_SECONDS, NotificationOutbox
from gpushared.storage.notification_file import OutboxContents

LOOK_SECONDS = 1.0
_Notified = frozenset[tuple[NotificationKind, str]]


class PoolNotifier:
    """Add the events of a pool to its coordinator's outbox."""

    def __init__(self, loop: PoolLoop, outbox: NotificationOutbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._notified: dict[str, _Notified] = {}
        self._has_begun = False
        outbox.live = self._live
        loop.observers.append(self.observe)

    async def run(self) -> None:
        """Add the events that a crash kept from the outbox, then look at the nodes for ever."""
        self.begin(await self._outbox.open())
        while True:
            self._add(of_nodes(self._loop.state, self._loop.now(), self._notified))
            await asyncio.sleep(LOOK_SECONDS)

    def begin(self, contents: OutboxContents) -> None:
        """Start from the outbox's file, and add the events since its beginning that the file does not know."""
        for subject, kind, occasion in contents.known_events:
            self._remember(subject, NotificationKind(kind), occasion)
        oldest = max(contents.since, self._loop.now() - RECENT_SECONDS)
        state = self._loop.state
        # A pool may know a hundred thousand jobs that were over long ago.
        ended = [
            job for job in state.ended.values() if isinstance(job.state, Ended) and job.state.at >= oldest
        ]
        for job in (*ended, *state.jobs.values()):
            self._look(job, oldest)
        live = set(self._live())
        self._notified = {subject: kinds for subject, kinds in self._notified.items() if subject in live}
        self._has_begun = True

    def observe(self, _before: PoolState, step: PoolStep) -> None:
        """Add the events of a step that is in the store."""
        if self._has_begun:
            for job in (*step.jobs, *step.shown):
                self._look(job)

    def _live(self) -> Collection[str]:
        state = self._loop.state
        jobs = [each for each in self._notified if JobId(each.removeprefix(JOB_SUBJECT)) in state.jobs]
        return [*jobs, *(NODE_SUBJECT + node for node in state.members)]

    def _look(self, job: Job, oldest: float | None = None) -> None:
        subject = JOB_SUBJECT + job.id
        self._add(of_job(job, self._notified.get(subject, ())), oldest)
        if isinstance(job.state, Ended):
            self._notified.pop(subject, None)

    def _add(self, events: Iterable[Notification], oldest: float | None = None) -> None:
        """Add the events to the outbox, but not those from before ``oldest``; remember all of them."""
        for event in events:
            self._remember(event.subject, event.kind, event.occasion)
            if oldest is None or event.at >= oldest:
                self._outbox.add([event], late=oldest is not None)

    def _remember(self, subject: str, kind: NotificationKind, occasion: str) -> None:
        self._notified[subject] = self._notified.get(subject, frozenset()) | {(kind, occasion)}
