"""Serve ``gpushare usage``: show who held how much, and how much of it was used."""

from __future__ import annotations

from gpushared.api.v1.history_messages import UsageRow
from gpushared.cli.history_options import (
    FILTERS,
    account_cells,
    bounds,
    by_option,
    hours,
    percent,
    read_window,
)
from gpushared.cli.listing import Listing, Options, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client

GROUPINGS = ("user", "project", "class", "gpu", "node", "model", "day", "week")


def usage_cells(row: UsageRow) -> Row:
    """Return the cells of a row."""
    return {"name": row.key, "leases": str(row.leases), **account_cells(row.account)}


def fetch(client: Client, options: Options) -> Screen:
    window = read_window(options)
    answer = client_for(client, options).usage(window, by=options.value("by"))
    total = answer.total or UsageRow({})
    used = percent(total.account.use_of_held_ratio)
    return Screen(
        rows=[usage_cells(row) for row in answer.rows],
        items=[row.to_json() for row in answer.rows],
        ids=[row.key for row in answer.rows],
        simulated=answer.simulated,
        last=f"total: {hours(total.account.held_gpu_ms)} GPU hours held by {total.leases} leases"
        + (f", {used} used" if used else ""),
        extra={**bounds(window), "total": total.to_json()},
    )


LISTING = Listing(
    name="usage",
    details="""A GPU hour is a whole GPU for an hour, or a quarter of one for four. USE is the part of the held
time in which kernels ran; IDLE are GPU hours in which none ran. What was not seen is in neither. Of others
you see what the site allows.

\b
Examples:
  gpushare usage
  gpushare usage --by project --since last-month
  gpushare usage --by day --user alice -o csv
""",
    schema="gpushare.usage/1",
    columns=(
        Column("name"),
        Column("leases", right=True),
        Column("gpu-hours", right=True),
        Column("gib-hours", right=True),
        Column("use", right=True),
        Column("memory-use", right=True),
        Column("idle", right=True),
        Column("well-used", right=True, wide=True),
        Column("too-big", right=True, wide=True),
        Column("unseen", right=True, wide=True),
    ),
    fetch=fetch,
    own_options=(by_option(GROUPINGS), *FILTERS),
    item=UsageRow,
)
