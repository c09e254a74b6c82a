"""Serve ``gpushare jobs``: show what was submitted, where it runs, and why it waits."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpushared.api.v1.messages import Job
from gpushared.cli import text
from gpushared.cli.listing import Listing, Options, OwnOption, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client
from gpushared.client.jobs import Jobs


def job_row(job: Job, now: float) -> Row:
    """Return a job's cells."""
    return {
        "job": job.id,
        "name": job.name,
        "owner": job.owner,
        "state": state(job),
        "node": ",".join(part.node for part in job.parts),
        "asks": job.asks,
        "age": text.span(now - job.submitted_at),
        "reason": job.reason,
        "pos": str(job.position or ""),
        "class": job.job_class,
        "project": job.project,
        "priority": str(job.priority),
        "attempt": str(job.attempt or ""),
        "lease": ",".join(part.lease_id for part in job.parts),
        "image": job.image,
        "array": job.array_id,
        "where": "pool" if job.pool else "here",
        "ran": text.span(_ran(job, now)),
    }


def state(job: Job) -> str:
    """Word the state, and for a job that is over the exit code: ``failed(3)``."""
    return job.state if job.exit_code in {None, 0} else f"{job.state}({job.exit_code})"


def _ran(job: Job, now: float) -> float | None:
    """Return the run time in seconds of the present or the last attempt; None if none ever ran."""
    if job.started_at is not None:
        return (job.ended_at or now) - job.started_at
    last = job.tries[-1] if job.tries else None
    return last.ended_at - last.started_at if last and last.started_at and last.ended_at else None


def _narrow(row: Row, output: str) -> Row:
    """Leave out a name that only repeats the id."""
    return {**row, "name": ""} if output == "table" and row["name"] == f"job-{row['job']}" else row


def fetch(client: Client, options: Options) -> Screen:
    array, ended = options.value("array"), bool(options.value("ended"))
    found_jobs: list[Job] = []
    notices: Sequence[str] = ()
    simulated = False
    for page in Jobs(client).pages(
        ended=ended or bool(array), everybody=bool(options.value("all")), array_id=array
    ):
        found_jobs += page.jobs
        notices = page.notices
        simulated = simulated or page.simulated
        if ended and not array and page.next_page_token:
            notices = [*notices, f"only the last {len(found_jobs)} jobs are shown"]
            break  # what was over long ago is rarely meant
    if array:
        found_jobs.sort(key=lambda job: job.array_index or 0)
    now = time.time()
    return Screen(
        rows=[_narrow(job_row(job, now), options.output) for job in found_jobs],
        items=[job.to_json() for job in found_jobs],
        ids=[job.id for job in found_jobs],
        simulated=simulated,
        notes=notices,
        extra={"notices": list(notices)},
    )


LISTING = Listing(
    name="jobs",
    details="""The list has your own jobs, and with --all everybody's that you may see. NODE is where a job
runs, ran or is being placed; REASON says why it waits, or why it failed.

\b
Examples:
  gpushare jobs
  gpushare jobs --ended
  gpushare jobs --array k3m9x0p2qa -o columns=job,state,node
  gpushare cancel $(gpushare jobs -q)
""",
    schema="gpushare.jobs/1",
    columns=(
        Column("job"),
        Column("name", least=16),
        Column("owner", least=12),
        Column("state", coloured=True),
        Column("node", least=12),
        Column("asks"),
        Column("age", right=True),
        Column("reason", least=20),
        Column("pos", right=True, wide=True),
        Column("ran", right=True, wide=True),
        Column("class", wide=True),
        Column("project", wide=True),
        Column("priority", right=True, wide=True),
        Column("attempt", right=True, wide=True),
        Column("lease", wide=True),
        Column("array", wide=True),
        Column("where", wide=True),
        Column("image", wide=True),
    ),
    drops=("age", "asks", "owner", "node"),
    fetch=fetch,
    own_options=(
        OwnOption(("-a", "--all"), "Show everybody's jobs that you may see."),
        OwnOption(("--ended",), "Also show jobs that are over."),
        OwnOption(("--array",), "Show the jobs of one array, by its id or name, over or not.", "ARRAY"),
    ),
)
