"""``gpushare hold``: keeps requests that wait from starting."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.cli.references import set_held
from gpushared.client import Client


@click.command("hold", short_help="Keep waiting requests and jobs from starting.")
@click.argument("lease", shell_complete=complete.waiting, nargs=-1, required=True)
def hold(lease: tuple[str, ...]) -> int:
    """Keep requests and jobs that wait from starting, until they are let go. They keep their place.

    LEASE is a lease's or a job's id, or the name of its container. What an administrator
    holds, only an administrator lets go.

    \b
    Examples:
      gpushare hold l-7f3k
      gpushare hold k3m9x0p2qa
      gpushare unhold l-7f3k
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: set_held(client, name, held=True))
