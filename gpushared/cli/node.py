"""Serve ``gpushare node``: let this machine be a node of a pool."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gpushared.cli import complete, text
from gpushared.cli.errors import UsageError
from gpushared.client import Client
from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.errors import ConfigError

STDIN = "-"
MAX_TOKEN_BYTES = 4096


@click.group("node")
def node() -> None:
    """Let this machine join a pool, or leave it; remove a node that is off from the pool's list.

    \b
    Examples:
      sudo gpushare node join dgx --token-file token
      sudo gpushare node leave
    """


@node.command("join", short_help="Join the pool of a coordinator.")
@click.option(
    "--token-file",
    metavar="FILE",
    shell_complete=complete.files,
    required=True,
    help="The file with the output of `gpushare pool token`; - is standard input.",
)
@click.option("--name", metavar="NAME", default="", help="The node's name in the pool, instead of its own.")
@click.argument("address", metavar="HOST[:PORT][,...]")
def join(address: str, token_file: str, name: str) -> int:
    """Join the pool whose coordinator is at HOST. For root and trusted groups.

    Where a pool has several coordinators, name them all, with commas between: the one that leads signs.

    The daemon of this machine makes a key, which never leaves it, and is connected at once. It trusts the
    coordinator that the token names, and no other. Running work goes on.

    \b
    Examples:
      sudo gpushare node join dgx --token-file token
      sudo gpushare node join dgx1,dgx2,dgx3 --token-file token
      ssh dgx sudo gpushare pool token -q | sudo gpushare node join dgx --token-file -
    """
    joined = Client().join_pool(address, _token(token_file), name)
    until = time.strftime("%Y-%m-%d", time.localtime(joined.expires_at))
    realms = f", and speaks for users of {', '.join(joined.realms)}" if joined.realms else ""
    click.echo(text.printable(f"this machine is node {joined.node} of the pool {joined.pool}{realms}"))
    click.echo(f"its certificate, which it renews by itself, is valid until {until}")
    for note in joined.notes:
        click.echo(text.printable(f"note: {note}"))
    return 0


def _token(file: str) -> str:
    """Read the token, never from the command line itself, which everybody on the machine can read."""
    if file.startswith("GSJ1-"):
        raise UsageError("the token must not stand on the command line", hint="put it into a file, or use -")
    try:
        if file == STDIN:
            return sys.stdin.read(MAX_TOKEN_BYTES).strip()
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_TOKEN_BYTES).strip()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not a text file", hint="it should hold the output of `gpushare pool token`"
        ) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="is the path right?") from error


@node.command("leave", short_help="Leave the pool.")
def leave() -> int:
    """Leave the pool: forget its certificate and keys. For root and trusted groups.

    Leases and containers stay. The coordinator is not told: `gpushare node forget` there removes the node
    from its list, once the pool's jobs on this machine are over.

    \b
    Examples:
      sudo gpushare node leave
    """
    client = Client()
    former = client.leave_pool()
    if not former.pool:
        click.echo("this machine is in no pool")
        return 0
    click.echo(
        text.printable(f"this machine has left the pool {former.pool}, where it was node {former.node}")
    )
    jobs = {lease.job_id for lease in client.leases().leases if lease.job_pool == former.pool}
    if jobs:
        click.echo(
            text.printable(
                f"jobs of the pool that are still here: {len(jobs)} (`gpushare ps` lists them); "
                f"forget {former.node} only when they are over, or they run twice"
            )
        )
    then = "then, on" if jobs else "on"
    forget_command = f"gpushare node forget {former.node} --is-off"
    click.echo(text.printable(f"{then} the coordinator's machine: {forget_command}"))
    return 0


@node.command("forget", short_help="Remove a node that is off from the list.")
@click.option("--is-off", is_flag=True, help="Confirm that nothing runs there any more.")
@click.option(
    "--only-waive", is_flag=True, help="Only stop waiting for it in a recovery; what ran there is kept."
)
@click.argument("name", metavar="NODE", shell_complete=complete.nodes)
def forget(name: str, is_off: bool, only_waive: bool) -> int:
    """Remove a node that does not answer from the pool's list. For the pool's administrators.

    With --is-off all that ran there counts as over: its jobs are queued again, and its certificate is
    revoked. If the node does run, its jobs run twice: only you can know.

    \b
    Examples:
      gpushare node forget ws3 --is-off
    """
    for sentence in PoolClient().forget_node(name, is_off=is_off, only_waive=only_waive):
        click.echo(text.printable(sentence))
    return 0
