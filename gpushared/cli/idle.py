"""Serve ``gpushare idle``: show the leases that hold GPUs now and run no kernel."""

from __future__ import annotations

import time

from gpushared.cli import text
from gpushared.cli.history_options import OWNERS, POOL
from gpushared.cli.listing import Listing, Options, Screen, client_for
from gpushared.cli.ps import lease_row
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Lease


def _cells(lease: Lease, now: float) -> Row:
    since = lease.idle_since or now
    notice = lease.notice.text if lease.notice is not None and lease.notice.kind == "idle" else ""
    return {**lease_row(lease, now), "since": text.clock(since, now), "next": notice}


def _matches(lease: Lease, options: Options) -> bool:
    return (
        lease.idle_since is not None
        and options.value("user") in {"", lease.owner, str(lease.owner_uid)}
        and options.value("project") in {"", lease.project}
        and options.value("class") in {"", lease.lease_class}
    )


def fetch(client: Client, options: Options) -> Screen:
    answer = client_for(client, options).leases(pool=bool(options.value("pool")))
    leases = [lease for lease in answer.leases if _matches(lease, options)]
    leases.sort(key=lambda lease: lease.idle_since or 0.0)
    now = time.time()
    permille = sum(grant.compute_permille for lease in leases for grant in lease.grants)
    return Screen(
        rows=[_cells(lease, now) for lease in leases],
        items=[lease.to_json() for lease in leases],
        ids=[lease.id for lease in leases],
        simulated=answer.simulated,
        notes=[text.printable(note) for note in answer.notices],
        last=f"{text.share(permille)} GPUs are held and run no kernel" if leases else "no lease is idle",
    )


LISTING = Listing(
    name="idle",
    details="""IDLE is for how long no kernel of the lease has run, SINCE is when that began, and NEXT is what
will happen to the lease by the site's idle rules. `gpushare waste` sums idle time that is over.

\b
Examples:
  gpushare idle
  gpushare stop $(gpushare idle --user $USER -q)
""",
    schema="gpushare.idle/1",
    columns=(
        Column("lease"),
        Column("node", least=8, pool=True),
        Column("user", least=12),
        Column("gpu", least=8),
        Column("share", right=True),
        Column("memory", right=True),
        Column("idle", right=True),
        Column("since"),
        Column("next", least=20),
        Column("name", least=16),
        Column("class", wide=True),
        Column("project", wide=True),
        Column("state", wide=True, coloured=True),
        Column("age", right=True, wide=True),
        Column("left", right=True, wide=True),
        Column("image", wide=True),
    ),
    drops=("name", "share", "memory"),
    fetch=fetch,
    own_options=(*OWNERS, POOL),
)
