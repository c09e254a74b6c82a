"""Show the pool's jobs to this node's users, from the coordinator or from its last message.

A job that came in here is shown while the pool does not answer, with the time of the last news. A job that
came in elsewhere is not known here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

from google.protobuf.message import Message

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.job import NodeName, Owner
from gpushared.domain.model.errors import GpushareError, NotFound, RequestError, TimedOut, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec, describe
from gpushared.domain.model.units import shown
from gpushared.jobs.job_requests import RequestedJobs, is_array_id, is_job_id, read_submit
from gpushared.jobs.job_search import LISTED, SHORTEST_BEGINNING
from gpushared.jobs.job_views import OVER, default_name, token_of
from gpushared.jobs.jobs_service import MAX_AFTER, read_after
from gpushared.pool.member.outbox import Outbox, OutboxRecord, refusal_of

ANSWER_SECONDS = 10.0
WAIT_SECONDS = 60.0
TAKEN_SECONDS = 5.0
"""A submit waits this long for the pool's answer, so that the caller gets a refusal."""
POOL_AWAY = "pool_away"
"""The reason code of an unknown state while the coordinator does not answer."""
SLOW = "it is slow"
"""The reason why the pool does not answer while its link is not known to be lost."""
STOP_GRACE_SECONDS = 10
MAX_GRACE_SECONDS = 3600
_GET, _LIST, _CANCEL, _NODES = "Get", "List", "Cancel", "Nodes"


class RemoteJobs(Protocol):
    """Call the coordinator's own ``Jobs``, in the name of a user of this node."""

    async def call(self, name: str, message: Message, caller: Caller, timeout_seconds: float) -> Any:
        """Return the answer.

        Raises Unavailable and TimedOut if the coordinator is away, else its own error.
        """
        ...

    def stream(self, name: str, message: Message, caller: Caller) -> AsyncGenerator[Any, None]:
        """Yield the messages of a call that streams its answer. Raises as ``call`` does."""
        ...


class PoolJobsLink(Protocol):
    """Describe the stream to the coordinator."""

    @property
    def connected(self) -> bool: ...
    def away(self) -> str:
        """Explain in a sentence since when and why there is no link."""
        ...


class PoolJobs:
    """Serve the pool's jobs. ``groups_of`` returns the groups of a caller that the node vouches for."""

    def __init__(
        self,
        pool: str,
        node: NodeName,
        outbox: Outbox,
        coordinator: RemoteJobs,
        link: PoolJobsLink,
        *,
        presets: Callable[[], Mapping[str, RequestSpec]],
        groups_of: Callable[[Caller], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self.name = pool
        self.node = node
        self._outbox = outbox
        self._coordinator = coordinator
        self._link = link
        self._presets = presets
        self._groups_of = groups_of

    # --- submitting ----------------------------------------------------------------------------------------

    async def submit(
        self, message: jobs_pb2.SubmitRequest, owner: Owner, caller: Caller
    ) -> jobs_pb2.SubmitAnswer:
        """Submit jobs; return when they are stored here and, if the pool answers, there too."""
        after = await read_after(message, lambda reference: self._resolve_reference(reference, owner, caller))

        def is_known(job: JobId) -> bool:
            record = self._outbox.record(job)
            return record is not None and record.principal == owner.principal

        requested = read_submit(message, owner, after, self._presets(), origin=self.node, is_known=is_known)
        await self._outbox.put(
            requested.jobs,
            principal=owner.principal,
            groups=self._groups_of(caller),
            held=requested.held,
            priority=requested.priority,
            holder=caller.process if message.lease.ends_with_caller and message.interactive else None,
        )
        notes = await self._wait_until_pool_has(requested)
        ids = [job for job, _ in requested.jobs]
        return jobs_pb2.SubmitAnswer(job_ids=ids, array_id=requested.array or "", notes=notes)

    async def _wait_until_pool_has(self, requested: RequestedJobs) -> list[str]:
        """Wait until the pool has the jobs, and return notices about any it has not taken yet.

        Raises the pool's error if the pool refuses a job; then nothing is kept.
        """
        until = time.monotonic() + TAKEN_SECONDS
        for job, _ in requested.jobs:
            while (record := self._outbox.record(job)) is not None and not (record.taken or record.over):
                remaining_seconds = until - time.monotonic()
                if not self._link.connected or remaining_seconds <= 0:
                    return [f"kept on this node until the pool has it: {self._link.away() or SLOW}"]
                await self._outbox.changed(job, min(remaining_seconds, 1.0))
            refusal = refusal_of(record) if record is not None else None
            if refusal is not None:
                await self._take_back(requested)
                raise refusal
        return []

    async def _take_back(self, requested: RequestedJobs) -> None:
        for job, spec in requested.jobs:
            record = self._outbox.record(job)
            if record is not None and record.refused is not None:
                await self._outbox.forget(job)
            else:
                await self._outbox.withdraw(job, 0, principal=spec.owner.principal)

    async def _resolve_reference(self, reference: str, owner: Owner, caller: Caller) -> list[JobId]:
        if records := self._of_array(reference, owner):
            return [record.job for record in records]
        if self._record_of_id(reference, owner) is not None:
            return [JobId(reference)]
        is_one = is_job_id(reference) and not is_array_id(reference)
        if not is_one and self._link.connected:
            with suppress(Unavailable, TimedOut):  # the link has just broken: continue as without a link
                if jobs := await self._array_there(reference, caller):
                    return jobs
        if is_job_id(reference):
            return [JobId(reference)]
        job = await self._ask(_GET, jobs_pb2.JobRef(job_id=reference), caller)
        return [JobId(job.id)]

    async def _array_there(self, array: str, caller: Caller) -> list[JobId]:
        """Return the jobs of an array, as the pool knows them: all, or more than a job can wait for."""
        request = jobs_pb2.ListJobsRequest(array_id=array, ended=True, limit=MAX_AFTER)
        job_ids: list[JobId] = []
        while True:
            page = await self._ask(_LIST, request, caller)
            job_ids += [JobId(job.id) for job in page.jobs]
            request.page_token = page.next_page_token
            if not request.page_token or len(job_ids) > MAX_AFTER:
                return job_ids

    # --- one job ---------------------------------------------------------------------------------------

    async def of_job(self, name: str, message: Any, owner: Owner, caller: Caller) -> Any:
        """Make a call about one job of the pool. Raises NotFound, and the pool's errors."""
        record = self._find_record(message.job_id, owner)
        if record is not None and name == _CANCEL:
            return await self._cancel(record, message, owner, caller)
        if self._link.connected:
            try:
                return await self._ask(name, message, caller)
            except (Unavailable, TimedOut):
                if record is None:
                    raise
            except NotFound:
                if record is None:  # otherwise the job is stored here and on its way to the pool
                    raise
        if record is None:
            raise self._unknown(message.job_id)
        return await self._from_memory(name, record, message)

    async def _cancel(
        self, record: OutboxRecord, message: jobs_pb2.CancelJobRequest, owner: Owner, caller: Caller
    ) -> jobs_pb2.Job:
        """Cancel a job through the outbox, so that the cancellation survives any absence of the pool."""
        grace = message.grace_seconds if message.HasField("grace_seconds") else STOP_GRACE_SECONDS
        if not 0 <= grace <= MAX_GRACE_SECONDS:
            raise RequestError(
                f"a grace of {grace} s is not possible", hint=f"give 0 to {MAX_GRACE_SECONDS} seconds"
            )
        await self._outbox.withdraw(
            record.job, grace, principal=owner.principal, groups=self._groups_of(caller)
        )
        view = self._view(self._outbox.record(record.job) or record)
        if self._link.connected:
            view.reason = view.hint = ""
            view.token = token_of(view)
        return view

    async def _from_memory(self, name: str, record: OutboxRecord, message: Any) -> Any:
        match name:
            case "Get":
                return self._view(record)
            case "Explain":
                view = self._view(record)
                story = [jobs_pb2.JobStoryEntry(at=record.came_at, text=f"came in on node {self.node}")]
                return jobs_pb2.JobExplanation(
                    job=view, reason_code=POOL_AWAY, sentence=view.reason, hint=view.hint, story=story
                )
            case "Wait":
                return await self._wait(record, message)
        raise Unavailable(self._away(), hint="try again when it answers")

    async def _wait(self, record: OutboxRecord, message: jobs_pb2.WaitJobRequest) -> jobs_pb2.Job:
        seconds = min(max(message.timeout_seconds, 0.0), WAIT_SECONDS)
        until = time.monotonic() + seconds
        while (view := self._view(record)).token == message.token and view.state not in OVER:
            remaining_seconds = until - time.monotonic()
            if remaining_seconds <= 0 or self._link.connected:
                break
            await self._outbox.changed(record.job, min(remaining_seconds, 1.0))
            record = self._outbox.record(record.job) or record
        return view

    async def wait_for_report(
        self, job: JobId, is_enough: Callable[[jobs_pb2.Job], bool], caller: Caller, timeout_seconds: float
    ) -> jobs_pb2.Job | None:
        """Return a job that came in here, once the pool's report satisfies ``is_enough``.

        Return None if that takes too long, or the pool does not answer.
        """
        if self._outbox.record(job) is None or not self._link.connected:
            return None
        with suppress(NotFound, Unavailable, TimedOut, TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                watched = self._coordinator.stream("Watch", jobs_pb2.JobRef(job_id=job), caller)
                async with aclosing(watched) as reports:
                    async for view in reports:
                        if is_enough(view):
                            report: jobs_pb2.Job = view
                            return report
        return None

    async def logs(self, message: jobs_pb2.LogsRequest, caller: Caller) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Stream the output of a job's container from any node of the pool."""
        self.check_answers()
        async for chunk in self._coordinator.stream("Logs", message, caller):
            yield chunk

    # --- many jobs -----------------------------------------------------------------------------------------

    async def list_jobs(
        self, message: jobs_pb2.ListJobsRequest, owner: Owner, caller: Caller
    ) -> jobs_pb2.ListJobsResponse:
        """List the pool's jobs, or the last known state of the jobs that came in here.

        An array is listed as a whole: a client that waits for it would take a missing job for a finished one.
        Raises Unavailable for an array that only the pool knows while the pool does not answer.
        """
        array = self._of_array(message.array_id, owner)
        is_known = not message.array_id or array or self._record_of_id(message.array_id, owner) is not None
        if self._link.connected and all(record.taken or record.over for record in array):
            try:
                answer: jobs_pb2.ListJobsResponse = await self._ask(_LIST, message, caller)
            except (Unavailable, TimedOut):
                if not is_known:
                    raise
            else:
                return answer
        elif not is_known:
            self.check_answers()
        views = [
            self._view(record)
            for record in self._visible(owner)
            if (message.ended or not record.over) and message.array_id in {"", record.spec.array or ""}
        ]
        first = int(message.page_token or 0) if message.page_token.isdecimal() else 0
        last = first + (message.limit or LISTED)
        return jobs_pb2.ListJobsResponse(
            jobs=views[first:last],
            next_page_token=str(last) if len(views) > last else "",
            notices=[f"{self._away()}; of its jobs those that came in here are shown, as they were then"],
        )

    async def nodes(self, message: jobs_pb2.NodesRequest, caller: Caller) -> jobs_pb2.NodesResponse:
        if not self._link.connected:
            raise Unavailable(self._away(), hint="`gpushare gpus` shows this node")
        answer: jobs_pb2.NodesResponse = await self._ask(_NODES, message, caller)
        return answer

    # --- helpers ---------------------------------------------------------------------------------------

    def check_answers(self) -> None:
        """Raise Unavailable while there is no link to the coordinator."""
        if not self._link.connected:
            raise Unavailable(self._away(), hint="try again when it answers")

    async def _ask(self, name: str, message: Message, caller: Caller) -> Any:
        seconds = ANSWER_SECONDS
        if isinstance(message, jobs_pb2.WaitJobRequest):
            seconds += min(max(message.timeout_seconds, 0.0), WAIT_SECONDS)
        return await self._coordinator.call(name, message, caller, seconds)

    def _find_record(self, reference: str, owner: Owner) -> OutboxRecord | None:
        """Return a job that came in here, found as ``job_search.find`` finds jobs of a store."""
        record = self._record_of_id(reference, owner)
        if record is not None:
            return record
        visible = self._visible(owner)
        named = [other for other in visible if reference == (other.spec.name or default_name(other.job))]
        unfinished = [other for other in named if not other.over]
        if len(unfinished) > 1:  # interactive ones: the pool asks which is meant
            return None
        if named:
            return (unfinished or named)[-1]
        begins = [other for other in visible if other.job.startswith(reference)]
        long_enough = len(reference) >= SHORTEST_BEGINNING and reference.isalnum()
        return begins[0] if long_enough and len(begins) == 1 else None

    def _record_of_id(self, job: str, owner: Owner) -> OutboxRecord | None:
        """Return the job of that id that came in here; None if ``owner`` may not see it."""
        record = self._outbox.record(JobId(job))
        return record if record is not None and self._may_see(record, owner) else None

    def _of_array(self, array: str, owner: Owner) -> list[OutboxRecord]:
        return [record for record in self._visible(owner) if record.spec.array == array]

    def _visible(self, owner: Owner) -> list[OutboxRecord]:
        return [record for record in self._outbox.records() if self._may_see(record, owner)]

    def _may_see(self, record: OutboxRecord, owner: Owner) -> bool:
        return owner.admin or record.principal == owner.principal

    def _unknown(self, reference: str) -> GpushareError:
        """Return the error for an unknown job; while the pool is away, only the pool could know it."""
        if not self._link.connected:
            return Unavailable(
                f"{self._away()}, and no job {shown(reference)} came in here",
                hint="try again when it answers",
            )
        return NotFound(f"there is no job {shown(reference)}", hint="`gpushare jobs` lists them")

    def _away(self) -> str:
        return f"the pool {self.name} does not answer: {self._link.away() or SLOW}"

    def _view(self, record: OutboxRecord) -> jobs_pb2.Job:
        """Show the job's last known state, with the time of that state."""
        view = record.mirrored() or _unsent(record)
        if not record.over:
            as_of = time.strftime("%H:%M", time.localtime(record.updated_at or record.came_at))
            reason = f": {view.reason}" if view.reason else ""
            view.reason = f"as of {as_of}, the pool does not answer{reason}"
            if record.withdrawal is not None:
                view.state, view.reason = "cancelling", f"to be cancelled as soon as it can be; {view.reason}"
                view.hint = "this machine keeps the cancellation; `gpushare jobs` shows when the job is over"
        if (refusal := refusal_of(record)) is not None:
            view.state, view.reason, view.hint = "failed", refusal.message, refusal.hint
        view.token = token_of(view)
        return view


def _unsent(record: OutboxRecord) -> jobs_pb2.Job:
    """Show a job that the pool has not reported yet."""
    spec = record.spec
    view = jobs_pb2.Job(
        id=record.job,
        state="held" if record.held else "queued",
        name=spec.name or default_name(record.job),
        image=spec.image,
        owner=spec.owner.principal,
        asks=describe(spec.request),
        submitted_at=record.came_at,
        array_id=spec.array or "",
        pool=True,
        interactive=spec.interactive,
        priority=record.priority,
    )
    setattr(view, "class", spec.request.lease_class)
    if spec.index is not None:
        view.array_index = spec.index
    return view
