"""Share the messages, waits and judgements of both clients."""

from __future__ import annotations

import uuid
import warnings

from gpushared.api.v1 import jobs_pb2
from gpushared.client.job_messages import Job, JobExplanation, SubmitAnswer
from gpushared.client.pipeline.door import PoolAddress
from gpushared.client.pipeline.request import JobRequest
from gpushared.domain.model.errors import NeverFits, RequestError, TimedOut

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
