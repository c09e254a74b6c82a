"""The synchronous client. ``async_pool`` is its twin; what they share is pure and beside them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc
from gpushared.client.faults import ConnectionLost
from gpushared.client.job_messages import Job, JobExplanation, NodeList, SubmitAnswer
from gpushared.client.patience import Patience
from gpushared.client.pipeline import progress
from gpushared.client.pipeline.calls import (
    CALL_SECONDS,
    PAGE,
    PATIENCE_SECONDS,
    SUBMIT_SECONDS,
    WAIT_SECONDS,
    cancel_request,
    next_page,
    not_over,
)
from gpushared.client.pipeline.door import find_door
from gpushared.client.pipeline.faults import ended_early, error_of
from gpushared.client.pipeline.progress import STARTED, Position, Watched, job_of
from gpushared.client.pipeline.request import JobRequest
from gpushared.domain.errors import GpushareError


class Pool:
    """A pool of nodes, by its coordinator (TLS and an API token) or by any of its nodes (unix socket).

    A pool that answered before is waited for when it goes away, for ``patience_seconds`` each time; calls
    are made so that asking twice does nothing twice. May be used by many threads.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        ca_file: str | Path | None = None,
        token_file: str | Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Connects with the first call. See ``find_door`` for what is not given. Raises ConfigError."""
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

    def close(self) -> None:
        """Streams that are open end."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- submitting ------------------------------------------------------------------------------------

    def submit(self, request: JobRequest, *, request_id: str = "") -> str:
        """The job's id, when it is durably kept.

        With a ``request_id`` of the caller's own a program that is run again gets the job that it had.
        """
        return self._submitted(request.message(request_id or str(uuid.uuid4()))).job_ids[0]

    def submit_array(self, request: JobRequest, numbers: str, *, request_id: str = "") -> SubmitAnswer:
        """One job for each of ``0-99`` or ``1,3,5-9``, all or none; GPUSHARE_ARRAY_INDEX tells each which."""
        return self._submitted(request.message(request_id or str(uuid.uuid4()), numbers))

    def _submitted(self, message: jobs_pb2.SubmitRequest) -> SubmitAnswer:
        answer = progress.read(SubmitAnswer, self._call("Submit", message, SUBMIT_SECONDS))
        assert isinstance(answer, SubmitAnswer)
        return answer

    def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        """Ends a job whatever its state; its container gets ``grace_seconds`` (10) to end by itself."""
        return job_of(self._call("Cancel", cancel_request(job_id, grace_seconds)))

    # --- reading ---------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """By an id, an unmistakable beginning of one, or the name of its container."""
        return job_of(self._call("Get", jobs_pb2.JobRef(job_id=job_id)))

    def jobs(self, *, ended: bool = False, everybody: bool = False, array_id: str = "") -> Iterator[Job]:
        """Live ones in their order; with ``ended`` then those that are over, newest first."""
        asked = jobs_pb2.ListJobsRequest(ended=ended, all=everybody, array_id=array_id, limit=PAGE)
        while True:
            page = self._call("List", asked)
            yield from map(job_of, page.jobs)
            if not page.next_page_token:
                return
            asked = next_page(asked, page.next_page_token)

    def explain(self, job_id: str) -> JobExplanation:
        """Why a job waits or what became of it, and its story."""
        found = progress.read(JobExplanation, self._call("Explain", jobs_pb2.JobRef(job_id=job_id)))
        assert isinstance(found, JobExplanation)
        return found

    def nodes(self) -> NodeList:
        """What the pool has, and what of it is free."""
        found = progress.read(NodeList, self._call("Nodes", jobs_pb2.NodesRequest()))
        assert isinstance(found, NodeList)
        return found

    # --- following -------------------------------------------------------------------------------------

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> Job:
        """The job when it is over. Raises TimedOut; the job goes on then."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job = self.get(job_id)
        while not job.is_over:
            left = WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - time.monotonic())
            if left <= 0:
                raise not_over(job, timeout_seconds)
            asked = jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=left)
            job = job_of(self._call("Wait", asked, left + CALL_SECONDS))
        return job

    def wait_all(self, job_ids: Sequence[str], *, timeout_seconds: float | None = None) -> list[Job]:
        """All of them when the last is over, in the order named. Raises TimedOut."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return [
            self.wait(job, timeout_seconds=None if until is None else max(until - time.monotonic(), 0.0))
            for job in job_ids
        ]

    def watch(self, job_id: str) -> Iterator[Job]:
        """The job now, and then each change until it is over, through restarts of the pool's daemons."""
        watched, patience = Watched(), self._patience()
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
        """What its container has written, both streams as they came, in pieces of any length.

        With ``follow`` from its start until it ends, through restarts of the pool's daemons. ``tail``: only
        the last so many lines. ``attempt``: of which one; else of the newest that has run.
        """
        job = self._started(job_id) if follow else self.get(job_id)
        position, patience = Position(job, tail), self._patience()
        follow = follow and attempt in {0, job.attempt}  # of an earlier one nothing is still to come
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
        return next(job for job in self.watch(job_id) if job.state in STARTED)

    # --- calling ---------------------------------------------------------------------------------------

    def _patience(self) -> Patience:
        return Patience(self._patience_seconds, known=self._known)

    def _call(self, name: str, message: Any, seconds: float = CALL_SECONDS) -> Any:
        """One that may be made twice; until there is an answer. Any: each call has a message of its own."""
        patience = self._patience()
        while True:
            try:
                answer = getattr(self._stub, name)(message, timeout=seconds, metadata=self._door.metadata())
            except grpc.RpcError as error:
                pause = patience.pause_seconds(error_of(error, self._door.target), time.monotonic())
                time.sleep(pause)
            else:
                self._known = True
                return answer

    def _stream(self, name: str, message: Any) -> Iterator[Any]:
        """Its messages; the call ends with the iterator."""
        call = getattr(self._stub, name)(message, metadata=self._door.metadata())
        try:
            for answer in call:
                self._known = True
                yield answer
        except grpc.RpcError as error:
            raise error_of(error, self._door.target) from error
        finally:
            call.cancel()
