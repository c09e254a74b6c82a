"""Share the clients' messages, waits and errors, and track progress so that a new connection goes on from there."""

from __future__ import annotations

import uuid
import warnings
from typing import Protocol, cast

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message as Wire

from gpushared.api.message import Message
from gpushared.api.v1 import jobs_pb2
from gpushared.api.v1.messages import Job, JobExplanation, SubmitAnswer
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline.job_request import JobRequest
from gpushared.client.pipeline.pool_address import PoolAddress
from gpushared.domain.model import errors
from gpushared.domain.model.errors import (
    GpushareError,
    NeverFits,
    RequestError,
    StateConflict,
    TimedOut,
    kind_of_code,
)

HINT_METADATA = "gpushare-hint-bin"
"""The daemons send an error's hint in this trailing metadata."""
MAX_DETAILS = 300
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED})
_TLS_FAILED = ("CERTIFICATE_VERIFY_FAILED", "Ssl handshake failed", "Hostname Verification Check failed")
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
WAITS = "queued"
_CALLER = 4
"""The frames between the warning and the submitting program are ``warn_of``, the client's own two, the
caller."""
STARTED = frozenset({"running", "paused", "unknown", "cancelling", "succeeded", "failed", "cancelled"})
"""In these states a job has, or had, or will never have a container to read from."""
RUNNING = frozenset({"running", "paused", "unknown", "cancelling"})


class _Status(Protocol):
    """Declare the methods that both of grpc's kinds of errors have, of which only one declares them."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...


def error_of(error: grpc.RpcError, target: str) -> GpushareError:
    """Return the daemon's error, or ConnectionLost if the daemon said nothing, which may pass."""
    status = cast("_Status", error)
    code, hint = status.code(), _hint(status)
    details = _one_line(status.details() or code.name)
    if any(sign in details for sign in _TLS_FAILED):
        return errors.PermissionRefused(
            f"who answers at {target} is not this pool's coordinator: {details}",
            hint="is the address right, and the file with the authority? `gpushare pool anchors` makes it",
        )
    if code in _AWAY and not hint:
        return ConnectionLost(
            f"the pool at {target} does not answer: {details}", hint="does it run there? is the port open?"
        )
    return kind_of_code(code.name.lower())(details, hint=hint)


def ended_early(target: str) -> ConnectionLost:
    """Return the error for a stream that ended before its job did."""
    return ConnectionLost(
        f"the pool at {target} ended its answer", hint="it may be on its way down; try again"
    )


def _hint(status: _Status) -> str:
    for key, value in status.trailing_metadata() or ():
        if key == HINT_METADATA and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


def _one_line(details: str) -> str:
    """Return the end of gRPC's text, where the cause is."""
    cause = details.rpartition("last error: ")[2]
    return "".join(c if c.isprintable() else " " for c in cause)[-MAX_DETAILS:]


class JobWarning(UserWarning):
    """A job was taken, and the program may have meant something else."""


def submit_message(
    request: JobRequest, door: PoolAddress, request_id: str, array: str = ""
) -> jobs_pb2.SubmitRequest:
    """Return the request with an id by which asking twice gives the same jobs. Raises RequestError."""
    if request.pool is False and door.anchors is not None:
        raise RequestError(
            "a coordinator runs no jobs itself, so the job cannot stay with it",
            hint="leave out pool=False, or name a node: node=...",
        )
    return request.message(request_id or str(uuid.uuid4()), array)


def never_fits(told: JobExplanation) -> NeverFits | None:
    """Return the error for a job that no node could take, not even an empty one; None for every other job."""
    if told.reason_code != NEVER_FITS or told.job.is_over:
        return None
    text = f"{told.job.id} waits until a node joins that could take it: {told.sentence}"
    return NeverFits(text, hint=told.hint)


def warn_of(answer: SubmitAnswer, told: JobExplanation | None) -> None:
    """Warn the program as the command line would on stderr. ``told`` is about the first job, if known."""
    hopeless = never_fits(told) if told is not None else None
    for text in (*answer.notes, *([str(hopeless)] if hopeless else [])):
        warnings.warn(text, JobWarning, stacklevel=_CALLER)


def hold_request(job_id: str, *, held: bool) -> jobs_pb2.HoldJobRequest:
    return jobs_pb2.HoldJobRequest(job_id=job_id, held=held)


def cancel_request(job_id: str, grace_seconds: int | None) -> jobs_pb2.CancelJobRequest:
    return jobs_pb2.CancelJobRequest(job_id=job_id, grace_seconds=grace_seconds)


def next_page(asked: jobs_pb2.ListJobsRequest, token: str) -> jobs_pb2.ListJobsRequest:
    following = jobs_pb2.ListJobsRequest()
    following.CopyFrom(asked)
    following.page_token = token
    return following


def not_over(job: Job, seconds: float | None) -> TimedOut:
    """Return the error for a job that is not over in time; the job itself is well as far as anybody knows."""
    return TimedOut(
        f"job {job.id} is {job.state}, not over after {seconds:.0f} s",
        hint="it goes on; wait again, or cancel it",
    )


def read(kind: type[Message], wire: Wire) -> Message:
    """Return an answer as one of the client's typed objects."""
    return kind(
        json_format.MessageToDict(
            wire, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )


def job_of(wire: jobs_pb2.Job) -> Job:
    job = read(Job, wire)
    assert isinstance(job, Job)
    return job


class JobWatch:
    """Tell one job's changes, each once, over however many connections."""

    def __init__(self) -> None:
        self._token = ""

    def news(self, job: Job) -> bool:
        """Return True if the job looks otherwise than the last time."""
        if job.token and job.token == self._token:
            return False
        self._token = job.token
        return True


class Position:
    """Count the output of one of a job's attempts that was handed on."""

    def __init__(self, job: Job, tail: int) -> None:
        self._attempt = job.attempt
        self._tail = tail
        self._bytes = 0
        self._skip = 0

    def resume(self, job: Job) -> None:
        """Prepare for a new connection, which gives all output from the beginning.

        Raises StateConflict if nobody knows how much was read. A job that was run again meanwhile has another
        container, whose output is read from its beginning.
        """
        if job.attempt != self._attempt:
            self._attempt, self._bytes = job.attempt, 0
        elif self._tail and self._bytes:
            raise StateConflict(
                f"the connection was lost while the last lines of job {job.id} were read",
                hint="read the output from its beginning (tail=0), which goes on by itself",
            )
        self._skip = self._bytes

    def news(self, data: bytes) -> bytes:
        """Return the part of the data that was not handed on yet."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._bytes += len(data) - skipped
        return data[skipped:]

    def is_complete(self, job: Job) -> bool:
        """Return True if output that ended in order is all of it; ``job`` is its state after that end.

        A daemon on its way down ends an answer, too. A container's end is known a moment after its output's.
        """
        return job.attempt != self._attempt or job.state not in RUNNING

    def all_was_read(self, job: Job, error: GpushareError) -> bool:
        """Return True if there is no more output because the container was removed after its end."""
        return bool(self._bytes) and isinstance(error, StateConflict) and job.is_over
