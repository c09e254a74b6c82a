"""Serve ``gpushare stop`` and ``gpushare cancel``: end leases and jobs, and wait until their memory is free."""

from __future__ import annotations

import time
from typing import NamedTuple

import click

from gpushared.api.v1.messages import Job
from gpushared.cli import complete, docker_cli
from gpushared.cli.errors import UsageError, say
from gpushared.cli.lease_commands import POLL_SECONDS, QUIET_SECONDS, begin_each_then_finish, each_lease
from gpushared.cli.options import grace_option
from gpushared.cli.references import first_found, jobs_of_array, lease_if_here
from gpushared.cli.waiting import Interrupted, signals_interrupt
from gpushared.client import Client, Lease
from gpushared.client.api import ANSWER_SECONDS, STOP_GRACE_SECONDS
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import NotFound, Unavailable


@click.command("stop")
@grace_option
@click.option("--wait", is_flag=True, help="Return when the leases are over and their GPU memory is free.")
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def stop(lease: tuple[str, ...], grace_seconds: int | None, wait: bool) -> int:
    """End leases, whatever their state: a queued one leaves the queue, a running container is stopped.

    LEASE is a lease's or a job's id, the name of a container, also of one that waits, or the beginning of a
    container's id. The command returns when the containers have stopped, as docker stop does, so that docker
    rm can remove them. Others can use the GPU memory of a lease once the GPU shows it free, which --wait
    waits for. The command prints each lease that was ended. Ctrl-C ends only the command.

    \b
    Examples:
      gpushare stop l-7f3k
      gpushare stop --grace 60 trainer
      gpushare stop trainer && docker rm trainer
      gpushare stop --wait trainer && gpushare run --gpu 1 --immediate IMAGE
    """
    stops = Stop(Client(), grace_seconds, until_over=wait)
    try:
        with signals_interrupt():
            return begin_each_then_finish(lease, stops.begin, stops.finish)
    except Interrupted as end:
        say("the leases end without this command", hint="`gpushare ps` shows how far they are")
        return end.exit_code


class StopTarget(NamedTuple):
    """Name a lease or a job that is to end, by its id, with its lease on this node."""

    id: str
    lease: Lease | None = None


class Stop:
    """Stop leases and jobs. ``until_over``: wait for their GPU memory too."""

    def __init__(self, client: Client, grace_seconds: int | None, *, until_over: bool) -> None:
        self._client = client
        self._jobs = Jobs(client)
        self._grace_seconds = grace_seconds
        self._until_over = until_over

    def begin(self, reference: str) -> StopTarget:
        """Ask for the end of a lease, or of a job with the lease that it has on this node."""

        def of_lease(name: str) -> StopTarget:
            if name != reference:  # a container's name: of a job it is the job that is to end
                lease = self._client.get(name)
                if lease.job_id and not lease.job_pool:
                    return StopTarget(self.cancel(lease.job_id), lease)
            lease = self._client.stop(name, grace_seconds=self._grace_seconds)
            return StopTarget(lease.id, lease)

        def of_job(name: str) -> StopTarget:
            here = lease_if_here(self._client, self._jobs.get(name))
            return StopTarget(self.cancel(name), here)

        return first_found(self._client, reference, of_lease, of_job)

    def job(self, reference: str) -> str:
        """Ask for the end of a job, or of a lease that is of none; returns the id."""

        def of_lease(name: str) -> str:
            job = self._client.get(name).job_id
            return self.cancel(job) if job else self.begin(name).id

        return first_found(self._client, reference, of_lease, self.cancel)

    def cancel(self, job: str) -> str:
        """Ask for the end of a job by its id; returns the id."""
        ending = self._jobs.cancel(job, grace_seconds=self._grace_seconds)
        if ending.hint:  # somebody who must hear of it is away
            say(f"{ending.id}: {ending.reason}", hint=ending.hint)
        return ending.id

    def finish(self, target: StopTarget) -> str:
        """Wait for the end here, and return the id. Raises Unavailable, TimedOut."""
        lease = target.lease
        if lease is not None and lease.state != "ended" and lease.container_id:
            self._wait_for_container(lease)
        if lease is not None and self._until_over:
            self._wait_for_end(lease)
        return target.id

    def _wait_for_container(self, lease: Lease) -> None:
        grace = STOP_GRACE_SECONDS if self._grace_seconds is None else self._grace_seconds
        answer = self._client.docker(
            "POST",
            f"/containers/{lease.container_id}/wait",
            answer_seconds=grace + ANSWER_SECONDS,
            may_repeat=True,
        )
        if answer.status not in {docker_cli.OK, docker_cli.MISSING}:
            raise Unavailable(
                f"nobody knows whether the container of {lease.id} has stopped: {docker_cli.message_of(answer)}",
                hint="`gpushare ps` shows how far it is",
            )

    def _wait_for_end(self, lease: Lease) -> None:
        has_said, since = False, time.monotonic()
        while lease.state != "ended":
            if not has_said and time.monotonic() - since >= QUIET_SECONDS:
                say(f"{lease.id} is {lease.state}: its GPU memory is not back yet")
                has_said = True
            seconds = POLL_SECONDS if has_said else QUIET_SECONDS
            lease = self._client.wait(lease.id, lease.token, timeout_seconds=seconds)


@click.command("cancel")
@grace_option
@click.option("--all", "every", is_flag=True, help="End all your own jobs that are not over.")
@click.option("--name", metavar="NAME", help="End your own jobs of this --name, of an array all.")
@click.argument("job", shell_complete=complete.jobs, nargs=-1)
def cancel(*, job: tuple[str, ...], grace_seconds: int | None, every: bool, name: str | None) -> int:
    """End jobs: one that waits leaves the queue, the container of one that runs is stopped.

    JOB is a job's id or an unambiguous beginning of it, an array's id or name for all of the array, the name
    of a job's container, or a lease's id. The command prints each job that was ended. A job on a node that
    does not answer is ended when the node answers again.

    \b
    Examples:
      gpushare cancel k3m9x0p2qa
      gpushare cancel --grace 60 trainer
      gpushare cancel k3m9x0p2qa_7 k3m9x0p2qa_8
      gpushare cancel --name sweep
      gpushare cancel --all
    """
    if [bool(job), every, name is not None].count(True) != 1:
        raise UsageError("say which jobs to end", hint="name them, or say --name NAME or --all alone")
    client = Client()
    jobs, stop = Jobs(client), Stop(client, grace_seconds, until_over=False)
    if not job:
        return each_lease(_own_jobs(jobs, name), stop.cancel)
    return each_lease((target for reference in job for target in _job_ids(client, reference)), stop.job)


def _own_jobs(jobs: Jobs, name: str | None) -> list[str]:
    """Return the caller's own jobs that are not over, or those of a name, last first. Raises NotFound."""
    job_ids: list[str] = []
    notices: dict[str, None] = {}
    for page in jobs.pages():
        job_ids += [job.id for job in page.jobs if not job.is_over and _is_called(job, name)]
        notices |= dict.fromkeys(page.notices)
    for notice in notices:
        say(notice)
    if name is not None and not job_ids:
        raise NotFound(
            f"you have no job named {name[:80]!r} that is not over", hint="`gpushare jobs` lists them"
        )
    return job_ids[::-1]


def _is_called(job: Job, name: str | None) -> bool:
    return (
        name is None or job.name == name or (bool(job.array_id) and job.name == f"{name}-{job.array_index}")
    )


def _job_ids(client: Client, reference: str) -> list[str]:
    """Return the jobs of an array that are not over, last first; any other reference is one job."""
    jobs = jobs_of_array(client, reference)
    return [job.id for job in reversed(jobs) if not job.is_over] if jobs else [reference]
