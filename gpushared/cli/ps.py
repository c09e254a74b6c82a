"""Serve ``gpushare ps``: show the leases of this node."""

from __future__ import annotations

import time
from functools import partial

from gpushared.cli import text
from gpushared.cli.errors import UsageError, wrong_values
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Grant, Lease, LeaseList, OfferAnswer, UnmanagedProcess

IMAGE_SHOWN = 40
LIMIT = 50
"""Without a number so many leases that are over are shown."""
MAX_LIMIT = 100_000
PAGE = 1000


def lease_row(lease: Lease, now: float) -> Row:
    """Return a lease's cells, the same in every listing of leases."""
    memory = sum(grant.memory_bytes for grant in lease.grants)
    return {
        "lease": lease.id,
        "node": lease.node,
        "user": lease.owner,
        "state": state(lease),
        "gpu": ",".join(text.gpu(grant.gpu_label, grant.gpu_index) for grant in lease.grants),
        "share": share(lease),
        "memory": text.memory_pair(lease.memory_used_bytes, memory) if lease.grants else "",
        "wall": lease.memory_wall,
        "age": text.span(now - lease.created_at),
        "left": text.span(_remaining_seconds(lease, now)),
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
    """Word the state, and for a lease that is over the outcome: ``finished(3)``."""
    if lease.state != "ended" or lease.outcome is None:
        return lease.state
    code = lease.outcome.exit_code
    return lease.outcome.kind if code is None else f"{lease.outcome.kind}({code})"


def share(lease: Lease | OfferAnswer) -> str:
    """Return ``0.25``, ``2x0.5``; whole GPUs are counted; ``25..100%`` where it may use more than its share."""
    if not lease.grants:
        return ""
    count, permille = len(lease.grants), lease.grants[0].compute_permille
    if permille == 1000:  # noqa: PLR2004 - permille of a whole GPU
        return str(count)
    portion = text.compute(permille, lease.grants[0].compute_limit_permille)
    return portion if count == 1 else f"{count}x{portion}"


def holding(lease: Lease | OfferAnswer) -> str:
    """Return ``0.25 on GPU 0 (NVIDIA H100), 19.7 GiB``."""
    memory = text.memory(sum(grant.memory_bytes for grant in lease.grants))
    return f"{share(lease)} on {gpus(lease.grants)}, {memory}"


def time_left(lease: Lease, now: float) -> str:
    """Return ``l-7f3k: 1h30m left``, or the id alone for a lease whose time does not end or has not begun."""
    remaining_seconds = _remaining_seconds(lease, now)
    return lease.id if remaining_seconds is None else f"{lease.id}: {text.span(remaining_seconds)} left"


def _remaining_seconds(lease: Lease, now: float) -> float | None:
    """Return what is left of the lease's time; that of a suspended lease stands still."""
    if lease.left_seconds:
        return lease.left_seconds
    return lease.expires_at - now if lease.expires_at and lease.state != "ended" else None


def gpus(grants: tuple[Grant, ...]) -> str:
    """Return ``GPU 0 (NVIDIA H100), GPU 1 (NVIDIA H100)``."""
    names = (f"GPU {text.gpu(grant.gpu_label, grant.gpu_index)} ({grant.gpu_name})" for grant in grants)
    return ", ".join(names)


def unmanaged_row(process: UnmanagedProcess) -> Row:
    """Return the cells of a GPU process without a lease."""
    return {
        "lease": "UNMANAGED",
        "node": process.node,
        "user": process.user,
        "state": "unmanaged",
        "gpu": text.gpu("", process.gpu_index),
        "memory": text.memory(process.memory_bytes),
        "wall": "none",
        "name": f"{process.command} (pid {process.pid})".strip() if process.pid else "",
        "gpu-uuid": process.gpu_uuid,
    }


def _narrow(row: Row, output: str) -> Row:
    image = row.get("image", "")
    if output != "table" or len(image) <= IMAGE_SHOWN:
        return row
    return {**row, "image": image[: IMAGE_SHOWN - 1] + "…"}


def fetch(client: Client, options: Options) -> Screen:
    answer, leases, more = _fetch_leases(client, options)
    now = time.time()
    user = options.value("user")
    unmanaged = [
        process for process in answer.unmanaged if not options.value("state") and user in {"", process.user}
    ]
    rows = [_narrow(lease_row(lease, now), options.output) for lease in leases]
    return Screen(
        rows=rows + [unmanaged_row(process) for process in unmanaged],
        items=[lease.to_json() for lease in leases],
        ids=[lease.id for lease in leases],
        simulated=answer.simulated,
        notes=[text.printable(note) for note in answer.notices],
        last=_not_shown(more, options.limit(LIMIT, MAX_LIMIT)),
        extra={"unmanaged": [process.to_json() for process in unmanaged], "not_shown": more},
    )


def _fetch_leases(client: Client, options: Options) -> tuple[LeaseList, list[Lease], int]:
    """Return the first answer, all leases to show, and how many that are over are left out."""
    limit, since = options.limit(LIMIT, MAX_LIMIT), options.value("since")
    client = client_for(client, options)
    if options.value("pool") and (options.ended or since or options.value("limit")):
        raise UsageError("--pool shows no leases that are over", hint="gpushare history --pool does")
    fetch_page = partial(
        client.leases,
        ended=options.ended or bool(since or options.value("limit")),
        since=_moment(since) if since else 0.0,
        user=options.value("user"),
        states=[name.strip() for name in options.value("state").split(",") if name.strip()],
        pool=bool(options.value("pool")),
    )
    first = answer = fetch_page(limit=min(limit, PAGE))
    leases, past = list(answer.leases), _count_ended(answer)
    while answer.next_page_token and past < limit:
        answer = fetch_page(limit=min(limit - past, PAGE), page_token=answer.next_page_token)
        leases += answer.leases
        past += _count_ended(answer)
    return first, leases, answer.more


def _count_ended(answer: LeaseList) -> int:
    return sum(lease.state == "ended" for lease in answer.leases)


def _not_shown(more: int, limit: int) -> str:
    if not more:
        return ""
    leases = "1 lease that is over is" if more == 1 else f"{more} leases that are over are"
    return f"{leases} not shown: --limit {limit + more} shows all, --since 1d those of a day"


def _moment(text: str) -> float:
    from datetime import datetime

    from gpushared.client.moment import read_past

    with wrong_values("--since"):
        return read_past(text, datetime.now().astimezone())


LISTING = Listing(
    name="ps",
    details="""MEMORY is used/granted; WALL is what really keeps a lease inside its memory; IDLE tells for how
long none of its processes has used its GPUs. UNMANAGED rows are GPU processes without a lease: they are
left alone, and their memory is counted as taken. Containers and images of other users are not shown.

\b
Examples:
  gpushare ps
  gpushare ps --all -o wide
  gpushare ps --pool
  gpushare ps --since 1d --user alice
  gpushare ps --state failed,over_limit --limit 200
  gpushare ps -o columns=lease,user,memory --no-headers
  gpushare stop $(gpushare ps -q)
""",
    schema="gpushare.leases/1",
    columns=(
        Column("lease"),
        Column("node", least=8, pool=True),
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
    own_options=(
        OwnOption(("--pool",), "Show the leases of all nodes of the pool, and its waiting jobs."),
        OwnOption(
            ("--limit",), "Show at most so many leases that are over; implies --all.  [default: 50]", "N"
        ),
        OwnOption(
            ("--since",), "Show only those that ended since: 2h, 22:00, 2026-11-22; implies --all.", "WHEN"
        ),
        OwnOption(("--user",), "Show only the leases of this user.", "NAME"),
        OwnOption(
            ("--state",), "Show only leases in these states: the words of STATE, or ended.", "STATE,..."
        ),
    ),
)
