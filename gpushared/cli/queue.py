"""``gpushare queue``: who waits, for what, and why."""

from __future__ import annotations

import time

from gpushared.cli import text
from gpushared.cli.listing import Listing, Options, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Lease, Waiting


def lease_row(lease: Lease, waiting: Waiting, now: float) -> Row:
    """Return the cells of a waiting request."""
    return {
        "pos": str(waiting.position),
        "lease": lease.id,
        "name": lease.container_name,
        "user": lease.owner,
        "class": lease.lease_class,
        "asks": lease.asks,
        "waited": text.span(now - lease.created_at),
        "eta": text.start(waiting.start_from, waiting.start_to, now),
        "reason": waiting.text or waiting.reason,
        "code": waiting.reason,
        "isolation": lease.isolation,
        "preset": lease.preset,
        "project": lease.project,
        "priority": str(lease.priority),
        "image": lease.image,
    }


def fetch(client: Client, options: Options) -> Screen:
    answer = client.leases()
    queued = [(lease, lease.waiting) for lease in answer.leases if lease.waiting is not None]
    queued.sort(key=lambda pair: pair[1].position)
    now = time.time()
    screen = Screen(
        rows=[lease_row(lease, waiting, now) for lease, waiting in queued],
        items=[lease.to_json() for lease, _ in queued],
        ids=[lease.id for lease, _ in queued],
        simulated=answer.simulated,
    )
    if not options.explain or options.output == "ids":
        return screen
    from gpushared.cli.queue_explanation import explained, in_words

    told = explained(client, screen.ids)
    return screen._replace(
        items=[one.to_json() for one in told],
        ids=[one.explanation.lease.id for one in told],
        told=[line for one in told for line in in_words(one, now)],
    )


LISTING = Listing(
    name="queue",
    summary="Show the requests that wait, and why.",
    details="""ETA comes from the time limits of the leases before, as a range; "unknown" where a lease has
no time limit. `gpushare why LEASE` tells more about one of them.

\b
Examples:
  gpushare queue
  gpushare queue --explain
  gpushare queue -o json
""",
    schema="gpushare.queue/1",
    columns=(
        Column("pos", right=True),
        Column("lease"),
        Column("name", least=16),
        Column("user", least=12),
        Column("class"),
        Column("asks"),
        Column("waited", right=True),
        Column("eta"),
        Column("image", least=16),
        Column("reason", least=20),
        Column("code", wide=True),
        Column("isolation", wide=True),
        Column("preset", wide=True),
        Column("project", wide=True),
        Column("priority", wide=True, right=True),
    ),
    drops=("image", "class", "waited", "asks", "user", "eta"),
    fetch=fetch,
    explains=True,
)
