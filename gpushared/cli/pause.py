"""``gpushare pause``: takes running leases off their GPUs."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.moving import each_moved, moved, not_so
from gpushared.cli.references import lease_id
from gpushared.client import Client


@click.command("pause", short_help="Take running leases off their GPUs.")
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def pause(lease: tuple[str, ...]) -> int:
    """Take running leases off their GPUs, with their containers kept as they are, until they are resumed.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The GPU memory is moved to
    the host's by a CUDA checkpoint; where that does not work, it is refused and says why. The command ends
    when it has happened; Ctrl-C ends only the command.

    \b
    Examples:
      gpushare pause trainer
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_moved(lease, lambda name: _paused(client, name))


def _paused(client: Client, name: str) -> str:
    lease = moved(client, client.pause(lease_id(client, name)))
    if lease.state != "suspended":
        raise not_so(client, lease, "suspended")
    return lease.id
