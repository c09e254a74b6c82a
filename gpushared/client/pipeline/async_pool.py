"""Serve asyncio programs with a client like ``Pool``, whose docstrings hold here too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, assert_never

import grpc

from gpushared.api.v1.messages import Job, JobExplanation, NodeList, SubmitAnswer
from gpushared.client.pipeline.job_request import JobRequest
from gpushared.client.pipeline.pool_steps import (
    HandOn,
    MakeCall,
    Pause,
    PoolSteps,
    ReadNext,
    StepResult,
    Steps,
)

_Result = TypeVar("_Result")


class AsyncPool(PoolSteps):
    """Call a pool from one event loop; grpc wants all of a process's calls on the same loop."""

    _channels: ClassVar[Any] = grpc.aio

    async def close(self) -> None:
        """End the open streams."""
        for channel in self._open_channels.values():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(self, request: JobRequest, *, request_id: str = "") -> str:
        return (await self._run(self._submit(request, request_id))).job_ids[0]

    async def submit_array(self, request: JobRequest, numbers: str, *, request_id: str = "") -> SubmitAnswer:
        return await self._run(self._submit(request, request_id, numbers))

    async def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        return await self._run(self._cancel(job_id, grace_seconds))

    async def hold(self, job_id: str, *, held: bool = True) -> Job:
        return await self._run(self._hold(job_id, held=held))

    async def get(self, job_id: str) -> Job:
        return await self._run(self._get(job_id))

    def jobs(self, *, ended: bool = False, everybody: bool = False, array_id: str = "") -> AsyncIterator[Job]:
        return self._iterate(self._jobs(ended=ended, everybody=everybody, array_id=array_id))

    async def explain(self, job_id: str) -> JobExplanation:
        return await self._run(self._explain(job_id))

    async def nodes(self) -> NodeList:
        return await self._run(self._nodes())

    async def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> Job:
        return await self._run(self._wait(job_id, timeout_seconds))

    async def wait_all(self, job_ids: Sequence[str], *, timeout_seconds: float | None = None) -> list[Job]:
        return await self._run(self._wait_all(job_ids, timeout_seconds))

    def watch(self, job_id: str) -> AsyncIterator[Job]:
        return self._iterate(self._watch(job_id))

    def logs(
        self, job_id: str, *, follow: bool = False, tail: int = 0, rank: int = 0, attempt: int = 0
    ) -> AsyncIterator[bytes]:
        return self._iterate(self._logs(job_id, follow=follow, tail=tail, rank=rank, attempt=attempt))

    async def _run(self, steps: Steps[_Result]) -> _Result:
        outcome = StepResult()
        try:
            while True:
                outcome = await self._do(outcome.resume(steps))
        except StopIteration as end:
            result: _Result = end.value
            return result

    async def _iterate(self, steps: Steps[None]) -> AsyncIterator[Any]:
        outcome = StepResult()
        try:
            while True:
                step = outcome.resume(steps)
                outcome = await self._do(step)
                if isinstance(step, HandOn):
                    yield step.value
        except StopIteration:
            return
        finally:
            steps.close()

    async def _do(self, step: MakeCall | ReadNext | Pause | HandOn) -> StepResult:
        try:
            match step:
                case MakeCall(start):
                    return StepResult(await start())
                case ReadNext(stream):
                    message = await stream.read()
                    return StepResult(None if message is grpc.aio.EOF else message)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case HandOn():
                    pass
                case _:
                    assert_never(step)
        except grpc.RpcError as error:
            return self._failed(error)
        return StepResult()
