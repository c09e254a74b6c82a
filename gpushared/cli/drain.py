"""Serve ``gpushare drain`` and ``gpushare undrain``: keep new work from a GPU or a node, and let it in again."""

from __future__ import annotations

import re

import click

from gpushared.cli import complete, text
from gpushared.cli.gpus import NO_LEASES
from gpushared.client import Client, Gpu
from gpushared.client.pool_calls import PoolClient

_GPU = re.compile(r"all|\d+(:\d+)?|(GPU|MIG|SIM)-.*", re.IGNORECASE)
"""The names of GPUs have these forms; any other word is a node's name."""


def is_node(name: str) -> bool:
    """Return True if the name is a node's of the pool, and no GPU's of this node."""
    return _GPU.fullmatch(name) is None


@click.command("drain")
@click.option("--reason", metavar="TEXT", required=True, help="One line, shown to whoever waits.")
@click.argument("target", shell_complete=complete.gpus_and_nodes, metavar="GPU|NODE")
def drain(target: str, reason: str) -> int:
    """Give no new leases on a GPU, or no new work to a node of the pool; running work goes on.

    GPU is one of this machine: an index, 0:1 for a MIG instance, a UUID, or `all`; this is for root and
    trusted groups. Any other name is a NODE of the pool; this is for the pool's administrators. It stays
    drained, through restarts and reboots too, until `gpushare undrain`.

    \b
    Examples:
      gpushare drain 1 --reason "new fan at 3 pm"
      gpushare drain all --reason "driver update tonight"
      gpushare drain dgx-1 --reason "moves to the other room"
    """
    if is_node(target):
        for sentence in PoolClient().drain_node(target, reason):
            click.echo(text.printable(sentence))
        return 0
    for gpu in Client().drain(target, reason):
        click.echo(text.printable(f"GPU {gpu.label or gpu.index} is {gpu.mode}{_running(gpu)}"))
    return 0


def _running(gpu: Gpu) -> str:
    if not gpu.leases:
        return ""
    return "; 1 lease there runs on" if gpu.leases == 1 else f"; {gpu.leases} leases there run on"


@click.command("undrain")
@click.argument("target", shell_complete=complete.gpus_and_nodes, metavar="GPU|NODE")
def undrain(target: str) -> int:
    """Give leases again on a GPU that was drained or found sick, or work to a node of the pool.

    GPU is one of this machine: an index, 0:1 for a MIG instance, a UUID, or `all`; this is for root and
    trusted groups. A GPU that is still lost is refused: reset it or reboot first. Any other name is a NODE of the pool.

    \b
    Examples:
      gpushare undrain 1
    """
    if is_node(target):
        for sentence in PoolClient().undrain_node(target):
            click.echo(text.printable(sentence))
        return 0
    for gpu in Client().undrain(target):
        now = f"is still {gpu.mode}" if gpu.mode in NO_LEASES else "gets leases again"
        click.echo(text.printable(f"GPU {gpu.label or gpu.index} {now}"))
    return 0
