"""``gpushare extend``: gives a lease more time."""

from __future__ import annotations

import time

import click

from gpushared.cli import complete, text
from gpushared.cli.faults import wrong_values
from gpushared.cli.references import lease_id
from gpushared.client import Client
from gpushared.domain.model.units import parse_duration


@click.command("extend", short_help="Give a lease more time.")
@click.argument("lease", shell_complete=complete.leases)
@click.argument("duration")
def extend(lease: str, duration: str) -> int:
    """Give a lease more time than its --time.

    LEASE is a lease id, a container's name, or the beginning of a container's id; DURATION is added: 30m, 2h.
    Where the first in the queue counts on the lease's end, only an administrator can extend it.

    \b
    Examples:
      gpushare extend l-7f3k 2h
      gpushare extend trainer 1d
    """  # noqa: D301 - click's mark for lines it must not join
    with wrong_values():
        parse_duration(duration)
    client = Client()
    extended = client.extend(lease_id(client, lease), duration)
    left = "" if extended.expires_at is None else f": {text.span(extended.expires_at - time.time())} left"
    click.echo(text.printable(f"{extended.id}{left}"))
    return 0
