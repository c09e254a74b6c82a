"""Serve ``gpushare gpus``: show the GPUs of this node, what is used and what is free."""

from __future__ import annotations

import time

from gpushared.cli import text
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Drained, Gpu, GpuList

SPLIT = "mig"
NO_LEASES = frozenset({"drained", "unhealthy"})


def _free(gpu: Gpu) -> str:
    return f"{text.share(gpu.compute_free_permille)}, {text.memory(gpu.memory_free_bytes)}"


def gpu_row(gpu: Gpu, node: str, now: float) -> Row:
    """Return the cells of a GPU of this node."""
    util, temp, power = gpu.utilization_ratio, gpu.temperature_celsius, gpu.power_watts
    return {
        "node": node,
        "gpu": _name(gpu),
        "name": gpu.name,
        "mode": gpu.mode,
        "util": "" if util is None else f"{util:.0%}",
        "memory": text.memory_pair(gpu.memory_used_bytes, gpu.memory_total_bytes),
        "temp": "" if temp is None else f"{temp} C",
        "power": "" if power is None else f"{power:.0f} W",
        "leases": str(gpu.leases),
        "free": "" if gpu.mode in {SPLIT, *NO_LEASES} else _free(gpu),
        "leasable": text.memory(gpu.memory_leasable_bytes),
        "unmanaged": text.memory(gpu.memory_unmanaged_bytes),
        "sharing": gpu.sharing,
        "sampled": text.span(now - gpu.sampled_at) if gpu.sampled_at else "",
        "linked": "" if gpu.link_group is None else str(gpu.link_group),
        "uuid": gpu.uuid,
    }


def _name(gpu: Gpu) -> str:
    return gpu.label or str(gpu.index)


def _place(gpu: Gpu) -> str:
    """Return the GPU's name with its node, where the answer has GPUs of several nodes."""
    return f"{_name(gpu)} of {gpu.node}" if gpu.node else _name(gpu)


def _says_drained(gpu: Gpu) -> bool:
    """Return True if the line about the drain names the GPU's trouble already."""
    return gpu.drained is not None and gpu.drained.sick and gpu.trouble in gpu.drained.reason


def _drain_note(gpu: Gpu, drained: Drained, now: float) -> str:
    name = _place(gpu)
    since = f"{text.span(now - drained.since)} ago"
    if drained.sick:
        return f"unhealthy: GPU {name} {drained.reason} {since}; gpushare undrain {gpu.index} ends that"
    return f"drained: GPU {name}: {drained.reason} ({drained.by}, {since})"


def notes(answer: GpuList, now: float) -> list[str]:
    """Return a line for each thing that is wrong, if anything is."""
    lines = [*answer.notices, *(f"trouble: {trouble}" for trouble in dict.fromkeys(answer.troubles))]
    of_gpus = text.of_gpus((_place(gpu), gpu.trouble) for gpu in answer.gpus if not _says_drained(gpu))
    lines += [f"trouble: {trouble}" for trouble in of_gpus]
    return lines + [_drain_note(gpu, gpu.drained, now) for gpu in answer.gpus if gpu.drained]


def fetch(client: Client, options: Options) -> Screen:
    in_pool = bool(options.value("pool"))
    answer = client_for(client, options).gpus(pool=in_pool)
    now = time.time()
    return Screen(
        rows=[gpu_row(gpu, gpu.node or answer.node, now) for gpu in answer.gpus],
        items=[{**gpu.to_json(), "node": gpu.node or answer.node} for gpu in answer.gpus],
        ids=[gpu.uuid for gpu in answer.gpus],
        simulated=answer.simulated,
        notes=[text.printable(note) for note in notes(answer, now)],
        extra={"node": answer.node, "troubles": list(answer.troubles), "notices": list(answer.notices)},
    )


LISTING = Listing(
    name="gpus",
    details="""MEMORY is used/total; FREE is what a new lease can get: a share of the compute, and memory.
A GPU in mode mig is split by MIG: the lines after it are its instances, which --isolation mig asks for.
GPUs with the same figure in LINKED (-o wide) reach each other by NVLink, or else share a NUMA node.
MODE is unhealthy for a sick GPU and drained for one that an admin drained. Lines under the table say
what is wrong, if anything is.

\b
Examples:
  gpushare gpus
  gpushare gpus -o wide
  gpushare gpus -o columns=gpu,free
  gpushare gpus --pool
""",
    schema="gpushare.gpus/1",
    columns=(
        Column("node", least=12),
        Column("gpu", right=True),
        Column("name", least=12),
        Column("mode"),
        Column("util", right=True),
        Column("memory", right=True),
        Column("temp", right=True),
        Column("power", right=True),
        Column("leases", right=True),
        Column("free", right=True),
        Column("leasable", right=True, wide=True),
        Column("unmanaged", right=True, wide=True),
        Column("sharing", wide=True),
        Column("sampled", right=True, wide=True),
        Column("linked", right=True, wide=True),
        Column("uuid", wide=True),
    ),
    drops=("temp", "power", "leases", "util", "mode", "node", "name", "memory"),
    fetch=fetch,
    own_options=(OwnOption(("--pool",), "Show the GPUs of all nodes of the pool."),),
)
