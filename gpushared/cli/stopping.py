"""End a lease or a job, and wait until its container has stopped and its GPU memory is free again."""

from __future__ import annotations

import time
from typing import NamedTuple

from gpushared.cli import docker
from gpushared.cli.faults import say
from gpushared.cli.references import first_found, lease_if_here
from gpushared.client import Client, Lease
from gpushared.client.api import ANSWER_SECONDS, STOP_GRACE_SECONDS
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import Unavailable

POLL_SECONDS = 30.0
QUIET_SECONDS = 2.0


class Begun(NamedTuple):
    """Hold the end of a lease or a job that was asked for: its id, and the lease on this node."""

    id: str
    lease: Lease | None = None


class Stop:
    """Stop leases and jobs. ``until_over``: wait for their GPU memory too."""

    def __init__(self, client: Client, grace_seconds: int | None, *, until_over: bool) -> None:
        self._client = client
        self._jobs = Jobs(client)
        self._grace_seconds = grace_seconds
        self._until_over = until_over

    def begin(self, word: str) -> Begun:
        """Ask for the end of a lease, or of a job with the lease that it has on this node."""

        def of_lease(name: str) -> Begun:
            if name != word:  # a container's name: of a job it is the job that is to end
                lease = self._client.get(name)
                if lease.job_id and not lease.job_pool:
                    return Begun(self.cancel(lease.job_id), lease)
            lease = self._client.stop(name, grace_seconds=self._grace_seconds)
            return Begun(lease.id, lease)

        def of_job(name: str) -> Begun:
            here = lease_if_here(self._client, self._jobs.get(name))
            return Begun(self.cancel(name), here)

        return first_found(self._client, word, of_lease, of_job)

    def job(self, word: str) -> str:
        """Ask for the end of a job, or of a lease that is of none; returns the id."""

        def of_lease(name: str) -> str:
            job = self._client.get(name).job_id
            return self.cancel(job) if job else self.begin(name).id

        return first_found(self._client, word, of_lease, self.cancel)

    def cancel(self, job: str) -> str:
        """Ask for the end of a job by its id; returns the id."""
        return self._jobs.cancel(job, grace_seconds=self._grace_seconds).id

    def finish(self, begun: Begun) -> str:
        """Wait for the end here, and return the id. Raises Unavailable, TimedOut."""
        lease = begun.lease
        if lease is not None and lease.state != "ended" and lease.container_id:
            self._wait_for_container(lease)
        if lease is not None and self._until_over:
            self._wait_for_end(lease)
        return begun.id

    def _wait_for_container(self, lease: Lease) -> None:
        grace = STOP_GRACE_SECONDS if self._grace_seconds is None else self._grace_seconds
        answer = self._client.docker(
            "POST",
            f"/containers/{lease.container_id}/wait",
            answer_seconds=grace + ANSWER_SECONDS,
            may_repeat=True,
        )
        if answer.status not in {docker.OK, docker.MISSING}:
            raise Unavailable(
                f"nobody knows whether the container of {lease.id} has stopped: {docker.message_of(answer)}",
                hint="`gpushare ps` shows how far it is",
            )

    def _wait_for_end(self, lease: Lease) -> None:
        told, since = False, time.monotonic()
        while lease.state != "ended":
            if not told and time.monotonic() - since >= QUIET_SECONDS:
                say(f"{lease.id} is {lease.state}: its GPU memory is not back yet")
                told = True
            seconds = POLL_SECONDS if told else QUIET_SECONDS
            lease = self._client.wait(lease.id, lease.token, timeout_seconds=seconds)
