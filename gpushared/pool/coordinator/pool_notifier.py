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
_Told = frozenset[tuple[NotificationKind, str]]


class PoolNotifier:
    """Add the events of a pool to its coordinator's outbox."""

    def __init__(self, loop: PoolLoop, outbox: NotificationOutbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._told: dict[str, _Told] = {}
        self._begun = False
        outbox.live = self._live
        loop.observers.append(self.observe)

    async def run(self) -> None:
        """Tell what a crash kept from being told, then look after the nodes, for ever."""
        self.begin(await self._outbox.open())
        while True:
            self._tell(of_nodes(self._loop.state, self._loop.now(), self._told))
            await asyncio.sleep(LOOK_SECONDS)

    def begin(self, contents: OutboxContents) -> None:
        """Take over from the file: events since its beginning that it does not know are told now."""
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
        self._told = {subject: told for subject, told in self._told.items() if subject in live}
        self._begun = True

    def observe(self, _before: PoolState, step: PoolStep) -> None:
        """Tell the events of a step that is in the store."""
        if self._begun:
            for job in (*step.jobs, *step.shown):
                self._look(job)

    def _live(self) -> Collection[str]:
        state = self._loop.state
        jobs = [one for one in self._told if JobId(one.removeprefix(JOB_SUBJECT)) in state.jobs]
        return [*jobs, *(NODE_SUBJECT + node for node in state.members)]

    def _look(self, job: Job, oldest: float | None = None) -> None:
        subject = JOB_SUBJECT + job.id
        self._tell(of_job(job, self._told.get(subject, ())), oldest)
        if isinstance(job.state, Ended):
            self._told.pop(subject, None)

    def _tell(self, events: Iterable[Notification], oldest: float | None = None) -> None:
        """Add the events; after a restart those from before ``oldest`` only count as told."""
        for event in events:
            self._remember(event.subject, event.kind, event.occasion)
            if oldest is None or event.at >= oldest:
                self._outbox.add([event], late=oldest is not None)

    def _remember(self, subject: str, kind: NotificationKind, occasion: str) -> None:
        self._told[subject] = self._told.get(subject, frozenset()) | {(kind, occasion)}
