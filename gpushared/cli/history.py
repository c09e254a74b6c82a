"""Serve ``gpushare history``: show leases that are over, and export the history's rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from gpushared.api.v1.history_messages import PastLease
from gpushared.cli import history_jobs, text
from gpushared.cli.errors import UsageError
from gpushared.cli.history_options import (
    FILTERS,
    LIMIT,
    MAX_LIMIT,
    account_cells,
    bounds,
    hint_at_more,
    lasted,
    percent,
    read_window,
)
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, client_for, own_values_of
from gpushared.cli.listing_command import click_option, listing_command
from gpushared.cli.table import Column, Row
from gpushared.cli.tree import COMMANDS
from gpushared.client import Client

KINDS = ("leases", "spans", "hours", "minutes")


def _cells(lease: PastLease, now: float) -> Row:
    return {
        "lease": lease.id,
        "user": lease.owner,
        "outcome": lease.outcome or "not over",
        "exit": "" if lease.exit_code is None else str(lease.exit_code),
        "gpu": ",".join(lease.gpu_labels),
        "waited": lasted(lease.waited_ms),
        "ran": lasted(lease.ran_ms) if lease.started_at else "",
        **account_cells(lease.account),
        "peak-memory": "" if lease.peak_bytes is None else text.memory(lease.peak_bytes),
        "mean-use": percent(lease.account.use_of_held_ratio),
        "end": text.day_and_clock(lease.ended_at, now) if lease.ended_at else "",
        "held-memory": "" if lease.held_bytes is None else text.memory(lease.held_bytes),
        "max-use": percent(lease.use_max_ratio),
        "asks": lease.asks,
        "class": lease.lease_class,
        "project": lease.project,
        "node": lease.node,
        "model": ",".join(lease.models),
        "preemptions": str(lease.preemptions),
        "job": lease.job,
        "attempt": str(lease.attempt or ""),
        "why": lease.outcome_text,
        "image": lease.image,
        "name": lease.container_name,
    }


def fetch(client: Client, options: Options) -> Screen:
    limit = options.limit(LIMIT, MAX_LIMIT)
    job = options.value("job")
    window = read_window(options)
    if job and not options.value("since"):
        window["since"] = 0.0  # a job is meant whenever it ran
    answer = client_for(client, options).ended(window, outcome=options.value("outcome"), job=job, limit=limit)
    now = time.time()
    return Screen(
        rows=[_cells(lease, now) for lease in answer.leases],
        items=[lease.to_json() for lease in answer.leases],
        ids=[lease.id for lease in answer.leases],
        simulated=answer.simulated,
        last=hint_at_more(limit) if answer.more else "",
        extra={**bounds(window), "more": answer.more},
    )


LISTING = Listing(
    name="history",
    details="""The newest end comes first. MEAN-USE is the part of the held time in which kernels ran,
PEAK-MEMORY the most that was seen in use. A job's lease is found by --job, each attempt a row. Images and
containers of other users are not shown.

\b
Examples:
  gpushare history
  gpushare history --user alice --since last-month -o csv
  gpushare history --job k3m9x0p2qa -o wide
  gpushare history --outcome over_limit --limit 500
  gpushare history export --jsonl --kind minutes --since yesterday
""",
    schema="gpushare.history/1",
    columns=(
        Column("lease"),
        Column("user", least=12),
        Column("outcome", least=8),
        Column("exit", right=True),
        Column("gpu", least=8),
        Column("waited", right=True),
        Column("ran", right=True),
        Column("gpu-hours", right=True),
        Column("peak-memory", right=True),
        Column("mean-use", right=True),
        Column("end"),
        Column("held-memory", right=True, wide=True),
        Column("memory-use", right=True, wide=True),
        Column("max-use", right=True, wide=True),
        Column("idle", right=True, wide=True),
        Column("too-big", right=True, wide=True),
        Column("asks", wide=True),
        Column("class", wide=True),
        Column("project", wide=True),
        Column("node", wide=True),
        Column("model", wide=True),
        Column("preemptions", right=True, wide=True),
        Column("job", wide=True),
        Column("attempt", right=True, wide=True),
        Column("why", wide=True),
        Column("image", wide=True),
        Column("name", wide=True),
    ),
    drops=("exit", "gpu", "waited", "gpu-hours", "user"),
    fetch=fetch,
    own_options=(
        *FILTERS,
        OwnOption(
            ("--outcome",), "Show only leases with this outcome: finished, stopped, failed...", "OUTCOME"
        ),
        OwnOption(("--job",), "Show all attempts of this job, also one that is not over.", "JOB"),
        OwnOption(("--limit",), f"Show at most so many.  [default: {LIMIT}]", "N"),
    ),
    item=PastLease,
)


def _group() -> click.Group:
    """Build the command, which lists by itself and has a subcommand."""
    listed = listing_command(LISTING, COMMANDS["history"])
    assert listed.callback is not None, "a listing has one"
    show: Callable[..., int] = listed.callback

    def callback(**values: Any) -> int | None:
        return show(**values) if click.get_current_context().invoked_subcommand is None else None

    return click.Group(
        LISTING.name, params=listed.params, callback=callback, help=listed.help, invoke_without_command=True
    )


history = _group()
history.add_command(
    listing_command(history_jobs.LISTING, "Show jobs that are over, with all their attempts.")
)


@history.command("export")
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV; the usual form.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Write a JSON object a line.")
@click.option("--parquet", metavar="FILE", help="Write a Parquet file; needs gpushared[parquet].")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    help="Export summaries of leases, spans of holding and waiting, or use by the hour or minute.  [leases]",
)
def export(
    *, as_csv: bool, as_jsonl: bool, parquet: str | None, kind: str, **filters: str | bool | None
) -> int:
    """Write the history's rows for other programs.

    The columns are in docs/reference/history.md. Times are seconds since the epoch. Of others you see what the
    site allows.

    \b
    Examples:
      gpushare history export --since last-month > leases.csv
      gpushare history export --jsonl --kind minutes --since yesterday
      gpushare history export --parquet hours.parquet --kind hours --since 2026-01-01
    """
    from gpushared.cli import history_export

    if as_csv + as_jsonl + (parquet is not None) > 1:
        raise UsageError("only one form is possible", hint="choose --csv, --jsonl or --parquet FILE")
    options = Options(own_values=own_values_of(filters))
    client, window = client_for(Client(), options), read_window(options)
    pages = history_export.pages(client, window, kind)
    if parquet is not None:
        return history_export.write_parquet(pages, parquet)
    return history_export.write_text(pages, as_csv=not as_jsonl)


export.params += map(click_option, FILTERS)
