"""``gpushare stop``: ends leases, with their containers."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.client import Client


@click.command("stop", short_help="End leases, with their containers.")
@click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=click.IntRange(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def stop(lease: tuple[str, ...], grace_seconds: int | None) -> int:
    """End leases, whatever their state: a queued one leaves the queue, a running container is stopped.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The lease's GPU memory is
    free for others once the GPU shows it back. Prints each lease that was ended.

    \b
    Examples:
      gpushare stop l-7f3k
      gpushare stop --grace 60 trainer
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: client.stop(name, grace_seconds=grace_seconds).id)
