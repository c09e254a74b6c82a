"""``gpushare door JOB``: where docker reaches a job's node."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.references import job_id
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client
from gpushared.client.jobs import Jobs


@click.command(short_help="Print a DOCKER_HOST that leads to a job's node.")
@click.argument("job", shell_complete=complete.jobs)
@click.option("--rank", metavar="N", type=WholeNumber(0), default=0, help="Which node of a gang's.")
def door(job: str, rank: int) -> None:
    """Print a DOCKER_HOST that leads to the node that runs JOB, as you.

    Whatever docker does there passes that node's gate: it reaches your own containers there, and no others.

    \b
    Examples:
      DOCKER_HOST=$(gpushare door JOB) docker exec -it CONTAINER bash
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    found = job_id(client, job)
    print(f"unix://{client.path}" if not found else Jobs(client).door(found, rank).host)
