"""``gpushare undrain``: leases on a GPU again."""

from __future__ import annotations

import click

from gpushared.cli import text
from gpushared.client import Client

NO_LEASES = frozenset({"drained", "unhealthy"})


@click.command("undrain", short_help="Give leases on a GPU again.")
@click.argument("gpu")
def undrain(gpu: str) -> int:
    """Give leases on a GPU again that was drained or found sick. Only for root and trusted groups.

    GPU is an index, 0:1 for a MIG instance, a UUID, or `all`. One that is still lost is refused: reset it
    or reboot first.

    \b
    Examples:
      gpushare undrain 1
    """  # noqa: D301 - click's mark for lines it must not join
    for one in Client().undrain(gpu):
        now = f"is still {one.mode}" if one.mode in NO_LEASES else "gets leases again"
        click.echo(text.printable(f"GPU {one.label or one.index} {now}"))
    return 0
