"""``gpushare hold``: keeps requests that wait from starting."""

from __future__ import annotations

import click

from gpushared.cli.each import each_lease
from gpushared.client import Client


@click.command("hold", short_help="Keep waiting requests from starting.")
@click.argument("lease", nargs=-1, required=True)
def hold(lease: tuple[str, ...]) -> int:
    """Keep requests that wait from starting, until they are let go. They keep their place in the queue.

    LEASE is a lease id. What an administrator holds, only an administrator lets go.

    \b
    Examples:
      gpushare hold l-7f3k
      gpushare unhold l-7f3k
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: client.hold(name).id)
