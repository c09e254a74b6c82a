"""``gpushare logs``: becomes ``docker logs`` of a job's or a lease's container."""

from __future__ import annotations

import click

from gpushared.cli import complete, docker, job_places
from gpushared.cli.child import run_as_child
from gpushared.cli.faults import say
from gpushared.cli.references import container_named
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client
from gpushared.client.job_messages import Job

BROKEN = 1
"""``docker logs`` ends with this code for any failure."""


@click.command("logs", short_help="Show the output of the container of a job or a lease.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is still to come.")
@click.option("-n", "--tail", metavar="LINES", help="Only so many lines from the end.")
@click.option("-t", "--timestamps", is_flag=True, help="With the time of each line.")
@click.option("--since", metavar="WHEN", help="Only since a time or a duration ago, as docker logs.")
@click.option("--rank", metavar="N", type=WholeNumber(0), default=0, help="Which one of several nodes.")
@click.option(
    "--attempt",
    metavar="N",
    type=WholeNumber(1),
    help="Of which attempt at the job.  [default: the newest that has run]",
)
@click.argument("job", shell_complete=complete.outputs)
def logs(
    job: str,
    follow: bool,
    tail: str | None,
    timestamps: bool,
    since: str | None,
    rank: int,
    attempt: int | None,
) -> int:
    """Show the output of the container of a job or a lease, by becoming `docker logs`.

    JOB is a job's id or an unmistakable beginning of it, a lease's id, a container's name, or the beginning
    of a container's id. A job that is over has its output as long as its container is kept, and so has each
    earlier attempt of one that was run again: `gpushare why` tells of them.

    \b
    Examples:
      gpushare logs l-7f3k
      gpushare logs k3m9x0p2qa
      gpushare logs --attempt 1 k3m9x0p2qa
      gpushare logs -f --tail 20 trainer
    """  # noqa: D301 - click's mark for lines it must not join
    words = ["--follow"] * follow + ["--timestamps"] * timestamps
    words += [f"--tail={tail}"] if tail else []
    words += [f"--since={since}"] if since else []
    place = container_named(Client(), job, rank, lambda one: attempt or _newest(one))
    if not follow:
        job_places.become(place, "logs", *words)
    return _followed(place, words, job)


def _followed(place: job_places.DockerEndpoint, words: list[str], job: str) -> int:
    """Docker's exit code; 125 and how to go on where docker lost the output before the output ended."""
    program = docker.find_docker()
    command = [program, "logs", *words, place.container]
    code = run_as_child(command, docker.environment_for(place.host))
    if code == BROKEN:
        say(f"docker ended before the output of {job} did; to go on: gpushare logs -f {job}")
        return docker.FAILED
    return code


def _newest(job: Job) -> int:
    """The newest attempt that has run, with a word where another one is to come or under way."""
    newest = job_places.newest_output(job)
    if job.started_at is None and job.tries:
        say(f"{job.id} is {job.state}; this is the output of attempt {newest}")
    return newest
