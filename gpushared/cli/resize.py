"""``gpushare resize``: gives a lease another size."""

from __future__ import annotations

import click

from gpushared.cli import complete, text
from gpushared.cli.faults import wrong_values
from gpushared.cli.lease_values import option_of
from gpushared.cli.references import lease_id
from gpushared.client import Client
from gpushared.domain.model.request_spec import read_size


@click.command("resize", short_help="Give a lease another size.")
@click.option("--gpu", metavar="SIZE", default="", help="Memory and compute: 0.5 or 0.25..1 of each GPU.")
@click.option(
    "--gpu-memory", metavar="SIZE", default="", help="The memory of each GPU by itself: 12g or 8g..24g."
)
@click.option("--gpu-compute", metavar="PERCENT", default="", help="The share of each GPU's compute: 50%.")
@click.argument("lease", shell_complete=complete.leases)
def resize(lease: str, gpu: str, gpu_memory: str, gpu_compute: str) -> int:
    """Give a lease another size, on the GPUs that it has; a queued one keeps its place.

    LEASE is a lease id, a container's name, or the beginning of a container's id. More is given if it is free
    there now and not kept for whoever waits first; memory can be lowered to what is used and a margin. What
    is not said stays. Of a range it gets as much as there is room for now; any other size ends a range that
    it had. Prints which part of the new size holds when: processes that run keep their limits.

    \b
    Examples:
      gpushare resize l-7f3k --gpu-memory 12g
      gpushare resize trainer --gpu-compute 50%
      gpushare resize trainer --gpu 0.5
      gpushare resize trainer --gpu 0.25..1
    """  # noqa: D301 - click's mark for lines it must not join
    said = {"gpu": gpu, "gpu_memory": gpu_memory, "gpu_compute": gpu_compute}
    for name, size in said.items():
        if size:
            with wrong_values(option_of(name)):
                read_size(**{name: size})
    client = Client()
    found = lease_id(client, lease)
    answer = client.resize(found, **said)
    lines = [f"{answer.lease.id}: {answer.lease.asks}", *(f"  {effect}" for effect in answer.effects)]
    click.echo("\n".join(map(text.printable, lines)))
    return 0
