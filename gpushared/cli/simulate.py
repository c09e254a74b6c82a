"""Serve ``gpushare simulate``: play the driver of simulated GPUs."""

from __future__ import annotations

import json

import click

from gpushared.cli import complete
from gpushared.cli.errors import UsageError, wrong_values
from gpushared.cli.options import WholeNumber
from gpushared.client import Client
from gpushared.domain.model.errors import NotFound, StateConflict
from gpushared.domain.model.units import parse_memory, parse_percent, shown

OK = 200
NONE = "0"
NO_PERCENT = ("0", "0%")
MAX_DIGITS = 4


@click.command("simulate")
@click.option("--gpu", default="0", metavar="INDEX", help="The GPU; 0:1 is a MIG instance, for memory.  [0]")
@click.option(
    "--container",
    metavar="NAME",
    shell_complete=complete.containers,
    help="The main process of this container holds memory.",
)
@click.option("--pid", type=WholeNumber(1), metavar="PID", help="This process of the host holds memory.")
@click.option("--memory", metavar="SIZE", help="How much it holds: 8g; 0 takes it off the GPU.")
@click.option("--inside-mps", is_flag=True, help="It is a client of MPS.")
@click.option("--outside-mps", is_flag=True, help="It is no client of MPS. By default nobody can tell.")
@click.option(
    "--process-utilization", metavar="PERCENT", help="How busy that process keeps the GPU: 80%, 0%."
)
@click.option("--utilization", metavar="PERCENT", help="How busy the GPU is: 80%.")
@click.option("--trouble", metavar="TEXT", help="The GPU is lost, for this reason; an empty text heals it.")
@click.option("--xid", "xids", type=int, multiple=True, metavar="N", help="The driver reports this error.")
@click.option("--hang", type=float, metavar="SECONDS", help="Each call to the driver takes so long; 0 heals.")
def simulate(
    gpu: str,
    container: str | None,
    pid: int | None,
    memory: str | None,
    inside_mps: bool,
    outside_mps: bool,
    process_utilization: str | None,
    utilization: str | None,
    trouble: str | None,
    xids: tuple[int, ...],
    hang: float | None,
) -> int:
    """Change what simulated GPUs show. Only for root and members of trusted groups.

    A daemon that serves real GPUs refuses. Memory belongs to a real process, and is free when that ends.

    \b
    Examples:
      gpushare simulate --container trainer --memory 30g
      gpushare simulate --container trainer --memory 2g --outside-mps
      gpushare simulate --gpu 1 --trouble "fell off the bus"
      gpushare simulate --gpu 1 --xid 79
    """
    client = Client()
    change = _gpu(gpu)
    if container is not None or pid is not None or memory is not None:
        held_bytes = _bytes(memory)
        holder = pid if pid is not None else _pid_of(container, client)
        process: dict[str, object] = {"pid": holder, "memory_bytes": str(held_bytes)}
        if inside_mps or outside_mps:
            process["mps_client"] = inside_mps
        if process_utilization is not None:
            process["utilization_ratio"] = _ratio(process_utilization, "--process-utilization")
        change["processes"] = [process]
    elif inside_mps or outside_mps or process_utilization is not None:
        raise UsageError("no option says whose memory it is", hint="add --container NAME --memory 8g")
    if utilization is not None:
        change["utilization_ratio"] = _ratio(utilization, "--utilization")
    if trouble is not None:
        change["trouble"] = trouble
    if xids:
        change["xids"] = list(xids)
    if hang is not None:
        change["hang_seconds"] = hang
    if change == _gpu(gpu):
        raise UsageError("no option says what to change", hint="see gpushare simulate --help")
    client.simulate(change)
    return 0


def _gpu(text: str) -> dict[str, object]:
    """Read ``0`` or ``0:1`` as the API names a GPU or a MIG instance."""
    index, colon, instance = text.partition(":")
    numbers = [index, instance] if colon else [index]
    if not all(number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS for number in numbers):
        raise UsageError(f"--gpu: {shown(text)} names no GPU", hint="write 0, or 0:1 for a MIG instance")
    gpu_fields: dict[str, object] = {"gpu_index": int(index)}
    return gpu_fields | {"mig_index": int(instance)} if colon else gpu_fields


def _bytes(memory: str | None) -> int:
    if memory is None:
        raise UsageError("no option says how much memory the process holds", hint="add --memory 8g")
    with wrong_values("--memory"):
        return 0 if memory == NONE else parse_memory(memory)


def _ratio(percent: str, option: str) -> float:
    with wrong_values(option):
        return 0.0 if percent in NO_PERCENT else parse_percent(percent) / 1000


def _pid_of(container: str | None, client: Client) -> int:
    """Return the host's PID of a container's main process."""
    if container is None:
        raise UsageError("no option says whose memory it is", hint="add --container NAME or --pid PID")
    answer = client.docker("GET", f"/containers/{container}/json")
    if answer.status != OK:
        raise NotFound(f"there is no container {container[:100]}", hint="see gpushare ps")
    pid = int(json.loads(answer.body)["State"]["Pid"])
    if not pid:
        raise StateConflict(f"container {container[:100]} is not running", hint="see gpushare ps")
    return pid
