"""``gpushare ps``: the leases of this node."""

from __future__ import annotations

import time

from gpushared.cli import text
from gpushared.cli.listing import Listing, Options, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Lease, OfferAnswer, UnmanagedProcess

IMAGE_SHOWN = 40


def lease_row(lease: Lease, now: float) -> Row:
    """A lease's cells, those of every listing of leases."""
    memory = sum(grant.memory_bytes for grant in lease.grants)
    left = lease.expires_at - now if lease.expires_at and lease.state != "ended" else None
    return {
        "lease": lease.id,
        "user": lease.owner,
        "state": state(lease),
        "gpu": ",".join(grant.gpu_label or str(grant.gpu_index) for grant in lease.grants),
        "share": share(lease),
        "memory": text.memory_pair(lease.memory_used_bytes, memory) if lease.grants else "",
        "wall": lease.memory_wall,
        "age": text.span(now - lease.created_at),
        "left": text.span(left),
        "image": lease.image,
        "name": lease.container_name,
        "idle": text.span(now - lease.idle_since if lease.idle_since else None),
        "class": lease.lease_class,
        "asks": lease.asks,
        "isolation": lease.isolation,
        "cap": lease.compute_cap,
        "preset": lease.preset,
        "project": lease.project,
        "job": lease.job_id,
        "gpu-uuid": ",".join(grant.gpu_uuid for grant in lease.grants),
        "container": lease.container_id[:12],
    }


def state(lease: Lease) -> str:
    """The state, and once it is over the outcome: ``finished(3)``."""
    if lease.state != "ended" or lease.outcome is None:
        return lease.state
    code = lease.outcome.exit_code
    return lease.outcome.kind if code is None else f"{lease.outcome.kind}({code})"


def share(lease: Lease | OfferAnswer) -> str:
    """``0.25``, ``2x0.5``; whole GPUs are counted; ``25..100%`` where it may use more than its share."""
    if not lease.grants:
        return ""
    count, one = len(lease.grants), lease.grants[0].compute_permille
    if one == 1000:  # noqa: PLR2004 - permille of a whole GPU
        return str(count)
    words = text.compute(one, lease.grants[0].compute_limit_permille)
    return words if count == 1 else f"{count}x{words}"


def holding(lease: Lease | OfferAnswer) -> str:
    """``0.25 on GPU 0 (NVIDIA H100), 19.7 GiB``."""
    gpus = ", ".join(f"GPU {grant.gpu_label or grant.gpu_index} ({grant.gpu_name})" for grant in lease.grants)
    memory = text.memory(sum(grant.memory_bytes for grant in lease.grants))
    return f"{share(lease)} on {gpus}, {memory}"


def _unmanaged_row(process: UnmanagedProcess) -> Row:
    return {
        "lease": "UNMANAGED",
        "user": process.user,
        "state": "unmanaged",
        "gpu": str(process.gpu_index),
        "memory": text.memory(process.memory_bytes),
        "wall": "none",
        "name": f"{process.command} (pid {process.pid})".strip(),
        "gpu-uuid": process.gpu_uuid,
    }


def _narrow(row: Row, output: str) -> Row:
    image = row.get("image", "")
    if output != "table" or len(image) <= IMAGE_SHOWN:
        return row
    return {**row, "image": image[: IMAGE_SHOWN - 1] + "…"}


def fetch(client: Client, options: Options) -> Screen:
    answer = client.leases(ended=options.ended)
    now = time.time()
    rows = [_narrow(lease_row(lease, now), options.output) for lease in answer.leases]
    return Screen(
        rows=rows + [_unmanaged_row(process) for process in answer.unmanaged],
        items=[lease.to_json() for lease in answer.leases],
        ids=[lease.id for lease in answer.leases],
        simulated=answer.simulated,
        extra={"unmanaged": [process.to_json() for process in answer.unmanaged]},
    )


LISTING = Listing(
    name="ps",
    summary="Show the leases of this node.",
    details="""MEMORY is used/granted; WALL is what really holds a lease inside its memory; IDLE is for how
long nothing of it has done anything on its GPUs. UNMANAGED rows are
GPU processes without a lease: they are left alone, and their memory is counted as taken. Containers and
images of other users are not shown.

\b
Examples:
  gpushare ps
  gpushare ps --all -o wide
  gpushare ps -o columns=lease,user,memory --no-headers
  gpushare stop $(gpushare ps -q)
""",
    schema="gpushare.leases/1",
    columns=(
        Column("lease"),
        Column("user", least=12),
        Column("state", coloured=True),
        Column("gpu", least=8),
        Column("share", right=True),
        Column("memory", right=True),
        Column("wall"),
        Column("age", right=True),
        Column("left", right=True),
        Column("image", least=16),
        Column("name", least=16),
        Column("idle", right=True, wide=True),
        Column("class", wide=True),
        Column("asks", wide=True),
        Column("isolation", wide=True),
        Column("cap", wide=True),
        Column("preset", wide=True),
        Column("project", wide=True),
        Column("job", wide=True),
        Column("container", wide=True),
        Column("gpu-uuid", wide=True),
    ),
    drops=("wall", "age", "share", "image", "left", "gpu", "memory", "user"),
    fetch=fetch,
    has_ended=True,
)
