"""Serve synchronous programs. ``async_pool`` is the twin; their common parts are pure and beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc
from gpushared.api.v1.messages import Job, JobExplanation, NodeList, SubmitAnswer
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline import common
from gpushared.client.pipeline.common import (
    ADVICE_SECONDS,
    CALL_SECONDS,
    PAGE,
    PATIENCE_SECONDS,
    STARTED,
    SUBMIT_SECONDS,
    WAIT_SECONDS,
    WAITS,
    JobWatch,
    Position,
    cancel_request,
    ended_early,
    error_of,
    hold_request,
    job_of,
    never_fits,
    next_page,
    not_over,
    submit_message,
    warn_of,
)
from gpushared.client.pipeline.job_request import JobRequest
from gpushared.client.pipeline.pool_address import find_door
from gpushared.client.retries import RetryPatience
from gpushared.domain.model.errors import GpushareError, PermissionRefused


class Pool:
    """Call a pool of nodes, by its coordinator (TLS and an API token) or by any node (unix socket).

    A pool that answered before is waited for when it goes away, for ``patience_seconds`` each time; calls are
    made so that asking twice does nothing twice. Many threads may use one object.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        ca_file: str | Path | None = None,
        token_file: str | Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Prepare the client, which connects with the first call. Raises ConfigError.

        ``find_door`` gives the values that are left out.
        """
        self._door = find_door(address, ca_file=ca_file, token_file=token_file)
        credentials, options = self._door.credentials, self._door.options
        self._channel = (
            grpc.insecure_channel(self._door.target, options)
            if credentials is None
            else grpc.secure_channel(self._door.target, credentials, options)
        )
        self._stub = jobs_pb2_grpc.JobsStub(self._channel)
        self._patience_seconds = patience_seconds
        self._known = False
        self._may_read = True

    def close(self) -> None:
        """End the open streams."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- submitting ------------------------------------------------------------------------------------

    def submit(self, request: JobRequest, *, request_id: str = "") -> str:
        """Return the job's id, when the job is durably kept.

        With a ``request_id`` of the caller's own a program that is run again gets the job that it had. A job
        that could never run is refused; if a node may yet join that could take it, the program is warned
        (JobWarning).
        """
        return self._submitted(submit_message(request, self._door, request_id)).job_ids[0]

    def submit_array(self, request: JobRequest, numbers: str, *, request_id: str = "") -> SubmitAnswer:
        """Submit one job for each of ``0-99`` or ``1,3,5-9``, all or none.

        GPUSHARE_ARRAY_INDEX tells each job its number. Of ``0-99%4`` at most 4 run at once.
        """
        return self._submitted(submit_message(request, self._door, request_id, numbers))

    def _submitted(self, message: jobs_pb2.SubmitRequest) -> SubmitAnswer:
        answer = common.read(SubmitAnswer, self._call("Submit", message, SUBMIT_SECONDS))
        assert isinstance(answer, SubmitAnswer)
        warn_of(answer, self._advice(answer.job_ids[0]))
        return answer

    def _advice(self, job_id: str) -> JobExplanation | None:
        """Return the explanation of a new job.

        None if nobody answers, or may tell: the job is kept all the same.
        """
        if not self._may_read:
            return None
        asked = jobs_pb2.JobRef(job_id=job_id)
        try:
            told = common.read(JobExplanation, self._try("Explain", asked, ADVICE_SECONDS))
        except PermissionRefused:
            self._may_read = False  # a token for submitting alone; each refusal leaves a line in the audit
            return None
        except GpushareError:
            return None
        assert isinstance(told, JobExplanation)
        return told

    def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        """End a job in any state; its container gets ``grace_seconds`` (10) to end by itself."""
        return job_of(self._call("Cancel", cancel_request(job_id, grace_seconds)))

    def hold(self, job_id: str, *, held: bool = True) -> Job:
        """Keep a waiting job from starting, or release it."""
        return job_of(self._call("Hold", hold_request(job_id, held=held)))

    # --- reading ---------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """Return a job by an id, an unambiguous beginning of one, or the name of its container."""
        return job_of(self._call("Get", jobs_pb2.JobRef(job_id=job_id)))

    def jobs(self, *, ended: bool = False, everybody: bool = False, array_id: str = "") -> Iterator[Job]:
        """Yield live jobs in their order; with ``ended``, then those that are over, newest first."""
        asked = jobs_pb2.ListJobsRequest(ended=ended, all=everybody, array_id=array_id, limit=PAGE)
        while True:
            page = self._call("List", asked)
            yield from map(job_of, page.jobs)
            if not page.next_page_token:
                return
            asked = next_page(asked, page.next_page_token)

    def explain(self, job_id: str) -> JobExplanation:
        """Explain why a job waits or how it ended, with its story."""
        found = common.read(JobExplanation, self._call("Explain", jobs_pb2.JobRef(job_id=job_id)))
        assert isinstance(found, JobExplanation)
        return found

    def nodes(self) -> NodeList:
        """Return the nodes of the pool, with their free capacity."""
        found = common.read(NodeList, self._call("Nodes", jobs_pb2.NodesRequest()))
        assert isinstance(found, NodeList)
        return found

    # --- following -------------------------------------------------------------------------------------

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> Job:
        """Return the job when it is over. Raises TimedOut, and NeverFits if no node could take it.

        After either error the job goes on to run, or to wait.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job = self.get(job_id)
        while not job.is_over:
            left = WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - time.monotonic())
            if left <= 0:
                raise not_over(job, timeout_seconds)
            self._check_may_run(job)
            asked = jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=left)
            job = job_of(self._call("Wait", asked, left + CALL_SECONDS))
        return job

    def wait_all(self, job_ids: Sequence[str], *, timeout_seconds: float | None = None) -> list[Job]:
        """Return all jobs when the last is over, in the order named. Raises TimedOut."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return [
            self.wait(job, timeout_seconds=None if until is None else max(until - time.monotonic(), 0.0))
            for job in job_ids
        ]

    def watch(self, job_id: str) -> Iterator[Job]:
        """Yield the job now, and then each change until it is over, through restarts of the daemons."""
        watched, patience = JobWatch(), self._patience()
        while True:
            try:
                for wire in self._stream("Watch", jobs_pb2.JobRef(job_id=job_id)):
                    patience.answered()
                    job = job_of(wire)
                    if watched.news(job):
                        yield job
                    if job.is_over:
                        return
                raise ended_early(self._door.target)
            except GpushareError as error:
                time.sleep(patience.pause_seconds(error, time.monotonic()))

    def logs(
        self, job_id: str, *, follow: bool = False, tail: int = 0, rank: int = 0, attempt: int = 0
    ) -> Iterator[bytes]:
        """Yield the container's output, both streams as they came, in pieces of any length.

        With ``follow`` the output comes from its start until its end, through restarts of the pool's daemons.
        ``tail``: only the last so many lines. ``attempt``: the number of the attempt; by default the newest
        that has run.
        """
        job = self._started(job_id) if follow else self.get(job_id)
        position, patience = Position(job, tail), self._patience()
        follow = follow and attempt in {0, job.attempt}  # an earlier attempt writes nothing more
        asked = jobs_pb2.LogsRequest(job_id=job.id, follow=follow, tail=tail, rank=rank, attempt=attempt)
        while True:
            asked.attempt = job.attempt if follow else attempt
            try:
                for chunk in self._stream("Logs", asked):
                    patience.answered()
                    if data := position.news(chunk.data):
                        yield data
                if not follow or position.is_complete(self.get(job.id)):
                    return
                raise ended_early(self._door.target)
            except GpushareError as error:
                if position.all_was_read(job, error):
                    return
                if not follow and not isinstance(error, ConnectionLost):
                    raise
                time.sleep(patience.pause_seconds(error, time.monotonic()))
            job = self.get(job.id)
            position.resume(job)

    def _started(self, job_id: str) -> Job:
        for job in self.watch(job_id):
            if job.state in STARTED:
                return job
            self._check_may_run(job)
        raise AssertionError("a watch ends with a job that is over, and so was started")

    def _check_may_run(self, job: Job) -> None:
        """Raise NeverFits for a job that waits for a node that the pool does not have."""
        hopeless = never_fits(self.explain(job.id)) if job.state == WAITS else None
        if hopeless is not None:
            raise hopeless

    # --- calling ---------------------------------------------------------------------------------------

    def _patience(self) -> RetryPatience:
        return RetryPatience(self._patience_seconds, known=self._known)

    def _call(self, name: str, message: Any, seconds: float = CALL_SECONDS) -> Any:
        """Call until there is an answer, which may carry the call out twice.

        Any: each call has a message of its own.
        """
        patience = self._patience()
        while True:
            try:
                return self._try(name, message, seconds)
            except GpushareError as error:
                pause = patience.pause_seconds(error, time.monotonic())
            time.sleep(pause)

    def _try(self, name: str, message: Any, seconds: float) -> Any:
        """Call once. An error of the tree is raised outside of gRPC's, so that the two are not chained."""
        call = getattr(self._stub, name)
        try:
            answer = call(message, timeout=seconds, metadata=self._door.metadata())
        except grpc.RpcError as error:
            failed = error_of(error, self._door.target)
        else:
            self._known = True
            return answer
        raise failed

    def _stream(self, name: str, message: Any) -> Iterator[Any]:
        """Yield the messages of a call that ends with the iterator. Errors are those of ``_try``."""
        failed = None
        call = getattr(self._stub, name)(message, metadata=self._door.metadata())
        try:
            for answer in call:
                self._known = True
                yield answer
        except grpc.RpcError as error:
            failed = error_of(error, self._door.target)
        finally:
            call.cancel()
        if failed is not None:
            raise failed
