"""``gpushare unhold``: lets requests go that were held."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.cli.references import set_held
from gpushared.client import Client


@click.command("unhold", short_help="Let requests and jobs go that were held.")
@click.argument("lease", shell_complete=complete.waiting, nargs=-1, required=True)
def unhold(lease: tuple[str, ...]) -> int:
    """Let requests and jobs go that `gpushare hold` or --hold keeps from starting.

    LEASE is a lease's or a job's id, or the name of its container. They start when it is their
    turn and there is room.

    \b
    Examples:
      gpushare unhold l-7f3k
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: set_held(client, name, held=False))
