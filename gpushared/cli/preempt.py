"""``gpushare preempt``: lets leases give way to others."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_lease
from gpushared.cli.references import lease_id
from gpushared.client import Client


@click.command("preempt", short_help="Let leases give way to others.")
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def preempt(lease: tuple[str, ...]) -> int:
    """Let leases give way to others at once; for administrators.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The mildest step that is
    possible is taken: off the GPUs and back by itself, or told, stopped and started again when there is room,
    or told and stopped.

    \b
    Examples:
      gpushare preempt l-7f3k
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: client.preempt(lease_id(client, name)).id)
