"""Serve the calls of ``Jobs`` over a coordinator's loop, for a pool's jobs or a node's own jobs.

Other modules identify the caller; this module decides what the caller may see and do. Raises errors of the
tree.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.coordinator_events import (
    CancelAsked,
    JobHoldAsked,
    JobPriorityAsked,
    JobSubmitted,
    PoolEvent,
)
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import HERE, After, AfterKind, Ended, Job, NodeName, Owner
from gpushared.domain.jobs.submit_limits import MAX_ARRAY
from gpushared.domain.model.errors import GpushareError, NotFound, RequestError, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.domain.model.units import shown
from gpushared.jobs import job_search as search
from gpushared.jobs.job_requests import RequestedJobs, is_array_id, read_submit
from gpushared.jobs.job_search import JobArchive, JobQuery
from gpushared.jobs.job_views import OVER, JobViews
from gpushared.net.intake import Admitted, CallerTurns

MAX_BATCH = 64
MAX_AFTER = 1000
MAX_WAIT_SECONDS = 60.0
MAX_GRACE_SECONDS = 3600
SUBMITTED_AT_ONCE = 256
"""Send at most this many jobs of an array to the loop at a time, so that other events come in between."""
LONG_CALLS, LONG_CALLS_OF_A_PERSON = 8, 1
"""Run this many calls that read much at a time, in all and for one person; all other work waits for a step of
each of these calls."""
LONG_SECONDS = 30.0
"""A call that reads much waits this long for its turn."""
SHOWN_AT_ONCE = 16
"""Render this many jobs of a list before other tasks run."""
Check = Callable[[RequestedJobs, Owner], Awaitable[None]]
"""Raises an error for a job that could never run, before the job is stored."""


class CoordinatorPort(Protocol):
    """Provide the loop around a coordinator's rules."""

    @property
    def state(self) -> PoolState: ...
    async def send(self, event: PoolEvent) -> Job | None:
        """Apply the event, and return when its changes are durable."""
        ...

    async def job_changed(self, job: JobId, timeout_seconds: float) -> bool: ...


async def _no_check(requested: RequestedJobs, owner: Owner) -> None:
    pass


def _no_presets() -> Mapping[str, RequestSpec]:
    return {}


def _no_notices() -> Sequence[str]:
    return ()


def _knows_all_jobs() -> str:
    return ""


def _no_simulated() -> bool:
    return False


def bounded_seconds(seconds: float) -> float:
    """Return how long a caller may wait for an answer. Raises RequestError if ``seconds`` is not a number."""
    if math.isnan(seconds):
        raise RequestError("the time-out is not a number", hint=f"give 0 to {MAX_WAIT_SECONDS:.0f} s")
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


async def in_batch(
    message: jobs_pb2.SubmitBatchRequest,
    submit: Callable[[jobs_pb2.SubmitRequest], Awaitable[jobs_pb2.SubmitAnswer]],
) -> jobs_pb2.SubmitBatchAnswer:
    """Handle each request by itself. Raises RequestError for too many."""
    if len(message.jobs) > MAX_BATCH:
        raise RequestError(
            f"{len(message.jobs)} requests at once are too many", hint=f"send at most {MAX_BATCH}"
        )
    results = []
    for request in message.jobs:
        try:
            results.append(jobs_pb2.SubmitResult(answer=await submit(request)))
        except GpushareError as error:
            results.append(jobs_pb2.SubmitResult(code=error.code, message=error.message, hint=error.hint))
    return jobs_pb2.SubmitBatchAnswer(results=results)


async def read_after(
    message: jobs_pb2.SubmitRequest, jobs_named: Callable[[str], Awaitable[Sequence[JobId]]]
) -> tuple[After, ...]:
    """Return the jobs that a job waits for, for an array all its jobs. Raises RequestError for too many.

    ``jobs_named`` returns the jobs that a reference names; it is called at most ``MAX_AFTER`` times.
    """
    after_by_job: dict[JobId, After] = {}
    _check_after(len(message.after))
    for reference in message.after:
        kind = AfterKind.OK if reference.ok else AfterKind.ANY
        for job in await jobs_named(reference.job_id):
            after_by_job[job] = After(job, kind)
        _check_after(len(after_by_job))
    return tuple(after_by_job.values())


def _check_after(count: int) -> None:
    if count > MAX_AFTER:
        raise RequestError(
            f"a job can wait for {MAX_AFTER} others at most, not {count}",
            hint="let one job wait for them in steps",
        )


def _not_known_yet(reference: str, why_incomplete: str) -> Unavailable:
    return Unavailable(
        f"what job {shown(reference)} is cannot be told yet: {why_incomplete}",
        hint="try again in a moment; `gpushare pool status` names who is waited for",
    )


class JobsService:
    """Serve jobs. ``notices`` go to every reader of a list.

    ``why_incomplete`` returns why some jobs may still be unknown, or an empty text once all are known. Before,
    no answer says that a job does not exist or shows a part of an array as the whole. ``simulated`` returns
    True if some GPUs are simulated.
    """

    def __init__(
        self,
        loop: CoordinatorPort,
        archive: JobArchive,
        views: JobViews,
        *,
        presets: Callable[[], Mapping[str, RequestSpec]] = _no_presets,
        check: Check = _no_check,
        notices: Callable[[], Sequence[str]] = _no_notices,
        why_incomplete: Callable[[], str] = _knows_all_jobs,
        simulated: Callable[[], bool] = _no_simulated,
    ) -> None:
        self.views = views
        self._loop = loop
        self._archive = archive
        self._presets = presets
        self._check = check
        self._notices = notices
        self._why_incomplete = why_incomplete
        self._simulated = simulated
        self._turns = CallerTurns(LONG_CALLS, LONG_CALLS_OF_A_PERSON, LONG_SECONDS)

    def turn(self, owner: Owner) -> AbstractAsyncContextManager[object]:
        """Hold a turn around a call that reads much. Raises LimitReached."""
        return self._turns.of(Admitted(owner.person))

    # --- submitting ------------------------------------------------------------------------------------

    async def submit(
        self, message: jobs_pb2.SubmitRequest, owner: Owner, *, origin: NodeName = HERE
    ) -> jobs_pb2.SubmitAnswer:
        """Store all jobs of a request or none.

        A repeated request is not checked again: its jobs are stored.
        """
        requested = await self.read(message, owner, origin=origin)
        first, _ = requested.jobs[0]
        if search.known_job(self._loop.state, first) is None:
            await self._check(requested, owner)
        jobs = await self._store(requested, owner)
        array = jobs[0].spec.array if requested.array is not None else None
        return jobs_pb2.SubmitAnswer(job_ids=[job.id for job in jobs], array_id=array or "")

    async def read(
        self, message: jobs_pb2.SubmitRequest, owner: Owner, *, origin: NodeName = HERE
    ) -> RequestedJobs:
        """Read the jobs of a request and check them on their own; nothing is stored."""
        after = await read_after(message, lambda reference: self._jobs_named(reference, owner))

        def is_known(job: JobId) -> bool:
            known_job = search.known_job(self._loop.state, job)
            return known_job is not None and known_job.spec.owner.principal == owner.principal

        return read_submit(message, owner, after, self._presets(), origin=origin, is_known=is_known)

    async def submit_batch(
        self, message: jobs_pb2.SubmitBatchRequest, owner: Owner
    ) -> jobs_pb2.SubmitBatchAnswer:
        return await in_batch(message, lambda request: self.submit(request, owner))

    async def _jobs_named(self, reference: str, owner: Owner) -> list[JobId]:
        is_array = is_array_id(reference) or search.array_called(self._loop.state, reference, owner)
        if is_array and (jobs := await self._all_of_array(reference, owner)):
            return jobs
        return [(await self.find(reference, owner)).id]

    async def _all_of_array(self, array: str, owner: Owner) -> list[JobId]:
        """Return all jobs of the array, or a part of them that is more than a job can wait for.

        A page may be short or empty though more follow, because jobs of others are left out.
        """
        job_ids: list[JobId] = []
        query = JobQuery(ended=True, array=array, limit=MAX_ARRAY)
        while True:
            page = await search.page(self._loop.state, self._archive, query, owner)
            job_ids += (job.id for job in page.jobs)
            query = replace(query, token=page.next_token)
            if not query.token or len(job_ids) > MAX_AFTER:
                return job_ids

    async def _store(self, requested: RequestedJobs, owner: Owner) -> list[Job]:
        """Store the jobs durably. If one job of an array is refused, cancel the jobs before it."""
        stored: list[Job] = []
        events = [JobSubmitted(job, spec, requested.held, requested.priority) for job, spec in requested.jobs]
        for first in range(0, len(events), SUBMITTED_AT_ONCE):
            answers = await asyncio.gather(
                *map(self._loop.send, events[first : first + SUBMITTED_AT_ONCE]), return_exceptions=True
            )
            stored += [answer for answer in answers if isinstance(answer, Job)]
            refused = next((answer for answer in answers if isinstance(answer, BaseException)), None)
            if refused is not None:
                await self._cancel_stored(stored, owner)
                raise refused
        return stored

    async def _cancel_stored(self, jobs: Sequence[Job], owner: Owner) -> None:
        events = (CancelAsked(job.id, owner, 0) for job in jobs if not isinstance(job.state, Ended))
        await asyncio.gather(*map(self._loop.send, events), return_exceptions=True)

    # --- reading ---------------------------------------------------------------------------------------

    async def get(self, message: jobs_pb2.JobRef, owner: Owner) -> jobs_pb2.Job:
        return self.views.job(await self.find(message.job_id, owner))

    async def list_jobs(self, message: jobs_pb2.ListJobsRequest, owner: Owner) -> jobs_pb2.ListJobsResponse:
        """Return a page of jobs."""
        query = JobQuery(
            ended=message.ended,
            everybody=message.all,
            array=message.array_id,
            limit=min(max(message.limit, 0) or search.LISTED, search.MAX_LISTED),
            token=message.page_token,
        )
        async with self.turn(owner):
            page = await search.page(self._loop.state, self._archive, query, owner)
            if message.array_id:
                await self._check_whole(message.array_id, page, owner)
            return jobs_pb2.ListJobsResponse(
                jobs=await self._shown(page.jobs),
                next_page_token=page.next_token,
                notices=self._notices(),
                simulated=self._simulated(),
            )

    async def _shown(self, jobs: Sequence[Job]) -> list[jobs_pb2.Job]:
        """Return the jobs as users see them. Other tasks run between steps of some jobs."""
        views = []
        for first in range(0, len(jobs), SHOWN_AT_ONCE):
            views += [self.views.job(job) for job in jobs[first : first + SHOWN_AT_ONCE]]
            await asyncio.sleep(0)
        return views

    async def wait(self, message: jobs_pb2.WaitJobRequest, owner: Owner) -> jobs_pb2.Job:
        """Return the job when it no longer looks as in the token."""
        seconds = bounded_seconds(message.timeout_seconds)
        job = await self.find(message.job_id, owner)
        until = time.monotonic() + seconds
        while (view := self.views.job(self._newest(job))).token == message.token:
            remaining_seconds = until - time.monotonic()
            if remaining_seconds <= 0 or isinstance(self._newest(job).state, Ended):
                break
            await self._loop.job_changed(job.id, remaining_seconds)
        return view

    async def watch(self, message: jobs_pb2.JobRef, owner: Owner) -> AsyncIterator[jobs_pb2.Job]:
        """Yield the job after each change, until it is over."""
        job = await self.find(message.job_id, owner)
        view, token = None, ""
        while view is None or view.state not in OVER:
            request = jobs_pb2.WaitJobRequest(job_id=job.id, token=token, timeout_seconds=MAX_WAIT_SECONDS)
            view = await self.wait(request, owner)
            if view.token != token:
                yield view
            token = view.token

    async def explain(self, message: jobs_pb2.JobRef, owner: Owner) -> jobs_pb2.JobExplanation:
        job = await self.find(message.job_id, owner)
        async with self.turn(owner):
            why = self.views.why_in_full(job)
            return jobs_pb2.JobExplanation(
                job=self.views.job(job),
                reason_code=why.code if why else "",
                sentence=why.sentence if why else "",
                hint=why.hint if why else "",
                story=self.views.story(job),
                simulated=self._simulated(),
            )

    # --- changing --------------------------------------------------------------------------------------

    async def cancel(self, message: jobs_pb2.CancelJobRequest, owner: Owner) -> jobs_pb2.Job:
        job = await self.find(message.job_id, owner)
        usual = self._loop.state.rules.stop_grace_seconds
        grace = message.grace_seconds if message.HasField("grace_seconds") else usual
        if not 0 <= grace <= MAX_GRACE_SECONDS:
            raise RequestError(
                f"a grace of {grace} s is not possible", hint=f"give 0 to {MAX_GRACE_SECONDS} seconds"
            )
        return await self._view_after(CancelAsked(job.id, owner, grace), job)

    async def hold(self, message: jobs_pb2.HoldJobRequest, owner: Owner) -> jobs_pb2.Job:
        job = await self.find(message.job_id, owner)
        return await self._view_after(JobHoldAsked(job.id, owner, message.held), job)

    async def set_priority(self, message: jobs_pb2.JobPriorityRequest, owner: Owner) -> jobs_pb2.Job:
        job = await self.find(message.job_id, owner)
        return await self._view_after(JobPriorityAsked(job.id, owner, message.priority), job)

    async def _view_after(self, event: PoolEvent, job: Job) -> jobs_pb2.Job:
        return self.views.job(await self._loop.send(event) or self._newest(job))

    # --- finding ---------------------------------------------------------------------------------------

    async def find(self, reference: str, owner: Owner) -> Job:
        """Return the job that the reference names. Raises NotFound, RequestError, Unavailable."""
        try:
            return await search.find(self._loop.state, self._archive, reference, owner)
        except NotFound:
            if why_incomplete := self._why_incomplete():
                raise _not_known_yet(reference, why_incomplete) from None
            raise

    async def _check_whole(self, array: str, page: search.JobPage, owner: Owner) -> None:
        """Raises Unavailable if the result may lack jobs of the array."""
        if not (why_incomplete := self._why_incomplete()):
            return
        if page.jobs and self._loop.state.recovering_since is not None:
            raise _not_known_yet(array, why_incomplete)
        if not page.jobs:
            await self.find(array, owner)  # a single job's id looks like an array's

    def _newest(self, job: Job) -> Job:
        """Return the job as it is now, or as given if the state has forgotten the job."""
        return search.known_job(self._loop.state, job.id) or job
