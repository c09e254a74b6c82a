"""``gpushare cancel``: ends jobs, whatever their state."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.cli.faults import UsageError, say
from gpushared.cli.references import jobs_of_array
from gpushared.cli.stopping import Stop
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client
from gpushared.client.job_messages import Job
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import NotFound


@click.command("cancel", short_help="End jobs, whatever their state.")
@click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=WholeNumber(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)
@click.option("--all", "every", is_flag=True, help="All of your own that are not over.")
@click.option(
    "--name", metavar="NAME", help="Your own that were submitted with this --name, of an array all."
)
@click.argument("job", shell_complete=complete.jobs, nargs=-1)
def cancel(*, job: tuple[str, ...], grace_seconds: int | None, every: bool, name: str | None) -> int:
    """End jobs: one that waits leaves the queue, the container of one that runs is stopped.

    JOB is a job's id or an unmistakable beginning of it, an array's id or name for all of the array, the name
    of a job's container, or a lease's id. Prints each job that was ended. A job on a node that does not
    answer is ended when the node is heard of again.

    \b
    Examples:
      gpushare cancel k3m9x0p2qa
      gpushare cancel --grace 60 trainer
      gpushare cancel k3m9x0p2qa_7 k3m9x0p2qa_8
      gpushare cancel --name sweep
      gpushare cancel --all
    """  # noqa: D301 - click's mark for lines it must not join
    if [bool(job), every, name is not None].count(True) != 1:
        raise UsageError("say which jobs to end", hint="name them, or say --name NAME or --all alone")
    client = Client()
    jobs, stop = Jobs(client), Stop(client, grace_seconds, until_over=False)
    if not job:
        return each_lease(_own(jobs, name), stop.cancel)
    return each_lease((one for reference in job for one in _meant(client, reference)), stop.job)


def _own(jobs: Jobs, name: str | None) -> list[str]:
    """Return the caller's own jobs that are not over, or those of a name, last first. Raises NotFound."""
    found: list[str] = []
    notices: dict[str, None] = {}
    for page in jobs.pages():
        found += [job.id for job in page.jobs if not job.is_over and _is_called(job, name)]
        notices |= dict.fromkeys(page.notices)
    for notice in notices:
        say(notice)
    if name is not None and not found:
        raise NotFound(
            f"you have no job named {name[:80]!r} that is not over", hint="`gpushare jobs` lists them"
        )
    return found[::-1]


def _is_called(job: Job, name: str | None) -> bool:
    return (
        name is None or job.name == name or (bool(job.array_id) and job.name == f"{name}-{job.array_index}")
    )


def _meant(client: Client, word: str) -> list[str]:
    """Return the jobs of an array that are not over, last first; any other word is one job."""
    found = jobs_of_array(client, word)
    return [one.id for one in reversed(found) if not one.is_over] if found else [word]
