"""``gpushare resume``: brings paused leases back."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.faults import say
from gpushared.cli.moving import each_moved, moved, not_so
from gpushared.cli.references import lease_id
from gpushared.client import Client


@click.command("resume", short_help="Bring paused leases back.")
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def resume(lease: tuple[str, ...]) -> int:
    """Bring paused leases back to the GPUs that they had, as soon as there is room.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The command ends when they
    run again. For one that has to wait for room it says what it waits for and ends: it comes back by itself.

    \b
    Examples:
      gpushare resume trainer
    """  # noqa: D301 - click's mark for lines it must not join
    client = Client()
    return each_moved(lease, lambda name: _resumed(client, name))


def _resumed(client: Client, name: str) -> str:
    lease = moved(client, client.resume(lease_id(client, name)))
    waiting = lease.waiting
    if lease.state == "suspended" and waiting is not None:
        place, why = f"position {waiting.position} of {waiting.queue_length}", waiting.text or waiting.reason
        say(f"{lease.id} waits for room, {place}: {why}", hint="it comes back by itself")
    elif lease.state != "active":
        raise not_so(client, lease, "active")
    return lease.id
