"""``gpushare undrain``: leases on a GPU again, or work for a node."""

from __future__ import annotations

import click

from gpushared.cli import complete, text
from gpushared.cli.drain import is_node
from gpushared.client import Client
from gpushared.client.pool import PoolClient

NO_LEASES = frozenset({"drained", "unhealthy"})


@click.command("undrain", short_help="Give leases on a GPU again, or work to a node.")
@click.argument("target", shell_complete=complete.gpus_and_nodes, metavar="GPU|NODE")
def undrain(target: str) -> int:
    """Give leases again on a GPU that was drained or found sick, or work to a node of the pool.

    GPU is one of this machine: an index, 0:1 for a MIG instance, a UUID, or `all`; for root and trusted
    groups. One that is still lost is refused: reset it or reboot first. Any other name is a NODE of the pool.

    \b
    Examples:
      gpushare undrain 1
    """  # noqa: D301 - click's mark for lines it must not join
    if is_node(target):
        for sentence in PoolClient().undrain_node(target):
            click.echo(text.printable(sentence))
        return 0
    for one in Client().undrain(target):
        now = f"is still {one.mode}" if one.mode in NO_LEASES else "gets leases again"
        click.echo(text.printable(f"GPU {one.label or one.index} {now}"))
    return 0
