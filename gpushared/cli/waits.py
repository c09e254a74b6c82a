"""Serve ``gpushare waits``: show how long requests waited."""

from __future__ import annotations

from gpushared.api.v1.history_messages import WaitsRow
from gpushared.cli.history_options import FILTERS, bounds, by_option, lasted, read_window
from gpushared.cli.listing import Listing, Options, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client

GROUPINGS = ("class", "size", "hour", "reason", "user", "project", "node")


def _cells(row: WaitsRow) -> Row:
    return {
        "name": row.key,
        "requests": str(row.requests),
        "waited": str(row.waited),
        "p50": lasted(row.p50_ms),
        "p90": lasted(row.p90_ms),
        "p99": lasted(row.p99_ms),
        "longest": lasted(row.longest_ms),
        "total": lasted(row.total_ms),
        "waiting": str(row.waiting),
    }


def fetch(client: Client, options: Options) -> Screen:
    window = read_window(options)
    answer = client_for(client, options).waits(window, by=options.value("by"))
    total = answer.total
    return Screen(
        rows=[_cells(row) for row in answer.rows],
        items=[row.to_json() for row in answer.rows],
        ids=[row.key for row in answer.rows],
        simulated=answer.simulated,
        last=""
        if total is None
        else f"total: {total.waited} of {total.requests} requests waited, {lasted(total.total_ms)} together",
        extra={**bounds(window), "total": None if total is None else total.to_json()},
    )


LISTING = Listing(
    name="waits",
    details="""P50, P90 and P99 are the waits that 50, 90 and 99 of 100 requests did not exceed, with those that
started at once. By reason, only requests that waited for the reason are counted. WAITING wait still.

\b
Examples:
  gpushare waits
  gpushare waits --by hour --since 30d
  gpushare waits --by reason --class train
""",
    schema="gpushare.waits/1",
    columns=(
        Column("name"),
        Column("requests", right=True),
        Column("waited", right=True),
        Column("p50", right=True),
        Column("p90", right=True),
        Column("p99", right=True),
        Column("longest", right=True),
        Column("total", right=True),
        Column("waiting", right=True, wide=True),
    ),
    fetch=fetch,
    own_options=(by_option(GROUPINGS), *FILTERS),
    item=WaitsRow,
)
