"""``gpushare priority``: moves a waiting request or job among those of its project."""

from __future__ import annotations

import click

from gpushared.cli import complete, text
from gpushared.cli.references import set_priority
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client


@click.command("priority", short_help="Move a waiting request or job among those of its project.")
@click.argument("lease", shell_complete=complete.leases)
@click.argument("priority", type=WholeNumber(-100, 100), metavar="PRIORITY")
def priority(lease: str, priority: int) -> int:
    """Move a waiting request or job among those of its project: -100 to 100, higher goes first, 0 is usual.

    LEASE is a lease's or a job's id, or the name of its container. A negative PRIORITY stands
    behind two dashes, as -- -10.

    \b
    Examples:
      gpushare priority l-7f3k 10
      gpushare priority trainer 10
      gpushare priority l-7f3k -- -10
    """  # noqa: D301 - click's mark for lines it must not join
    changed = set_priority(Client(), lease, priority)
    click.echo(text.printable(f"{changed.id}: priority {changed.priority}"))
    return 0
