"""Serve ``gpushare logs``, ``attach`` and ``docker-host``: reach the container of a job or a lease with docker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushared.api.v1.messages import Job
from gpushared.cli import complete, docker_cli, job_places
from gpushared.cli.errors import say
from gpushared.cli.options import WholeNumber
from gpushared.cli.references import container_named
from gpushared.cli.relay import fork_relay
from gpushared.cli.result import run_as_child
from gpushared.client import Client

if TYPE_CHECKING:
    from gpushared.cli.runs import Run

from gpushared.cli.references import job_id
from gpushared.client.jobs import Jobs

BROKEN = 1
"""``docker logs`` ends with this code for any failure."""


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on with new output as it comes.")
@click.option("-n", "--tail", metavar="LINES", help="Show only so many lines from the end.")
@click.option("-t", "--timestamps", is_flag=True, help="Show the time of each line.")
@click.option(
    "--since", metavar="WHEN", help="Show only output since a time or a duration ago, as docker logs."
)
@click.option(
    "--rank", metavar="N", type=WholeNumber(0), default=0, help="The part of a job on several nodes, from 0."
)
@click.option(
    "--attempt",
    metavar="N",
    type=WholeNumber(1),
    help="Show the output of this attempt.  [default: the newest that has run]",
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

    JOB is a job's id or an unambiguous beginning of it, a lease's id, a container's name, or the beginning
    of a container's id. The output of a job that is over, and of each earlier attempt, is there as long as
    its container is kept: `gpushare why` lists the attempts.

    \b
    Examples:
      gpushare logs l-7f3k
      gpushare logs k3m9x0p2qa
      gpushare logs --attempt 1 k3m9x0p2qa
      gpushare logs -f --tail 20 trainer
    """
    words = ["--follow"] * follow + ["--timestamps"] * timestamps
    words += [f"--tail={tail}"] if tail else []
    words += [f"--since={since}"] if since else []
    place = container_named(Client(), job, rank, lambda one: attempt or _newest(one))
    if not follow:
        job_places.become(place, "logs", *words)
    return _follow(place, words, job)


def _follow(place: job_places.DockerEndpoint, words: list[str], job: str) -> int:
    """Return docker's exit code; return 125, and say how to go on, if docker lost the output before its end."""
    program = docker_cli.find_docker()
    command = [program, "logs", *words, place.container]
    code = run_as_child(command, docker_cli.environment_for(place.host))
    if code == BROKEN:
        say(f"docker ended before the output of {job} did; to go on: gpushare logs -f {job}")
        return docker_cli.FAILED
    return code


def _newest(job: Job) -> int:
    """Return the newest attempt that has run, and tell if another one is to come or under way."""
    newest = job_places.newest_output(job)
    if job.started_at is None and job.tries:
        say(f"{job.id} is {job.state}; this is the output of attempt {newest}")
    return newest


@click.command("attach")
@click.option(
    "--detach-keys", metavar="KEYS", help="The keys that detach and leave it running, as docker attach."
)
@click.option(
    "--rank", metavar="N", type=WholeNumber(0), default=0, help="The part of a job on several nodes, from 0."
)
@click.argument("job", shell_complete=complete.outputs)
def attach(job: str, detach_keys: str | None, rank: int) -> int:
    """Attach this terminal to the container of a job that runs, by becoming `docker attach`.

    JOB is a job's id or an unambiguous beginning of it, a lease's id, or a container's name. Ctrl-P Ctrl-Q
    leaves the container running where the job has a terminal (-it).

    \b
    Examples:
      gpushare attach k3m9x0p2qa
    """
    words = [f"--detach-keys={detach_keys}"] if detach_keys else []
    client = Client()
    place = container_named(client, job, rank)

    def run() -> Run:
        from gpushared.cli.runs import NamedRun

        return NamedRun(client, job, rank)

    path = fork_relay(run, place.host.removeprefix("unix://"), terminal=job_places.has_terminal(place))
    job_places.become(place._replace(host=f"unix://{path}"), "attach", *words)


@click.command("docker-host")
@click.argument("job", shell_complete=complete.jobs)
@click.option(
    "--rank", metavar="N", type=WholeNumber(0), default=0, help="The part of a job on several nodes, from 0."
)
def docker_host(job: str, rank: int) -> None:
    """Print a DOCKER_HOST that leads to the node that runs JOB, as you.

    Docker commands pass that node's gate: they reach your own containers there, and no others.

    \b
    Examples:
      DOCKER_HOST=$(gpushare docker-host JOB) docker exec -it CONTAINER bash
    """
    client = Client()
    found = job_id(client, job)
    print(f"unix://{client.path}" if not found else Jobs(client).door(found, rank).host)
