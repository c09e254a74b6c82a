"""``gpushare logs``: becomes ``docker logs`` of a lease's container."""

from __future__ import annotations

import click

from gpushared.cli import docker
from gpushared.client import Client
from gpushared.domain.errors import NotFound, StateConflict


@click.command("logs", short_help="Show the output of a lease's container.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is still to come.")
@click.option("-n", "--tail", metavar="LINES", help="Only so many lines from the end.")
@click.option("-t", "--timestamps", is_flag=True, help="With the time of each line.")
@click.option("--since", metavar="WHEN", help="Only since a time or a duration ago, as docker logs.")
@click.argument("lease")
def logs(lease: str, follow: bool, tail: str | None, timestamps: bool, since: str | None) -> int:
    """Show the output of a lease's container, by becoming `docker logs`.

    LEASE is a lease id, a container's name, or the beginning of a container's id.

    \b
    Examples:
      gpushare logs l-7f3k
      gpushare logs -f --tail 20 trainer
    """  # noqa: D301 - click's mark for lines it must not join
    program, client = docker.find_docker(), Client()
    found = client.get(lease)
    if not found.container_id:
        raise StateConflict(
            f"lease {found.id} is {found.state} and shows you no container",
            hint=f"its story: gpushare why {found.id}",
        )
    words = ["docker", "logs"]
    words += ["--follow"] * follow + ["--timestamps"] * timestamps
    words += [f"--tail={tail}"] if tail else []
    words += [f"--since={since}"] if since else []
    try:
        docker.become(program, [*words, found.container_id], docker.environment(client))
    except OSError as error:
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=program) from error
