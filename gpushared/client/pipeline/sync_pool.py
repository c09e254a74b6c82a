"""Serve synchronous programs; ``async_pool`` is the twin."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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


class Pool(PoolSteps):
    """Call a pool of nodes, by its coordinator (TLS and an API token) or by any node (unix socket).

    A pool that answered before is waited for when it goes away, for ``patience_seconds`` each time; calls are
    made so that asking twice does nothing twice. Many threads may use one object.
    """

    _channels: ClassVar[Any] = grpc

    def close(self) -> None:
        """End the open streams."""
        for channel in self._open_channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, request: JobRequest, *, request_id: str = "") -> str:
        """Return the job's id, when the job is durably kept.

        With a ``request_id`` of the caller's own a program that is run again gets the job that it had. A job
        that could never run is refused; if a node may yet join that could take it, the program is warned
        (JobWarning).
        """
        return self._run(self._submit(request, request_id)).job_ids[0]

    def submit_array(self, request: JobRequest, numbers: str, *, request_id: str = "") -> SubmitAnswer:
        """Submit one job for each of ``0-99`` or ``1,3,5-9``, all or none.

        GPUSHARE_ARRAY_INDEX tells each job its number. Of ``0-99%4`` at most 4 run at once.
        """
        return self._run(self._submit(request, request_id, numbers))

    def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        """End a job in any state; its container gets ``grace_seconds`` (10) to end by itself."""
        return self._run(self._cancel(job_id, grace_seconds))

    def hold(self, job_id: str, *, held: bool = True) -> Job:
        """Keep a waiting job from starting, or release it."""
        return self._run(self._hold(job_id, held=held))

    def get(self, job_id: str) -> Job:
        """Return a job by an id, an unambiguous beginning of one, or the name of its container."""
        return self._run(self._get(job_id))

    def jobs(self, *, ended: bool = False, everybody: bool = False, array_id: str = "") -> Iterator[Job]:
        """Yield live jobs in their order; with ``ended``, then those that are over, newest first."""
        return self._iterate(self._jobs(ended=ended, everybody=everybody, array_id=array_id))

    def explain(self, job_id: str) -> JobExplanation:
        """Explain why a job waits or how it ended, with its story."""
        return self._run(self._explain(job_id))

    def nodes(self) -> NodeList:
        """Return the nodes of the pool, with their free capacity."""
        return self._run(self._nodes())

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> Job:
        """Return the job when it is over. Raises TimedOut, and NeverFits if no node could take it.

        After either error the job goes on to run, or to wait.
        """
        return self._run(self._wait(job_id, timeout_seconds))

    def wait_all(self, job_ids: Sequence[str], *, timeout_seconds: float | None = None) -> list[Job]:
        """Return all jobs when the last is over, in the order named. Raises TimedOut."""
        return self._run(self._wait_all(job_ids, timeout_seconds))

    def watch(self, job_id: str) -> Iterator[Job]:
        """Yield the job now, and then each change until it is over, through restarts of the daemons."""
        return self._iterate(self._watch(job_id))

    def logs(
        self, job_id: str, *, follow: bool = False, tail: int = 0, rank: int = 0, attempt: int = 0
    ) -> Iterator[bytes]:
        """Yield the container's output, both streams as they came, in pieces of any length.

        With ``follow`` the output comes from its start until its end, through restarts of the pool's daemons.
        ``tail``: only the last so many lines. ``attempt``: the number of the attempt; by default the newest
        that has run.
        """
        return self._iterate(self._logs(job_id, follow=follow, tail=tail, rank=rank, attempt=attempt))

    def _run(self, steps: Steps[_Result]) -> _Result:
        outcome = StepResult()
        try:
            while True:
                outcome = self._do(outcome.resume(steps))
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _iterate(self, steps: Steps[None]) -> Iterator[Any]:
        outcome = StepResult()
        try:
            while True:
                step = outcome.resume(steps)
                outcome = self._do(step)
                if isinstance(step, HandOn):
                    yield step.value
        except StopIteration:
            return
        finally:
            steps.close()

    def _do(self, step: MakeCall | ReadNext | Pause | HandOn) -> StepResult:
        try:
            match step:
                case MakeCall(start):
                    return StepResult(start())
                case ReadNext(stream):
                    return StepResult(next(stream, None))
                case Pause(seconds):
                    time.sleep(seconds)
                case HandOn():
                    pass
                case _:
                    assert_never(step)
        except grpc.RpcError as error:
            return self._failed(error)
        return StepResult()
