"""What both clients ask alike, and how long they wait for it."""

from __future__ import annotations

from gpushared.api.v1 import jobs_pb2
from gpushared.client.job_messages import Job
from gpushared.domain.errors import TimedOut

CALL_SECONDS = 30.0
"""How long a call may take that waits for nothing."""
SUBMIT_SECONDS = 120.0
"""An array of thousands is written job by job."""
WAIT_SECONDS = 60.0
"""The longest that a daemon keeps a call waiting for a change."""
PATIENCE_SECONDS = 300.0
"""A machine that is booted anew is back by then."""
PAGE = 1000


def cancel_request(job_id: str, grace_seconds: int | None) -> jobs_pb2.CancelJobRequest:
    return jobs_pb2.CancelJobRequest(job_id=job_id, grace_seconds=grace_seconds)


def next_page(asked: jobs_pb2.ListJobsRequest, token: str) -> jobs_pb2.ListJobsRequest:
    following = jobs_pb2.ListJobsRequest()
    following.CopyFrom(asked)
    following.page_token = token
    return following


def not_over(job: Job, seconds: float | None) -> TimedOut:
    """Nothing is wrong with the job, as far as anybody knows."""
    return TimedOut(
        f"job {job.id} is {job.state}, not over after {seconds:.0f} s",
        hint="it goes on; wait again, or cancel it",
    )
