"""Serve ``gpushare logs``, ``attach`` and ``docker-host``: reach the container of a job or a lease with docker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushared.api.v1.messages import Job
from gpushared.cli import complete, docker_cli
from gpushared.cli.errors import say
from gpushared.cli.job_endpoints import DockerEndpoint, become, has_terminal, newest_output
from gpushared.cli.options import WholeNumber
from gpushared.cli.references import container_named, job_id
from gpushared.cli.relay import fork_relay
from gpushared.cli.result import run_as_child
from gpushared.client import Client
from gpushared.client.jobs import Jobs

if TYPE_CHECKING:
    from gpushared.cli.runs import Run

BROKEN = 1
"""``docker logs`` ends with this code for any failure."""
_rank_option = click.option(
    "--rank", metavar="N", type=WholeNumber(0), default=0, help="The part of a job on several nodes, from 0."
)


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on with new output as it comes.")
@click.option("-n", "--tail", metavar="LINES", help="Show only so many lines from the end.")
@click.option("-t", "--timestamps", is_flag=True, help="Show the time of each line.")
@click.option(
    "--since", metavar="WHEN", help="Show only output since a time or a duration ago, as docker logs."
)
@_rank_option
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
    options = ["--follow"] * follow + ["--timestamps"] * timestamps
    options += [f"--tail={tail}"] if tail else []
    options += [f"--since={since}"] if since else []
    endpoint = container_named(Client(), job, rank, lambda named_job: attempt or _newest(named_job))
    if not follow:
        become(endpoint, "logs", *options)
    return _follow(endpoint, options, job)


def _follow(endpoint: DockerEndpoint, options: list[str], job: str) -> int:
    """Return docker's exit code; return 125, and say how to go on, if docker lost the output before its end."""
    program = docker_cli.find_docker()
    command = [program, "logs", *options, endpoint.container]
    code = run_as_child(command, docker_cli.environment_for(endpoint.host))
    if code == BROKEN:
        say(f"docker ended before the output of {job} did; to go on: gpushare logs -f {job}")
        return docker_cli.FAILED
    return code


def _newest(job: Job) -> int:
    """Return the newest attempt that has run, and tell if another one is to come or under way."""
    newest = newest_output(job)
    if job.started_at is None and job.tries:
        say(f"{job.id} is {job.state}; this is the output of attempt {newest}")
    return newest


@click.command("attach")
@click.option(
    "--detach-keys", metavar="KEYS", help="The keys that detach and leave it running, as docker attach."
)
@_rank_option
@click.argument("job", shell_complete=complete.outputs)
def attach(job: str, detach_keys: str | None, rank: int) -> int:
    """Attach this terminal to the container of a job that runs, by becoming `docker attach`.

    JOB is a job's id or an unambiguous beginning of it, a lease's id, or a container's name. Ctrl-P Ctrl-Q
    leaves the container running where the job has a terminal (-it).

    \b
    Examples:
      gpushare attach k3m9x0p2qa
    """
    options = [f"--detach-keys={detach_keys}"] if detach_keys else []
    client = Client()
    endpoint = container_named(client, job, rank)

    def run() -> Run:
        from gpushared.cli.runs import NamedRun

        return NamedRun(client, job, rank)

    path = fork_relay(run, endpoint.host.removeprefix("unix://"), terminal=has_terminal(endpoint))
    become(endpoint._replace(host=f"unix://{path}"), "attach", *options)


@click.command("docker-host")
@click.argument("job", shell_complete=complete.jobs)
@_rank_option
def docker_host(job: str, rank: int) -> None:
    """Print a DOCKER_HOST that leads to the node that runs JOB, as you.

    Docker commands pass that node's gate: they reach your own containers there, and no others.

    \b
    Examples:
      DOCKER_HOST=$(gpushare docker-host JOB) docker exec -it CONTAINER bash
    """
    client = Client()
    resolved_id = job_id(client, job)
    print(f"unix://{client.path}" if not resolved_id else Jobs(client).door(resolved_id, rank).host)
