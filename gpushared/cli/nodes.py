"""Serve ``gpushare nodes``: show the machines of the pool, what is known of each, and since when."""

from __future__ import annotations

import time
from collections import Counter

from gpushared.api.v1.messages import NodeList, PoolGpu, PoolNode
from gpushared.cli import text
from gpushared.cli.listing import Listing, Options, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client
from gpushared.client.jobs import Jobs

WHOLE_PERMILLE = 1000


def node_row(node: PoolNode, now: float) -> Row:
    """Return the cells of a node."""
    return {
        "node": node.name,
        "state": node.presence,
        "gpus": _gpus(node.gpus),
        "free": "" if node.presence == "never-seen" else _free(node.gpus),
        "running": str(node.running),
        "waiting": str(node.waiting),
        "heard": text.span(None if node.heard_at is None else now - node.heard_at),
        "version": node.version,
        "address": node.address,
        "enrolled": text.span(None if node.enrolled_at is None else now - node.enrolled_at),
    }


def _gpus(gpus: tuple[PoolGpu, ...]) -> str:
    """Return ``8x H100, 2x L4``."""
    return ", ".join(f"{count}x {name}" for name, count in Counter(gpu.name for gpu in gpus).items())


def _free(gpus: tuple[PoolGpu, ...]) -> str:
    """Return the free part of all GPUs together, and the number of GPUs without any lease."""
    if not gpus:
        return ""
    healthy = [gpu for gpu in gpus if not gpu.trouble]
    total = sum(gpu.free_compute_permille for gpu in healthy) / WHOLE_PERMILLE
    whole = sum(not gpu.leases and gpu.free_compute_permille == WHOLE_PERMILLE for gpu in healthy)
    return f"{total:.2f} ({whole} whole)"


def _note(node: PoolNode, now: float) -> str:
    """Word the node's trouble, and how certain it is; return an empty text if there is none."""
    if node.presence == "drained":
        return f"drained: {node.name}: {node.drain_reason} ({node.drained_by})"
    if node.presence in {"suspect", "unknown"} and node.silent_since is not None:
        since = text.span(now - node.silent_since)
        return (
            f"{node.name} is silent for {since}: what ran there is believed to run on, and is kept; "
            f"if it is off for good: gpushare node forget {node.name} --is-off"
        )
    if node.presence == "never-seen":
        return (
            f"{node.name} has not been heard of since its coordinator leads: what ran there is believed to run on, "
            "and what is free there is not known"
        )
    return ""


def notes(answer: NodeList, now: float) -> list[str]:
    """Return a line for each thing that is wrong, if anything is."""
    lines = [*answer.notices, *filter(None, (_note(node, now) for node in answer.nodes))]
    return lines + [
        f"trouble: {node.name}: {trouble}"
        for node in answer.nodes
        for trouble in text.of_gpus((str(gpu.index), gpu.trouble) for gpu in node.gpus)
    ]


def fetch(client: Client, options: Options) -> Screen:  # noqa: ARG001 - a listing's signature
    answer = Jobs(client).nodes()
    now = time.time()
    return Screen(
        rows=[node_row(node, now) for node in answer.nodes],
        items=[node.to_json() for node in answer.nodes],
        ids=[node.name for node in answer.nodes],
        simulated=any(node.simulated for node in answer.nodes),
        notes=[text.printable(note) for note in notes(answer, now)],
        extra={"pool": answer.pool, "notices": list(answer.notices)},
    )


LISTING = Listing(
    name="nodes",
    details="""Without a pool the list has this node alone. STATE is ready, suspect (silent for 15 s), unknown
(silent for 30 s), drained, or never-seen since the coordinator leads. A silent node may still run: its
jobs are kept, and shown as they were last reported. FREE adds up what its GPUs could still lease. HEARD
is when the node last reported.

\b
Examples:
  gpushare nodes
  gpushare nodes -o wide
  gpushare nodes -o json
""",
    schema="gpushare.nodes/1",
    columns=(
        Column("node", least=12),
        Column("state"),
        Column("gpus", least=16),
        Column("free", right=True),
        Column("running", right=True),
        Column("waiting", right=True),
        Column("heard", right=True),
        Column("version", wide=True),
        Column("address", wide=True),
        Column("enrolled", right=True, wide=True),
    ),
    drops=("waiting", "running", "heard", "gpus"),
    fetch=fetch,
)
