"""``gpushare resume``: brings paused leases back."""

from __future__ import annotations

import click

from gpushared.cli.each import each_lease
from gpushared.client import Client


@click.command("resume", short_help="Bring paused leases back.")
@click.argument("lease", nargs=-1, required=True)
def resume(lease: tuple[str, ...]) -> int:
    """Bring paused leases back to the GPUs that they had, as soon as there is room.

    LEASE is a lease id, a container's name, or the beginning of a container's id.

    \b
    Examples:
      gpushare resume trainer
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_lease(lease, lambda name: client.resume(name).id)
