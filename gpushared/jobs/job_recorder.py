"""Record the jobs of a coordinator in the history: one row for each job, and why the job waited.

The store has every job: after a crash the recorder reads there the jobs that the history lacks. If the history
cannot be written, the recorder raises a trouble, the jobs go on, and the rows are written later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.job_summary import JobSummary
from gpushared.domain.jobs.attempt_history import span
from gpushared.domain.jobs.coordinator_state import PoolState, PoolStep
from gpushared.domain.jobs.job import (
    HERE,
    Cancelled,
    Cancelling,
    Ended,
    Job,
    JobFailed,
    Placing,
    Queued,
    Running,
    exit_code_of,
    outcome_word,
)
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.span import milliseconds
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_reasons import wait_code
from gpushared.jobs.job_views import default_name
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.history_writer import HistoryWriter
from gpushared.storage.history.records import JobBatch

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Sample this often why jobs wait, in a queue of more than ``LONG_QUEUE`` jobs once a minute."""
LONG_QUEUE = 2000
WRITE_SECONDS = 60.0
JOBS_PER_WRITE = 1000
JOBS_PER_READ = 200
WALKED_AT_ONCE = 500
"""Walk through this many jobs at a time, so that the event loop is never blocked for long."""
MAX_CLOSED = 10_000
MAX_UNWRITTEN = 50_000
MAX_NODES_NAMED = 64
MAX_TEXT = 256
PART = "history-jobs"

OwnerOf = Callable[[Job], tuple[str, int]]
"""Return the name of a job's owner in this history, and the owner's number; -1 for none."""


def person_of(job: Job) -> tuple[str, int]:
    """Return the owner as a pool names people."""
    return job.spec.owner.person, -1


class JobRecorder(HistoryWriter):
    """Observe the jobs, and write their summaries and waits to the history while ``run`` runs."""

    def __init__(
        self, loop: PoolLoop, history: SqliteHistory, troubles: Troubles, owner_of: OwnerOf = person_of
    ) -> None:
        super().__init__(troubles, PART, "the history of the jobs")
        self._loop = loop
        self._history = history
        self._owner_of = owner_of
        self._unwritten: dict[JobId, JobSummary] = {}
        self._open: dict[JobId, JobSummary] = {}
        """Hold the newest summary of each job that is not over."""
        self._closed: dict[JobId, JobSummary] = {}
        """Hold the newest summaries of jobs that ended lately: their last reports may still come."""
        self._waits: dict[tuple[str, str], int] = {}
        self._changed_waits: set[tuple[str, str]] = set()
        self._is_resumed = False
        self._changed_during_read: dict[JobId, Job] | None = None
        """Hold the jobs that change while the store is read; None while it is not."""
        self._looked_at = loop.now()
        loop.observers.append(self._observe)

    async def run(self) -> None:
        """Record for ever."""
        due = 0.0
        while True:
            if time.monotonic() >= due:
                ok = await self._try_to_write()
                due = time.monotonic() + (WRITE_SECONDS if ok else 0.0)
            await asyncio.sleep(LOOK_SECONDS)
            await self._note_waits()

    def _is_stale(self) -> bool:
        return bool(self._unwritten) or super()._is_stale()

    # --- gathering -------------------------------------------------------------------------------------

    def _observe(self, _before: PoolState, step: PoolStep) -> None:
        for job in (*step.jobs, *step.shown):
            if self._is_resumed:
                self._note_job(job)
            elif self._changed_during_read is not None:
                self._changed_during_read[job.id] = job
        if len(self._unwritten) > MAX_UNWRITTEN:
            # The store has all jobs: read them there once the history can be written again.
            self._unwritten.clear()
            self._is_resumed = False

    def _note_job(self, job: Job) -> None:
        before = self._open.get(job.id) or self._closed.get(job.id)
        summary = self._summary_of(job, before)
        if summary == before:
            return
        self._unwritten[job.id] = summary
        if summary.ended_at is None:
            self._open[job.id] = summary
            return
        self._open.pop(job.id, None)
        self._closed[job.id] = summary
        if len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _summary_of(self, job: Job, before: JobSummary | None) -> JobSummary:
        waited_ms, queued_since = (
            (0, job.asked_at) if before is None else (before.waited_ms, before.queued_since)
        )
        since = job.state.since if isinstance(job.state, Queued) else None
        if queued_since is not None and since != queued_since:
            waited_ms += max(0, milliseconds(_left_queue_at(job, queued_since) - queued_since))
        owner, uid = self._owner_of(job)
        if before is not None and uid < 0:
            owner, uid = before.owner, before.owner_uid  # the lease with the owner may be forgotten
        request, state = job.spec.request, job.state
        over = state if isinstance(state, Ended) else None
        return JobSummary(
            job=job.id,
            owner_uid=uid,
            owner=owner,
            project=job.project or request.project,
            lease_class=request.lease_class.value,
            name=(job.spec.name or default_name(job.id))[:MAX_TEXT],
            image=job.spec.image[:MAX_TEXT],
            node_count=job.spec.nodes,
            gpu_count=len(request.gpus) or request.gpu_count,
            memory_bytes=request.memory_bytes,
            memory_permille=request.memory_permille,
            compute_permille=request.compute_permille,
            time_limit_seconds=request.time_limit_seconds,
            submitted_at=job.asked_at,
            started_at=_started_at(job),
            ended_at=None if over is None else _ended_at(job, over),
            outcome="" if over is None else outcome_word(over.outcome),
            outcome_text="" if over is None else _outcome_text(over)[:MAX_TEXT],
            exit_code=None if over is None else exit_code_of(over.outcome),
            attempts=job.attempts,
            preemptions=job.preemptions,
            nodes=",".join(sorted(job.nodes - {HERE})[:MAX_NODES_NAMED]),
            waited_ms=waited_ms,
            queued_since=since,
        )

    async def _note_waits(self) -> None:
        state, now = self._loop.state, self._loop.now()
        every = LOOK_SECONDS if state.queued_count <= LONG_QUEUE else WRITE_SECONDS
        since = self._looked_at
        if now - since < every - LOOK_SECONDS / 2 or not self._is_resumed:
            return
        self._looked_at = now
        if not state.queued_count:
            return
        for walked, job in enumerate(state.jobs.values(), start=1):
            if isinstance(job.state, Queued) and (code := wait_code(job, state, now)):
                key = (job.id, code)
                self._waits[key] = self._waits.get(key, 0) + milliseconds(now - max(since, job.state.since))
                self._changed_waits.add(key)
            if walked % WALKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    # --- writing ---------------------------------------------------------------------------------------

    async def _write(self) -> None:
        if not self._is_resumed:
            await self._resume()
        more = True
        while more:
            more = await self._write_batch()

    async def _write_batch(self) -> bool:
        """Write one batch, and return True if there is more."""
        some = dict(list(self._unwritten.items())[:JOBS_PER_WRITE])
        waits = {key: self._waits[key] for key in list(self._changed_waits)[: 10 * JOBS_PER_WRITE]}
        now, ahead = milliseconds(self._loop.now()), milliseconds(self._loop.state.ahead_seconds)
        await self._history.write_jobs(JobBatch(now, ahead, tuple(some.values()), waits))
        for job, summary in some.items():
            if self._unwritten.get(job) is summary:
                del self._unwritten[job]
        self._changed_waits.difference_update(key for key, ms in waits.items() if self._waits[key] == ms)
        over = [key for key in waits if JobId(key[0]) not in self._open and key not in self._changed_waits]
        for key in over:
            del self._waits[key]
        return bool(self._unwritten)

    # --- after a start ---------------------------------------------------------------------------------

    async def _resume(self) -> None:
        """Read what an earlier run has written, and take the other jobs from the store."""
        self._changed_during_read = {}
        try:
            await self._read_back()
        finally:
            changed, self._changed_during_read = self._changed_during_read, None
        self._is_resumed = True
        for job in changed.values():
            self._note_job(job)

    async def _read_back(self) -> None:
        resumption = await self._history.resume_jobs()
        self._open = {JobId(job): summary for job, summary in resumption.open_jobs.items()}
        self._waits = {**resumption.waits, **self._waits}
        unseen = dict(self._open)
        await self._note_ended(resumption.newest_ended_at, unseen)
        for walked, job in enumerate(self._loop.state.jobs.values(), start=1):
            self._note_job(job)
            unseen.pop(job.id, None)
            if walked % WALKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for lost, summary in unseen.items():
            await self._end_lost(lost, summary)

    async def _note_ended(self, newest: float | None, unseen: dict[JobId, JobSummary]) -> None:
        """Take the jobs that ended after the newest end in the history, all of them if it has none."""
        token = ""
        while True:
            page = await self._loop.archive.page(JOBS_PER_READ, token)
            for job in page.jobs:
                assert isinstance(job.state, Ended), "the archive has finished jobs only"
                if newest is None or _ended_at(job, job.state) > newest or job.id in unseen:
                    self._note_job(job)
                    unseen.pop(job.id, None)
            oldest = page.jobs[-1].state if page.jobs else None
            passed = newest is not None and isinstance(oldest, Ended) and oldest.at < newest
            token = page.next_token
            if not token or passed:
                return

    async def _end_lost(self, job: JobId, summary: JobSummary) -> None:
        """End a job of the history that the state does not have: it is over, or the store lost it."""
        ended_job = await self._loop.archive.get(job)
        if ended_job is not None:
            self._note_job(ended_job)
            return
        del self._open[job]
        self._unwritten[job] = replace(
            summary, ended_at=self._loop.now(), outcome="unknown", queued_since=None
        )


def _left_queue_at(job: Job, queued_since: float) -> float:
    """Return when the job left the queue in which it waited since ``queued_since``."""
    match job.state:
        case Placing(since=since) | Cancelling(since=since):
            return since
        case Running(since=since, granted_at=granted_at):
            return granted_at or since
        case Ended(at=at):
            began, _ = span(job.parts)
            return at if began is None else began
        case Queued(since=since):
            began = next((tried.started_at for tried in job.tries if tried.started_at >= queued_since), since)
            return min(began, since)


def _started_at(job: Job) -> float | None:
    """Return when the first attempt began."""
    if job.tries:
        return job.tries[0].started_at
    began, _ = span(job.parts)
    if began is None and isinstance(job.state, Running):
        return job.state.since
    return began


def _ended_at(job: Job, state: Ended) -> float:
    """Return when the last attempt ended, which the coordinator may have heard much later."""
    _, over = span(job.parts)
    return state.at if over is None else over


def _outcome_text(state: Ended) -> str:
    match state.outcome:
        case JobFailed(reason=reason):
            return reason
        case Cancelled(by=by, reason=reason):
            return reason or f"by {by}"
        case _:
            return ""
