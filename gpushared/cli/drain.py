"""``gpushare drain``: no new leases on a GPU."""

from __future__ import annotations

import click

from gpushared.cli import text
from gpushared.client import Client, Gpu


@click.command("drain", short_help="Give no new leases on a GPU.")
@click.option("--reason", metavar="TEXT", required=True, help="One line, shown to whoever waits.")
@click.argument("gpu")
def drain(gpu: str, reason: str) -> int:
    """Give no new leases on a GPU; leases that are there run on. Only for root and trusted groups.

    GPU is an index, 0:1 for a MIG instance, a UUID, or `all`. It stays drained, over restarts and reboots
    too, until `gpushare undrain`.

    \b
    Examples:
      gpushare drain 1 --reason "new fan at 3 pm"
      gpushare drain all --reason "driver update tonight"
    """  # noqa: D301 - click's mark for lines it must not join
    for one in Client().drain(gpu, reason):
        click.echo(text.printable(f"GPU {one.label or one.index} is {one.mode}{_running(one)}"))
    return 0


def _running(gpu: Gpu) -> str:
    if not gpu.leases:
        return ""
    return "; 1 lease there runs on" if gpu.leases == 1 else f"; {gpu.leases} leases there run on"
