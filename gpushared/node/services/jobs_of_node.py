"""Serve the calls of ``Jobs`` on a node, both for the node's own jobs and for the jobs of its pool.

A call that names the pool, or another node, goes to the pool; every other call is for this node's own jobs. A
caller who names a job need not know where the job is: the node looks among its own jobs first.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from google.protobuf.message import Message

import gpushared
from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.job import Job, Owner, Placing, Running
from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_state import waits
from gpushared.domain.leases.offers import offer
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.domain.model.lease import JobId, LeaseId, Queued, Requeued, Suspended
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.domain.scheduling.projects import project_of
from gpushared.jobs.job_logs import job_logs, no_attempt, output_of
from gpushared.jobs.job_reasons import Why
from gpushared.jobs.job_requests import RequestedJobs
from gpushared.jobs.job_search import LISTED
from gpushared.jobs.job_views import OVER, JobViews, lone_node
from gpushared.jobs.jobs_service import MAX_WAIT_SECONDS, JobsService, bounded_seconds, in_batch
from gpushared.net.unary_json import Unary
from gpushared.node.jobs.job_containers import check_names
from gpushared.node.jobs.job_host import JobHost
from gpushared.node.jobs.local_jobs import OWN, LocalJobs
from gpushared.node.pool.pool_jobs import PoolJobs
from gpushared.node.runtime.loop import Loop
from gpushared.node.services.views import Views
from gpushared.pool.member.node_ports import free_of, inventory_of

IN_POOL = "pool:"
"""This prefix stands before the page tokens of the pool's part of a listing."""

_HAS_LEASE = frozenset({"reserved", "running"})

_RequestT = TypeVar("_RequestT", bound=Message)
_AnswerT = TypeVar("_AnswerT", bound=Message)


class NodeEndpoints(Protocol):
    """Open sockets on this machine that lead to the gates of other nodes; see ``TunnelEndpoints``."""

    async def endpoint(self, job: JobId, rank: int, caller: Caller, attempt: int = 0) -> str:
        """Return the path of the socket."""
        ...


class NodeJobs:
    """Serve the calls. ``pool`` is set while the node is in one. ``realm`` is called for each use."""

    def __init__(
        self,
        local_jobs: LocalJobs,
        loop: Loop,
        views: Views,
        host: JobHost,
        *,
        node_name: str,
        realm: Callable[[], str],
        presets: Callable[[], Mapping[str, RequestSpec]],
        socket: str,
    ) -> None:
        """Take ``socket``, the path of the node's own socket."""
        self.pool: PoolJobs | None = None
        self.endpoints: NodeEndpoints | None = None
        self._local_jobs = local_jobs
        self._loop = loop
        self._lease_views = views
        self._host = host
        self._node_name = node_name
        self._realm = realm
        self._socket = socket
        job_views = JobViews(
            lambda: local_jobs.loop.state,
            loop.now,
            here=node_name,
            better_reason=self._queue_reason,
            project_of=self._project_of,
        )
        self._own = JobsService(
            local_jobs.loop,
            local_jobs.archive,
            job_views,
            presets=presets,
            check=self._check,
            simulated=lambda: views.simulated,
        )

    def calls(self) -> dict[str, Unary]:
        """Return all unary calls by their full names."""
        return {
            "gpushare.v1.Jobs/Submit": Unary(jobs_pb2.SubmitRequest, self.submit),
            "gpushare.v1.Jobs/SubmitBatch": Unary(jobs_pb2.SubmitBatchRequest, self.submit_batch),
            "gpushare.v1.Jobs/Get": Unary(jobs_pb2.JobRef, self.get),
            "gpushare.v1.Jobs/List": Unary(jobs_pb2.ListJobsRequest, self.list_jobs),
            "gpushare.v1.Jobs/Wait": Unary(jobs_pb2.WaitJobRequest, self.wait),
            "gpushare.v1.Jobs/Cancel": Unary(jobs_pb2.CancelJobRequest, self.cancel),
            "gpushare.v1.Jobs/Hold": Unary(jobs_pb2.HoldJobRequest, self.hold),
            "gpushare.v1.Jobs/SetPriority": Unary(jobs_pb2.JobPriorityRequest, self.set_priority),
            "gpushare.v1.Jobs/Explain": Unary(jobs_pb2.JobRef, self.explain),
            "gpushare.v1.Jobs/Door": Unary(jobs_pb2.DoorRequest, self.door),
            "gpushare.v1.Jobs/Reserve": Unary(jobs_pb2.ReserveRequest, self.reserve),
            "gpushare.v1.Jobs/Nodes": Unary(jobs_pb2.NodesRequest, self.nodes),
        }

    def owner(self, caller: Caller) -> Owner:
        """Return the caller as an owner of jobs; on one node each user is a person of their own."""
        principal = f"{caller.name}@{self._realm()}"
        return Owner(principal, principal, admin=caller.trusted)

    # --- submitting ----------------------------------------------------------------------------------------

    async def submit(self, message: jobs_pb2.SubmitRequest, caller: Caller) -> jobs_pb2.SubmitAnswer:
        wants_pool = message.pool and not (message.or_here and self.pool is None)
        if wants_pool or not (message.node == "" or self._is_here(message.node)):
            return await self._pool().submit(message, self.owner(caller), caller)
        if message.nodes > 1 or message.span:
            raise RequestError("one node cannot be several", hint="submit it to the pool: --pool")
        if message.stop_after_seconds:
            raise RequestError(
                "nobody can lose sight of a job on its own node, so there is nothing to stop it after",
                hint="--stop-after is for jobs of the pool",
            )
        local_message = jobs_pb2.SubmitRequest()
        local_message.CopyFrom(message)
        local_message.node = ""
        return await self._own.submit(local_message, self.owner(caller))

    async def submit_batch(
        self, message: jobs_pb2.SubmitBatchRequest, caller: Caller
    ) -> jobs_pb2.SubmitBatchAnswer:
        return await in_batch(message, lambda request: self.submit(request, caller))

    async def reserve(self, message: jobs_pb2.ReserveRequest, caller: Caller) -> jobs_pb2.ReserveAnswer:
        """Submit one job, wait for its lease, and return the socket at which docker reaches it."""
        if message.job.array:
            raise RequestError(
                "an array has many leases", hint="submit it, and ask where one of its jobs runs"
            )
        seconds = bounded_seconds(message.timeout_seconds)
        submitted = await self.submit(message.job, caller)
        view = await self._wait_until_reserved(JobId(submitted.job_ids[0]), seconds, caller)
        docker_host = await self._docker_host_of(view, 0, caller) if is_reserved(view) else None
        return jobs_pb2.ReserveAnswer(job=view, notes=submitted.notes, door=docker_host)

    async def _wait_until_reserved(self, job: JobId, seconds: float, caller: Caller) -> jobs_pb2.Job:
        """Return the job as soon as it has its lease or is over, or after the time."""
        until = time.monotonic() + seconds
        if self.pool is not None:
            report = await self.pool.wait_for_report(job, is_settled, caller, seconds)
            if report is not None:
                return report
        view = await self.get(jobs_pb2.JobRef(job_id=job), caller)
        while not is_settled(view) and (remaining_seconds := until - time.monotonic()) > 0:
            request = jobs_pb2.WaitJobRequest(job_id=job, token=view.token, timeout_seconds=remaining_seconds)
            view = await self.wait(request, caller)
        return view

    async def _check(self, requested: RequestedJobs, owner: Owner) -> None:
        """Raise the errors that the node itself would raise: no account, a taken name, or no such size."""
        caller = await self._host.accounts.caller(owner, OWN)
        _, spec = requested.jobs[0]
        with suppress(LimitReached):  # jobs may wait for room in a full queue
            offer(self._loop.state, spec.request, caller, self._loop.now())
        await check_names(
            self._host.loopback_gate, requested, lambda job: job in self._local_jobs.loop.state.jobs
        )

    # --- one job, wherever it is -----------------------------------------------------------------------

    async def get(self, message: jobs_pb2.JobRef, caller: Caller) -> jobs_pb2.Job:
        return await self._here_or_in_pool(self._own.get, "Get", message, caller)

    async def wait(self, message: jobs_pb2.WaitJobRequest, caller: Caller) -> jobs_pb2.Job:
        return await self._here_or_in_pool(self._own.wait, "Wait", message, caller)

    async def cancel(self, message: jobs_pb2.CancelJobRequest, caller: Caller) -> jobs_pb2.Job:
        return await self._here_or_in_pool(self._own.cancel, "Cancel", message, caller)

    async def hold(self, message: jobs_pb2.HoldJobRequest, caller: Caller) -> jobs_pb2.Job:
        """Hold a job: one of the node's own whose lease waits is held in the node's queue."""

        async def own(message: jobs_pb2.HoldJobRequest, owner: Owner) -> jobs_pb2.Job:
            job = await self._own.find(message.job_id, owner)
            lease = self._lease_that_waits(job)
            if lease is None:
                return await self._own.hold(message, owner)
            await self._loop.send(m.HoldAsked(lease, caller, message.held))
            return self._own.views.job(job)

        return await self._here_or_in_pool(own, "Hold", message, caller)

    async def set_priority(self, message: jobs_pb2.JobPriorityRequest, caller: Caller) -> jobs_pb2.Job:
        """Set a job's priority, on its waiting lease too, as ``hold`` does; the next try keeps it."""

        async def own(message: jobs_pb2.JobPriorityRequest, owner: Owner) -> jobs_pb2.Job:
            lease = self._lease_that_waits(await self._own.find(message.job_id, owner))
            if lease is not None:
                await self._loop.send(m.PriorityAsked(lease, caller, message.priority))
            return await self._own.set_priority(message, owner)

        return await self._here_or_in_pool(own, "SetPriority", message, caller)

    async def explain(self, message: jobs_pb2.JobRef, caller: Caller) -> jobs_pb2.JobExplanation:
        return await self._here_or_in_pool(self._own.explain, "Explain", message, caller)

    async def watch(self, message: jobs_pb2.JobRef, caller: Caller) -> AsyncIterator[jobs_pb2.Job]:
        """Stream each change of a job until it is over."""
        view, token = None, ""
        while view is None or view.state not in OVER:
            request = jobs_pb2.WaitJobRequest(
                job_id=message.job_id, token=token, timeout_seconds=MAX_WAIT_SECONDS
            )
            view = await self.wait(request, caller)
            if view.token != token:
                yield view
            token = view.token

    async def logs(self, message: jobs_pb2.LogsRequest, caller: Caller) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Stream a container's output. On this node it is read as the caller: the gate judges access."""
        try:
            job = await self._own.find(message.job_id, self.owner(caller))
        except NotFound:
            if self.pool is None:
                raise
            async for chunk in self.pool.logs(message, caller):
                yield chunk
            return
        key = output_of(job, message.rank, message.attempt).key
        gate = self._host.loopback_gate.gate_as(caller)
        async for chunk in job_logs(gate, key, follow=message.follow, tail=message.tail):
            yield chunk

    async def door(self, message: jobs_pb2.DoorRequest, caller: Caller) -> jobs_pb2.DoorAnswer:
        """Return the socket at which docker reaches a job's container: on this node, or through a tunnel."""
        view = await self.get(jobs_pb2.JobRef(job_id=message.job_id), caller)
        return await self._docker_host_of(view, message.rank, caller, message.attempt)

    async def _docker_host_of(
        self, view: jobs_pb2.Job, rank: int, caller: Caller, attempt: int = 0
    ) -> jobs_pb2.DoorAnswer:
        part = next((part for part in _parts_of(view, attempt) if part.rank == rank), None)
        if part is None or not part.lease_id:
            reason = f": {view.reason}" if view.reason else ""
            raise StateConflict(
                f"job {view.id} is {view.state} and has no container{reason}",
                hint=f"its story: gpushare why {view.id}",
            )
        path = self._socket
        here = not view.pool or (self._is_here(part.node) and self._has_lease(LeaseId(part.lease_id), caller))
        if not here:
            if self.endpoints is None or self.pool is None:
                raise Unavailable(
                    f"the container of job {view.id} is on the node {part.node}", hint="ask there"
                )
            self.pool.check_answers()
            path = await self.endpoints.endpoint(JobId(view.id), rank, caller, attempt)
        return jobs_pb2.DoorAnswer(host=f"unix://{path}", lease_id=part.lease_id, node=part.node, here=here)

    async def _here_or_in_pool(
        self,
        own: Callable[[_RequestT, Owner], Awaitable[_AnswerT]],
        name: str,
        message: _RequestT,
        caller: Caller,
    ) -> _AnswerT:
        """Answer a call for one of this node's own jobs, or let the pool answer if the job is not here."""
        owner = self.owner(caller)
        try:
            return await own(message, owner)
        except NotFound:
            if self.pool is None:
                raise
        answer: _AnswerT = await self.pool.of_job(name, message, owner, caller)
        return answer

    # --- many jobs -----------------------------------------------------------------------------------------

    async def list_jobs(self, message: jobs_pb2.ListJobsRequest, caller: Caller) -> jobs_pb2.ListJobsResponse:
        """List this node's own jobs, then the pool's.

        Raises Unavailable for an array that only the pool knows while the pool does not answer.
        """
        owner = self.owner(caller)
        if self.pool is None or (message.array_id and await self._is_own(message.array_id, owner)):
            return await self._own.list_jobs(message, owner)
        response = jobs_pb2.ListJobsResponse()
        if not message.page_token.startswith(IN_POOL):
            response = await self._own.list_jobs(self._of_own(message, owner, self.pool), owner)
            if response.next_page_token or len(response.jobs) >= (message.limit or LISTED):
                response.next_page_token = response.next_page_token or IN_POOL
                return response
        request = jobs_pb2.ListJobsRequest()
        request.CopyFrom(message)
        request.page_token = message.page_token.removeprefix(IN_POOL)
        request.limit = (message.limit or LISTED) - len(response.jobs)
        page = await self.pool.list_jobs(request, owner, caller)
        response.jobs.extend(page.jobs)
        response.notices.extend(page.notices)
        response.simulated = response.simulated or page.simulated
        response.next_page_token = IN_POOL + page.next_page_token if page.next_page_token else ""
        return response

    async def nodes(self, message: jobs_pb2.NodesRequest, caller: Caller) -> jobs_pb2.NodesResponse:
        """List the pool's nodes; a node that is in no pool lists itself."""
        if self.pool is not None:
            return await self.pool.nodes(message, caller)
        state = self._loop.state
        inventory = inventory_of(
            state, address="", version=gpushared.__version__, simulated=self._lease_views.simulated
        )
        heard_at = self._lease_views.day(self._loop.now())
        node = lone_node(
            self._node_name, inventory, free_of(state, OWN), self._local_jobs.loop.state, heard_at=heard_at
        )
        return jobs_pb2.NodesResponse(nodes=[node])

    # --- helpers ---------------------------------------------------------------------------------------

    def _of_own(
        self, message: jobs_pb2.ListJobsRequest, owner: Owner, pool: PoolJobs
    ) -> jobs_pb2.ListJobsRequest:
        """Return the question for the node's own jobs before the pool's.

        The asker may be an administrator of the pool alone, which only the coordinator can tell: it refuses
        others. Raises Unavailable while it does not answer.
        """
        if not message.all or owner.admin:
            return message
        pool.check_answers()
        request = jobs_pb2.ListJobsRequest()
        request.CopyFrom(message)
        request.all = False
        return request

    async def _is_own(self, array: str, owner: Owner) -> bool:
        """Return True if this node's own job store has an array, or a job, with this id."""
        request = jobs_pb2.ListJobsRequest(array_id=array, ended=True, limit=1)
        if (await self._own.list_jobs(request, owner)).jobs:
            return True
        with suppress(NotFound):
            return bool(await self._own.find(array, owner))
        return False

    def _has_lease(self, lease_id: LeaseId, caller: Caller) -> bool:
        """Return True if the lease is the caller's own, or unknown.

        A pool's job runs here under its owner's account on *this* node. That may be another account than the
        caller's, and then the caller comes in as if from any other node.
        """
        state = self._loop.state
        lease = state.leases.get(lease_id) or state.ended.get(lease_id)
        return lease is None or lease.owner_uid == caller.uid

    def _lease_that_waits(self, job: Job) -> LeaseId | None:
        """Return the lease of one of the node's own jobs if it waits in the node's queue."""
        lease_id = job.state.parts[0].lease if isinstance(job.state, Placing | Running) else None
        lease = None if lease_id is None else self._loop.state.leases.get(lease_id)
        return lease_id if lease is not None and waits(lease) else None

    def _is_here(self, node: str) -> bool:
        """Return True if the name is this node's: the name in its pool, or its own without a pool."""
        return node == self._node_name if self.pool is None else node == self.pool.node

    def _pool(self) -> PoolJobs:
        if self.pool is None:
            raise StateConflict(
                "this node is in no pool",
                hint="leave --pool and --node out; an administrator lets it join one by `gpushare node join`",
            )
        return self.pool

    def _project_of(self, job: Job) -> str:
        """Return the project that the job's lease counts to, or would count to.

        Without a lease this is the project of the job's account, by the node's own projects.
        """
        lease_id = job.parts[0].lease if job.parts else None
        state = self._loop.state
        lease = None if lease_id is None else state.leases.get(lease_id) or state.ended.get(lease_id)
        if lease is not None:
            return lease.project
        try:
            account = self._host.accounts.rules.account_name(job.spec.owner)
            return project_of(account, job.spec.request.project, state.policy)
        except GpushareError:
            return job.spec.request.project  # the job is refused as soon as it asks for a lease

    def _queue_reason(self, job: Job) -> Why | None:
        """Return the queue's reason for a job that waits in the node's own queue, else None."""
        if not isinstance(job.state, Placing | Running):
            return None
        lease_id = job.state.parts[0].lease
        lease = self._loop.state.leases.get(lease_id) if lease_id is not None else None
        if lease is None or not isinstance(lease.state, Queued | Requeued | Suspended):
            return None
        waiting = self._lease_views.waiting_of(lease)
        return Why(waiting.reason, waiting.text, position=waiting.position) if waiting is not None else None


def is_reserved(view: jobs_pb2.Job) -> bool:
    """Return True if each part of the job has its lease."""
    return bool(view.parts) and all(part.lease_id and part.state in _HAS_LEASE for part in view.parts)


def is_settled(view: jobs_pb2.Job) -> bool:
    """Return True if a client can stop waiting for the job's leases: the job has them, or is over."""
    return view.state in OVER or is_reserved(view)


def _parts_of(view: jobs_pb2.Job, attempt: int) -> Iterable[jobs_pb2.JobPart]:
    """Return the parts of a remembered earlier attempt, or of the present one. Raises StateConflict."""
    tried = next((earlier_try for earlier_try in view.tries if earlier_try.attempt == attempt), None)
    if tried is not None:
        return tried.parts
    if attempt not in {0, view.attempt}:
        ran = [earlier_try.attempt for earlier_try in view.tries]
        raise no_attempt(view.id, attempt, ran, newest=view.attempt)
    return view.parts
