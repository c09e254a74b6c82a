"""Serve ``gpushare history jobs``: show jobs that are over, each with all its attempts in one row."""

from __future__ import annotations

import time

from gpushared.api.v1.history_messages import PastJob
from gpushared.cli import text
from gpushared.cli.history_options import FILTERS, LIMIT, MAX_LIMIT, bounds, hint_at_more, lasted, read_window
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client


def _cells(job: PastJob, now: float) -> Row:
    return {
        "job": job.id,
        "user": job.owner,
        "outcome": job.outcome or "not over",
        "exit": "" if job.exit_code is None else str(job.exit_code),
        "node": ",".join(job.nodes),
        "waited": lasted(job.waited_ms),
        "ran": lasted(round(1000 * (job.ended_at - job.started_at)))
        if job.started_at and job.ended_at
        else "",
        "attempts": str(job.attempts),
        "end": text.clock(job.ended_at, now) if job.ended_at else "",
        "asks": job.asks if job.node_count == 1 else f"{job.node_count} nodes x {job.asks}",
        "class": job.lease_class,
        "project": job.project,
        "preemptions": str(job.preemptions),
        "why": job.outcome_text,
        "image": job.image,
        "name": job.name,
    }


def fetch(client: Client, options: Options) -> Screen:
    limit = options.limit(LIMIT, MAX_LIMIT)
    window = read_window(options)
    answer = client_for(client, options).past_jobs(window, outcome=options.value("outcome"), limit=limit)
    now = time.time()
    return Screen(
        rows=[_cells(job, now) for job in answer.jobs],
        items=[job.to_json() for job in answer.jobs],
        ids=[job.id for job in answer.jobs],
        simulated=answer.simulated,
        last=hint_at_more(limit) if answer.more else "",
        extra={**bounds(window), "more": answer.more},
    )


LISTING = Listing(
    name="jobs",
    details="""The newest end comes first. WAITED is the time in the coordinator's queue, before any lease; RAN is
from the first attempt's start to the end. `gpushare report JOB` has the use of the attempts.

\b
Examples:
  gpushare history jobs
  gpushare history jobs --pool --project vision --since last-month -o csv
""",
    schema="gpushare.history-jobs/1",
    columns=(
        Column("job"),
        Column("user", least=12),
        Column("outcome", least=8),
        Column("exit", right=True),
        Column("node", least=8),
        Column("waited", right=True),
        Column("ran", right=True),
        Column("attempts", right=True),
        Column("end"),
        Column("asks", wide=True),
        Column("class", wide=True),
        Column("project", wide=True),
        Column("preemptions", right=True, wide=True),
        Column("why", wide=True),
        Column("image", wide=True),
        Column("name", wide=True),
    ),
    drops=("exit", "attempts", "node", "waited", "user"),
    fetch=fetch,
    own_options=(
        *FILTERS,
        OwnOption(("--outcome",), "Show only jobs that succeeded, failed or were cancelled.", "OUTCOME"),
        OwnOption(("--limit",), f"Show at most so many.  [default: {LIMIT}]", "N"),
    ),
    item=PastJob,
)
