"""``gpushare cancel``: ends jobs, whatever their state."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.cli.references import may_be_array
from gpushared.client import Client
from gpushared.client.jobs import Jobs


@click.command("cancel", short_help="End jobs, whatever their state.")
@click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=click.IntRange(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)
@click.argument("job", shell_complete=complete.jobs, nargs=-1, required=True)
def cancel(job: tuple[str, ...], grace_seconds: int | None) -> int:
    """End jobs: one that waits leaves the queue, the container of one that runs is stopped.

    JOB is a job's id or an unmistakable beginning of it, an array's id for all of the array, or the name of
    a job's container. Prints each job that was ended. A job on a node that does not answer is ended when the
    node is heard of again.

    \b
    Examples:
      gpushare cancel k3m9x0p2qa
      gpushare cancel --grace 60 trainer
      gpushare cancel k3m9x0p2qa_7 k3m9x0p2qa_8
    """  # noqa: D301 - click's mark for lines it must not join
    jobs = Jobs(Client())
    return each_lease(
        (one for name in job for one in _of_array(jobs, name)),
        lambda name: jobs.cancel(name, grace_seconds=grace_seconds).id,
    )


def _of_array(jobs: Jobs, name: str) -> list[str]:
    """The jobs of an array that are not over, from its last; anything else is a job itself."""
    pages = jobs.pages(array_id=name, ended=True) if may_be_array(name) else ()
    found = [one for page in pages for one in page.jobs]
    return [one.id for one in reversed(found) if not one.is_over] if found else [name]
