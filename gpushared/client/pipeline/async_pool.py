"""Serve asyncio programs with a client like ``pool``, whose docstrings hold here too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
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


class AsyncPool:
    """Call a pool from one event loop; grpc wants all of a process's calls on the same loop."""

    def __init__(
        self,
        address: str | None = None,
        *,
        ca_file: str | Path | None = None,
        token_file: str | Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Make the client on its loop. Raises ConfigError."""
        self._door = find_door(address, ca_file=ca_file, token_file=token_file)
        credentials, options = self._door.credentials, self._door.options
        self._channel = (
            grpc.aio.insecure_channel(self._door.target, options)
            if credentials is None
            else grpc.aio.secure_channel(self._door.target, credentials, options)
        )
        self._stub = jobs_pb2_grpc.JobsStub(self._channel)
        self._patience_seconds = patience_seconds
        self._known = False
        self._may_read = True

    async def close(self) -> None:
        """End the open streams."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- submitting ------------------------------------------------------------------------------------

    async def submit(self, request: JobRequest, *, request_id: str = "") -> str:
        return (await self._submitted(submit_message(request, self._door, request_id))).job_ids[0]

    async def submit_array(self, request: JobRequest, numbers: str, *, request_id: str = "") -> SubmitAnswer:
        return await self._submitted(submit_message(request, self._door, request_id, numbers))

    async def _submitted(self, message: jobs_pb2.SubmitRequest) -> SubmitAnswer:
        answer = common.read(SubmitAnswer, await self._call("Submit", message, SUBMIT_SECONDS))
        assert isinstance(answer, SubmitAnswer)
        warn_of(answer, await self._advice(answer.job_ids[0]))
        return answer

    async def _advice(self, job_id: str) -> JobExplanation | None:
        """Return the explanation of a new job.

        None if nobody answers, or may tell: the job is kept all the same.
        """
        if not self._may_read:
            return None
        asked = jobs_pb2.JobRef(job_id=job_id)
        try:
            told = common.read(JobExplanation, await self._try("Explain", asked, ADVICE_SECONDS))
        except PermissionRefused:
            self._may_read = False  # a token for submitting alone; each refusal leaves a line in the audit
            return None
        except GpushareError:
            return None
        assert isinstance(told, JobExplanation)
        return told

    async def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        return job_of(await self._call("Cancel", cancel_request(job_id, grace_seconds)))

    async def hold(self, job_id: str, *, held: bool = True) -> Job:
        return job_of(await self._call("Hold", hold_request(job_id, held=held)))

    # --- reading ---------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job:
        return job_of(await self._call("Get", jobs_pb2.JobRef(job_id=job_id)))

    async def jobs(
        self, *, ended: bool = False, everybody: bool = False, array_id: str = ""
    ) -> AsyncIterator[Job]:
        asked = jobs_pb2.ListJobsRequest(ended=ended, all=everybody, array_id=array_id, limit=PAGE)
        while True:
            page = await self._call("List", asked)
            for wire in page.jobs:
                yield job_of(wire)
            if not page.next_page_token:
                return
            asked = next_page(asked, page.next_page_token)

    async def explain(self, job_id: str) -> JobExplanation:
        found = common.read(JobExplanation, await self._call("Explain", jobs_pb2.JobRef(job_id=job_id)))
        assert isinstance(found, JobExplanation)
        return found

    async def nodes(self) -> NodeList:
        found = common.read(NodeList, await self._call("Nodes", jobs_pb2.NodesRequest()))
        assert isinstance(found, NodeList)
        return found

    # --- following -------------------------------------------------------------------------------------

    async def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> Job:
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job = await self.get(job_id)
        while not job.is_over:
            left = WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - time.monotonic())
            if left <= 0:
                raise not_over(job, timeout_seconds)
            await self._check_may_run(job)
            asked = jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=left)
            job = job_of(await self._call("Wait", asked, left + CALL_SECONDS))
        return job

    async def wait_all(self, job_ids: Sequence[str], *, timeout_seconds: float | None = None) -> list[Job]:
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return [
            await self.wait(
                job, timeout_seconds=None if until is None else max(until - time.monotonic(), 0.0)
            )
            for job in job_ids
        ]

    async def watch(self, job_id: str) -> AsyncIterator[Job]:
        watched, patience = JobWatch(), self._patience()
        while True:
            try:
                async for wire in self._stream("Watch", jobs_pb2.JobRef(job_id=job_id)):
                    patience.answered()
                    job = job_of(wire)
                    if watched.news(job):
                        yield job
                    if job.is_over:
                        return
                raise ended_early(self._door.target)
            except GpushareError as error:
                await asyncio.sleep(patience.pause_seconds(error, time.monotonic()))

    async def logs(
        self, job_id: str, *, follow: bool = False, tail: int = 0, rank: int = 0, attempt: int = 0
    ) -> AsyncIterator[bytes]:
        job = await (self._started(job_id) if follow else self.get(job_id))
        position, patience = Position(job, tail), self._patience()
        follow = follow and attempt in {0, job.attempt}  # an earlier attempt writes nothing more
        asked = jobs_pb2.LogsRequest(job_id=job.id, follow=follow, tail=tail, rank=rank, attempt=attempt)
        while True:
            asked.attempt = job.attempt if follow else attempt
            try:
                async for chunk in self._stream("Logs", asked):
                    patience.answered()
                    if data := position.news(chunk.data):
                        yield data
                if not follow or position.is_complete(await self.get(job.id)):
                    return
                raise ended_early(self._door.target)
            except GpushareError as error:
                if position.all_was_read(job, error):
                    return
                if not follow and not isinstance(error, ConnectionLost):
                    raise
                await asyncio.sleep(patience.pause_seconds(error, time.monotonic()))
            job = await self.get(job.id)
            position.resume(job)

    async def _started(self, job_id: str) -> Job:
        async for job in self.watch(job_id):
            if job.state in STARTED:
                return job
            await self._check_may_run(job)
        raise AssertionError("a watch ends with a job that is over, and so was started")

    async def _check_may_run(self, job: Job) -> None:
        """Raise NeverFits for a job that waits for a node that the pool does not have."""
        hopeless = never_fits(await self.explain(job.id)) if job.state == WAITS else None
        if hopeless is not None:
            raise hopeless

    # --- calling ---------------------------------------------------------------------------------------

    def _patience(self) -> RetryPatience:
        return RetryPatience(self._patience_seconds, known=self._known)

    async def _call(self, name: str, message: Any, seconds: float = CALL_SECONDS) -> Any:
        """Call until there is an answer. Any: each call has a message of its own."""
        patience = self._patience()
        while True:
            try:
                return await self._try(name, message, seconds)
            except GpushareError as error:
                pause = patience.pause_seconds(error, time.monotonic())
            await asyncio.sleep(pause)

    async def _try(self, name: str, message: Any, seconds: float) -> Any:
        """Call once. An error of the tree is raised outside of gRPC's, so that the two are not chained."""
        call = getattr(self._stub, name)
        try:
            answer = await call(message, timeout=seconds, metadata=self._door.metadata())
        except grpc.RpcError as error:
            failed = error_of(error, self._door.target)
        else:
            self._known = True
            return answer
        raise failed

    async def _stream(self, name: str, message: Any) -> AsyncIterator[Any]:
        failed = None
        call = getattr(self._stub, name)(message, metadata=self._door.metadata())
        try:
            async for answer in call:
                self._known = True
                yield answer
        except grpc.RpcError as error:
            failed = error_of(error, self._door.target)
        finally:
            call.cancel()
        if failed is not None:
            raise failed
