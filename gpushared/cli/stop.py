"""``gpushare stop``: ends leases, with their containers."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.each import each_begun
from gpushared.cli.faults import say
from gpushared.cli.stopping import Stop
from gpushared.cli.waiting import Interrupted, signals_interrupt
from gpushared.cli.whole_number import WholeNumber
from gpushared.client import Client


@click.command("stop", short_help="End leases, with their containers.")
@click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=WholeNumber(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)
@click.option("--wait", is_flag=True, help="Come back when the leases are over and their GPU memory is free.")
@click.argument("lease", shell_complete=complete.leases, nargs=-1, required=True)
def stop(lease: tuple[str, ...], grace_seconds: int | None, wait: bool) -> int:
    """End leases, whatever their state: a queued one leaves the queue, a running container is stopped.

    LEASE is a lease's or a job's id, the name of a container, also of one that waits, or the beginning of a
    container's id. Comes back when the
    containers have stopped, as docker stop does, so that docker rm can remove them. The GPU memory of a lease
    is free for others once the GPU shows it back, which --wait waits for. Prints each lease that was ended.
    Ctrl-C ends only the command.

    \b
    Examples:
      gpushare stop l-7f3k
      gpushare stop --grace 60 trainer
      gpushare stop trainer && docker rm trainer
      gpushare stop --wait trainer && gpushare run --gpu 1 --immediate IMAGE
    """  # noqa: D301 - click's mark for lines it must not join
    stops = Stop(Client(), grace_seconds, until_over=wait)
    try:
        with signals_interrupt():
            return each_begun(lease, stops.begin, stops.finish)
    except Interrupted as end:
        say("the leases end without this command", hint="`gpushare ps` shows how far they are")
        return end.exit_code
