"""``gpushare attach``: becomes ``docker attach`` to a job's or a lease's container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushared.cli import complete, job_places
from gpushared.cli.references import container_named
from gpushared.cli.relay import beside
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client

if TYPE_CHECKING:
    from gpushared.cli.runs import Run


@click.command("attach", short_help="Attach to the container of a job or a lease.")
@click.option("--detach-keys", metavar="KEYS", help="The keys that leave it running, as docker attach.")
@click.option("--rank", metavar="N", type=WholeNumber(0), default=0, help="Which one of several nodes.")
@click.argument("job", shell_complete=complete.outputs)
def attach(job: str, detach_keys: str | None, rank: int) -> int:
    """Attach this terminal to the container of a job that runs, by becoming `docker attach`.

    JOB is a job's id or an unmistakable beginning of it, a lease's id, or a container's name. Ctrl-P Ctrl-Q
    leaves the container running where the job has a terminal (-it).

    \b
    Examples:
      gpushare attach k3m9x0p2qa
    """  # noqa: D301 - click's mark for lines it must not join
    words = [f"--detach-keys={detach_keys}"] if detach_keys else []
    client = Client()
    place = container_named(client, job, rank)

    def run() -> Run:
        from gpushared.cli.runs import NamedRun

        return NamedRun(client, job, rank)

    path = beside(run, place.host.removeprefix("unix://"), terminal=job_places.has_terminal(place))
    job_places.become(place._replace(host=f"unix://{path}"), "attach", *words)
