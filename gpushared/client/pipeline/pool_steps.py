"""Describe each call of a pool's client once, for plain programs and for asyncio.

A method is a generator. It yields what is to be done: a call, the next message of a stream, a pause; or a value
for the program. ``sync_pool`` does it by waiting, ``async_pool`` by awaiting; both send back the result.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message as Wire

from gpushared.api.message import Message
from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc
from gpushared.api.v1.messages import Job, JobExplanation, NodeList, SubmitAnswer
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline.job_request import JobRequest
from gpushared.client.pipeline.pool_address import find_pool
from gpushared.client.pipeline.progress import JobWatch, Position
from gpushared.client.pipeline.rpc_errors import ended_early, error_of
from gpushared.client.retries import RetryPatience
from gpushared.domain.model.coordinator_addresses import AddressRound, CoordinatorAddresses
from gpushared.domain.model.errors import (
    GpushareError,
    NeverFits,
    NotLeader,
    PermissionRefused,
    RequestError,
    TimedOut,
)

CALL_SECONDS = 30.0
"""A call that waits for nothing may take so long."""
SUBMIT_SECONDS = 120.0
"""An array of thousands is written job by job."""
WAIT_SECONDS = 60.0
"""A daemon keeps a call waiting for a change no longer."""
PATIENCE_SECONDS = 300.0
"""A machine that is booted anew is back by then."""
ADVICE_SECONDS = 5.0
"""After a job was taken the client asks if the job could ever run; nobody waits for that for long."""
PAGE = 1000
NEVER_FITS = "never_fits"
QUEUED = "queued"
_CALLER = 6
"""The frames between a warning and the submitting program are ``_warn``, ``_submit``, the client's own three,
the caller."""
STARTED = frozenset({"running", "paused", "unknown", "cancelling", "succeeded", "failed", "cancelled"})
"""In these states a job has, or had, or will never have a container to read from."""


class JobWarning(UserWarning):
    """The pool took a job, which may not be the one that the program meant."""


class MakeCall(NamedTuple):
    """Make a call, and send back its answer."""

    start: Callable[[], Any]


class ReadNext(NamedTuple):
    """Read from a stream, and send back the next message; None at its end."""

    stream: Any


class Pause(NamedTuple):
    """Do nothing for a while."""

    seconds: float


class HandOn(NamedTuple):
    """Give the program a value."""

    value: Any


_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", bound=Message)
Steps = Generator[MakeCall | ReadNext | Pause | HandOn, Any, _Result]


class StepResult(NamedTuple):
    """Hold the result of a step."""

    answer: Any = None
    error: GpushareError | None = None

    def resume(self, steps: Steps[Any]) -> MakeCall | ReadNext | Pause | HandOn:
        """Return the next step. The error is raised outside of gRPC's, so that the two are not chained."""
        return steps.send(self.answer) if self.error is None else steps.throw(self.error)


class Tries:
    """Choose the coordinator for each try of one call or stream, and the pause after the try."""

    def __init__(self, patience: RetryPatience, addresses: CoordinatorAddresses) -> None:
        self._patience = patience
        self._addresses = addresses
        self._round = AddressRound(addresses)
        self._address = addresses.present

    def begin(self) -> str:
        """Return the address for this try."""
        self._address = self._addresses.present
        return self._address

    def answered(self) -> None:
        self._patience.answered()
        self._round.begin_anew()

    def pause(self, error: GpushareError) -> Pause:
        """Return the pause before the next try.

        Another coordinator is asked next if this one is away or does not lead, without a pause before all have
        been asked. Raises ``error`` if there is no next try.
        """
        if isinstance(error, NotLeader):
            self._patience.reached()
        seconds = self._patience.pause_seconds(error, time.monotonic())
        if isinstance(error, ConnectionLost | NotLeader) and not self._round.failed(self._address):
            return Pause(0.0)
        return Pause(seconds)


class PoolSteps:
    """Hold the channels to a pool, and what its calls have in common."""

    _channels: ClassVar[Any]
    """The module that makes channels: ``grpc`` or ``grpc.aio``."""

    def __init__(
        self,
        address: str | None = None,
        *,
        ca_file: str | Path | None = None,
        token_file: str | Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Prepare the client, which connects with the first call. Raises ConfigError.

        ``find_pool`` gives the values that are left out.
        """
        self._pool = find_pool(address, ca_file=ca_file, token_file=token_file)
        self._addresses = CoordinatorAddresses(lambda: self._pool.targets)
        self._open_channels = {target: self._channel_to(target) for target in self._pool.targets}
        self._stubs = {
            target: jobs_pb2_grpc.JobsStub(channel) for target, channel in self._open_channels.items()
        }
        self._patience_seconds = patience_seconds
        self._has_answered = False
        self._may_read = True

    def _channel_to(self, target: str) -> Any:
        credentials, options = self._pool.credentials, self._pool.options
        if credentials is None:
            return self._channels.insecure_channel(target, options)
        return self._channels.secure_channel(target, credentials, options)

    # --- submitting ------------------------------------------------------------------------------------

    def _submit(self, request: JobRequest, request_id: str, numbers: str = "") -> Steps[SubmitAnswer]:
        """Submit a job or, for ``numbers``, an array; with an id by which asking twice gives the same jobs."""
        if request.pool is False and self._pool.anchors is not None:
            raise RequestError(
                "a coordinator runs no jobs itself, so the job cannot stay with it",
                hint="leave out pool=False, or name a node: node=...",
            )
        message = request.message(request_id or str(uuid.uuid4()), numbers)
        answer = _read(SubmitAnswer, (yield from self._call("Submit", message, SUBMIT_SECONDS)))
        _warn(answer, (yield from self._advice(answer.job_ids[0])))
        return answer

    def _advice(self, job_id: str) -> Steps[JobExplanation | None]:
        """Return the explanation of a new job.

        None if there is no answer, or the token may not read jobs: the job is kept all the same.
        """
        if not self._may_read:
            return None
        try:
            answer = yield from self._try("Explain", jobs_pb2.JobRef(job_id=job_id), ADVICE_SECONDS)
        except PermissionRefused:
            self._may_read = False  # a token for submitting alone; each refusal leaves a line in the audit
            return None
        except GpushareError:
            return None
        return _read(JobExplanation, answer)

    def _cancel(self, job_id: str, grace_seconds: int | None) -> Steps[Job]:
        message = jobs_pb2.CancelJobRequest(job_id=job_id, grace_seconds=grace_seconds)
        return _read(Job, (yield from self._call("Cancel", message)))

    def _hold(self, job_id: str, *, held: bool) -> Steps[Job]:
        return _read(Job, (yield from self._call("Hold", jobs_pb2.HoldJobRequest(job_id=job_id, held=held))))

    # --- reading ---------------------------------------------------------------------------------------

    def _get(self, job_id: str) -> Steps[Job]:
        return _read(Job, (yield from self._call("Get", jobs_pb2.JobRef(job_id=job_id))))

    def _jobs(self, *, ended: bool, everybody: bool, array_id: str) -> Steps[None]:
        message = jobs_pb2.ListJobsRequest(ended=ended, all=everybody, array_id=array_id, limit=PAGE)
        while True:
            page = yield from self._call("List", message)
            for wire in page.jobs:
                yield HandOn(_read(Job, wire))
            if not page.next_page_token:
                return
            message.page_token = page.next_page_token

    def _explain(self, job_id: str) -> Steps[JobExplanation]:
        return _read(JobExplanation, (yield from self._call("Explain", jobs_pb2.JobRef(job_id=job_id))))

    def _nodes(self) -> Steps[NodeList]:
        return _read(NodeList, (yield from self._call("Nodes", jobs_pb2.NodesRequest())))

    # --- following -------------------------------------------------------------------------------------

    def _wait(self, job_id: str, timeout_seconds: float | None) -> Steps[Job]:
        return (yield from self._wait_until(lambda job: job.is_over, job_id, timeout_seconds))

    def _wait_all(self, job_ids: Sequence[str], timeout_seconds: float | None) -> Steps[list[Job]]:
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        jobs = []
        for job in job_ids:
            remaining = None if until is None else max(until - time.monotonic(), 0.0)
            jobs.append((yield from self._wait(job, remaining)))
        return jobs

    def _wait_until(
        self, is_reached: Callable[[Job], bool], job_id: str, timeout_seconds: float | None = None
    ) -> Steps[Job]:
        """Return the job when ``is_reached`` is true for it.

        Raises TimedOut, and NeverFits if no node could take the job.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job = yield from self._get(job_id)
        while not is_reached(job):
            remaining = WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - time.monotonic())
            if remaining <= 0:
                raise TimedOut(
                    f"job {job.id} is {job.state}, not over after {timeout_seconds:.0f} s",
                    hint="it goes on; wait again, or cancel it",
                )
            hopeless = _never_fits((yield from self._explain(job.id))) if job.state == QUEUED else None
            if hopeless is not None:
                raise hopeless
            message = jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=remaining)
            job = _read(Job, (yield from self._call("Wait", message, remaining + CALL_SECONDS)))
        return job

    def _watch(self, job_id: str) -> Steps[None]:
        watched, tries = JobWatch(), self._tries()
        while True:
            stream = self._open("Watch", jobs_pb2.JobRef(job_id=job_id), tries)
            try:
                while (wire := (yield from self._next(stream))) is not None:
                    tries.answered()
                    job = _read(Job, wire)
                    if watched.news(job):
                        yield HandOn(job)
                    if job.is_over:
                        return
                raise ended_early(self._pool.target)
            except GpushareError as error:
                pause = tries.pause(error)
            finally:
                stream.cancel()
            yield pause

    def _logs(self, job_id: str, *, follow: bool, tail: int, rank: int, attempt: int) -> Steps[None]:
        has_started = partial(self._wait_until, lambda job: job.state in STARTED)
        job = yield from (has_started(job_id) if follow else self._get(job_id))
        position, tries = Position(job, tail), self._tries()
        follow = follow and attempt in {0, job.attempt}  # an earlier attempt writes nothing more
        message = jobs_pb2.LogsRequest(job_id=job.id, follow=follow, tail=tail, rank=rank, attempt=attempt)
        while True:
            message.attempt = job.attempt if follow else attempt
            stream = self._open("Logs", message, tries)
            try:
                while (chunk := (yield from self._next(stream))) is not None:
                    tries.answered()
                    if data := position.news(chunk.data):
                        yield HandOn(data)
                if not follow or position.is_complete((yield from self._get(job.id))):
                    return
                raise ended_early(self._pool.target)
            except GpushareError as error:
                if position.all_was_read(job, error):
                    return
                if not follow and not isinstance(error, ConnectionLost | NotLeader):
                    raise
                pause = tries.pause(error)
            finally:
                stream.cancel()
            yield pause
            job = yield from self._get(job.id)
            position.resume(job)

    # --- calling ---------------------------------------------------------------------------------------

    def _tries(self) -> Tries:
        return Tries(RetryPatience(self._patience_seconds, is_known=self._has_answered), self._addresses)

    def _call(self, name: str, message: Wire, seconds: float = CALL_SECONDS) -> Steps[Any]:
        """Call until there is an answer, which may carry the call out twice."""
        tries = self._tries()
        while True:
            try:
                return (yield from self._try(name, message, seconds, tries))
            except GpushareError as error:
                pause = tries.pause(error)
            yield pause

    def _try(self, name: str, message: Wire, seconds: float, tries: Tries | None = None) -> Steps[Any]:
        """Call once."""
        call = getattr(self._stubs[(tries or self._tries()).begin()], name)
        answer = yield MakeCall(partial(call, message, timeout=seconds, metadata=self._pool.metadata()))
        self._has_answered = True
        return answer

    def _open(self, name: str, message: Wire, tries: Tries) -> Any:
        return getattr(self._stubs[tries.begin()], name)(message, metadata=self._pool.metadata())

    def _next(self, stream: Any) -> Steps[Any]:
        wire = yield ReadNext(stream)
        if wire is not None:
            self._has_answered = True
        return wire

    def _failed(self, error: grpc.RpcError) -> StepResult:
        return StepResult(error=error_of(error, self._pool.target))


def _never_fits(explanation: JobExplanation) -> NeverFits | None:
    """Return the error for a job that no node could take, not even an empty one; None for every other job."""
    if explanation.reason_code != NEVER_FITS or explanation.job.is_over:
        return None
    text = f"{explanation.job.id} waits until a node joins that could take it: {explanation.sentence}"
    return NeverFits(text, hint=explanation.hint)


def _warn(answer: SubmitAnswer, explanation: JobExplanation | None) -> None:
    """Warn the program as the command line would on stderr. ``explanation`` is about the first job, if known."""
    hopeless = _never_fits(explanation) if explanation is not None else None
    for text in (*answer.notes, *([str(hopeless)] if hopeless else [])):
        warnings.warn(text, JobWarning, stacklevel=_CALLER)


def _read(kind: type[_Answer], wire: Wire) -> _Answer:
    """Return an answer as one of the client's typed objects."""
    return kind(
        json_format.MessageToDict(
            wire, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )
