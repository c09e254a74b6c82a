"""Make the calls about jobs, one method each; the answers are typed objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpushared.api.v1.messages import (
    DoorAnswer,
    Job,
    JobExplanation,
    JobList,
    NodeList,
    ReserveAnswer,
    SubmitAnswer,
)
from gpushared.client.api import ANSWER_SECONDS, Client

SUBMIT_SECONDS = 120.0
"""An array of thousands is written job by job."""
PAGE = 1000
"""A page may have so many."""


class Jobs:
    """Call about the jobs of a node, and of the pool that it is in."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        *,
        request_id: str,
        lease: Mapping[str, object],
        create_body: bytes = b"",
        after: Sequence[tuple[str, bool]] = (),
        requeue: bool | None = None,
        **fields: object,
    ) -> SubmitAnswer:
        """Submit jobs, which are durably kept on return; one ``request_id`` gives the same jobs twice.

        ``lease`` has the fields of a LeaseRequest, ``fields`` the others of a SubmitRequest by their names on
        the wire. ``after``: ids, each with a flag: True if that job must have succeeded.
        """
        from base64 import b64encode

        message: dict[str, object] = {
            "request_id": request_id,
            "lease": dict(lease),
            "create_body": b64encode(create_body).decode(),
            "after": [{"job_id": job, "ok": ok} for job, ok in after],
            **fields,
        }
        if requeue is not None:
            message["requeue"] = requeue
        return SubmitAnswer(self._client.call("Jobs/Submit", message, SUBMIT_SECONDS))

    def reserve(
        self, *, request_id: str, lease: Mapping[str, object], timeout_seconds: float, **fields: object
    ) -> ReserveAnswer:
        """Submit one job and wait for its lease, at most for the time (60 s are the most).

        The arguments are those of ``submit``; asking twice with one ``request_id`` waits for the same job.
        Raises Unimplemented if the daemon is older than this call.
        """
        job = {"request_id": request_id, "lease": dict(lease), **fields}
        message = {"job": job, "timeout_seconds": timeout_seconds}
        return ReserveAnswer(self._client.call("Jobs/Reserve", message, timeout_seconds + ANSWER_SECONDS))

    def get(self, job_id: str) -> Job:
        """Return a job by an id, an unambiguous beginning of one, or the name of its container."""
        return Job(self._client.call("Jobs/Get", {"job_id": job_id}))

    def page(
        self,
        *,
        ended: bool = False,
        everybody: bool = False,
        array_id: str = "",
        limit: int = 0,
        page_token: str = "",
    ) -> JobList:
        """Return one page; live jobs in their order, then those that are over, newest first."""
        fields = {
            "ended": ended,
            "all": everybody,
            "array_id": array_id,
            "limit": limit,
            "page_token": page_token,
        }
        return JobList(self._client.call("Jobs/List", fields))

    def pages(self, *, ended: bool = False, everybody: bool = False, array_id: str = "") -> Iterator[JobList]:
        """Yield all pages, one after the other."""
        token = ""
        while True:
            page = self.page(
                ended=ended, everybody=everybody, array_id=array_id, limit=PAGE, page_token=token
            )
            yield page
            token = page.next_page_token
            if not token:
                return

    def wait(self, job_id: str, token: str, *, timeout_seconds: float = 30.0) -> Job:
        """Return the job when it no longer looks as in ``token``, or after the time (at most 60 s)."""
        fields = {"job_id": job_id, "token": token, "timeout_seconds": timeout_seconds}
        return Job(self._client.call("Jobs/Wait", fields, timeout_seconds + ANSWER_SECONDS))

    def cancel(self, job_id: str, *, grace_seconds: int | None = None) -> Job:
        """End a job in any state; its container gets ``grace_seconds`` (10) to end by itself."""
        fields: dict[str, object] = {"job_id": job_id}
        if grace_seconds is not None:
            fields["grace_seconds"] = grace_seconds
        return Job(self._client.call("Jobs/Cancel", fields))

    def hold(self, job_id: str, *, held: bool = True) -> Job:
        """Keep a waiting job from starting, or release it."""
        return Job(self._client.call("Jobs/Hold", {"job_id": job_id, "held": held}))

    def set_priority(self, job_id: str, priority: int) -> Job:
        """Move a waiting job among those of its project."""
        return Job(self._client.call("Jobs/SetPriority", {"job_id": job_id, "priority": priority}))

    def explain(self, job_id: str) -> JobExplanation:
        """Explain why a job waits or how it ended, with its story."""
        return JobExplanation(self._client.call("Jobs/Explain", {"job_id": job_id}))

    def door(self, job_id: str, rank: int = 0, attempt: int = 0) -> DoorAnswer:
        """Return a Docker endpoint of this machine that leads to the gate of the job's node.

        ``attempt``: the endpoint leads to the node where that earlier attempt ran.
        """
        fields: dict[str, object] = {"job_id": job_id, "rank": rank}
        if attempt:
            fields["attempt"] = attempt
        return DoorAnswer(self._client.call("Jobs/Door", fields))

    def nodes(self) -> NodeList:
        """Return the nodes of the pool, with their free capacity."""
        return NodeList(self._client.call("Jobs/Nodes", {}))
