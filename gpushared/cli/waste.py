"""Serve ``gpushare waste``: show what was held and not used, and what waited meanwhile."""

from __future__ import annotations

from gpushared.api.v1.history_messages import Usage, UsageRow
from gpushared.cli.history_options import (
    FILTERS,
    bounds,
    by_option,
    hours,
    lasted,
    percent,
    read_window,
)
from gpushared.cli.listing import Listing, Options, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.cli.usage import GROUPINGS, usage_cells
from gpushared.client import Client


def _wasted_ms(row: UsageRow) -> int:
    return row.account.idle_gpu_ms + row.account.too_big_gpu_ms


def _cells(row: UsageRow) -> Row:
    held_ms = row.account.held_gpu_ms
    return {**usage_cells(row), "wasted": percent(_wasted_ms(row) / held_ms if held_ms else None)}


def _meanwhile(answer: Usage) -> str:
    """Word the sum: ``31 GPU hours lay idle while 12 requests waited 9 h``."""
    total = answer.total or UsageRow({})
    idle = f"{hours(total.account.idle_gpu_ms)} GPU hours lay idle"
    if not answer.waited_requests:
        return f"{idle}, and nobody waited"
    requests = "1 request" if answer.waited_requests == 1 else f"{answer.waited_requests} requests"
    return f"{idle} while {requests} waited {lasted(answer.waited_ms)}"


def fetch(client: Client, options: Options) -> Screen:
    window = read_window(options)
    answer = client_for(client, options).usage(window, by=options.value("by"))
    in_time = options.value("by") in {"day", "week"}
    rows = answer.rows if in_time else sorted(answer.rows, key=_wasted_ms, reverse=True)
    total = answer.total or UsageRow({})
    return Screen(
        rows=[_cells(row) for row in rows],
        items=[row.to_json() for row in rows],
        ids=[row.key for row in rows],
        simulated=answer.simulated,
        last=_meanwhile(answer),
        extra={
            **bounds(window),
            "total": total.to_json(),
            "waited_requests": answer.waited_requests,
            "waited_ms": answer.waited_ms,
        },
    )


LISTING = Listing(
    name="waste",
    details="""The GPU hours that were held are split: WELL-USED; TOO-BIG, whose memory the lease never used;
IDLE, in which no kernel ran; and UNSEEN, of which nobody knows. WASTED is the part that was idle or too big.
`gpushare report LEASE` says what would have been enough.

\b
Examples:
  gpushare waste
  gpushare waste --by project --since last-month
  gpushare waste --by week --since 2026-01-01
""",
    schema="gpushare.waste/1",
    columns=(
        Column("name"),
        Column("gpu-hours", right=True),
        Column("well-used", right=True),
        Column("too-big", right=True),
        Column("idle", right=True),
        Column("unseen", right=True),
        Column("wasted", right=True),
        Column("leases", right=True, wide=True),
        Column("use", right=True, wide=True),
        Column("memory-use", right=True, wide=True),
    ),
    fetch=fetch,
    own_options=(by_option(GROUPINGS), *FILTERS),
    item=UsageRow,
)
