"""Serve ``gpushare queue``: show who waits, for what, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpushared.cli import text
from gpushared.cli.errors import UsageError
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, client_for
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Explanation, Lease, LeaseList, Project, Quota, Waiting
from gpushared.domain.model.errors import NotFound
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

HOUR_SECONDS = 3600
ONE_GPU = 1000


def lease_row(lease: Lease, waiting: Waiting, now: float) -> Row:
    """Return the cells of a waiting request."""
    return {
        "pos": str(waiting.position),
        "lease": lease.id,
        "node": lease.node,
        "name": lease.container_name,
        "user": lease.owner,
        "class": lease.lease_class,
        "asks": lease.asks,
        "waited": waited(lease, now),
        "eta": text.start(waiting.start_from, waiting.start_to, now),
        "reason": waiting.text or waiting.reason,
        "code": waiting.reason,
        "isolation": lease.isolation,
        "preset": lease.preset,
        "project": lease.project,
        "priority": str(lease.priority),
        "image": lease.image,
    }


def waited(lease: Lease, now: float) -> str:
    """Return how long the lease has waited: if it held GPUs before, since it was taken off them."""
    return text.span(now - waits_since(lease))


def waits_since(lease: Lease) -> float:
    """Return since when the lease has waited. Coordinators of older versions leave ``since`` out."""
    return lease.since or lease.created_at


def queued_leases(answer: LeaseList) -> list[tuple[Lease, Waiting]]:
    """Return the leases that wait, each with its wait, in the order of each node's queue."""
    queued = [(lease, lease.waiting) for lease in answer.leases if lease.waiting is not None]
    return sorted(queued, key=lambda pair: (pair[0].node, pair[1].position))


def fetch(client: Client, options: Options) -> Screen:
    client, in_pool = client_for(client, options), bool(options.value("pool"))
    if in_pool and options.explain:
        raise UsageError("--explain is for the queue of this node", hint="gpushare why JOB explains one")
    answer = client.leases(pool=in_pool)
    queued = queued_leases(answer)
    now = time.time()
    screen = Screen(
        rows=[lease_row(lease, waiting, now) for lease, waiting in queued],
        items=[lease.to_json() for lease, _ in queued],
        ids=[lease.id for lease, _ in queued],
        simulated=answer.simulated,
    )
    if not options.explain or options.output == "ids":
        return screen

    explained_leases = explained(client, screen.ids)
    return screen._replace(
        items=[entry.to_json() for entry in explained_leases],
        ids=[entry.explanation.lease.id for entry in explained_leases],
        text_lines=[line for entry in explained_leases for line in entry_lines(entry, now)],
    )


LISTING = Listing(
    name="queue",
    details="""ETA is a range that comes from the time limits of the leases before; it is "unknown" where a
lease has no time limit, and for jobs that wait for the pool. `gpushare why LEASE` tells more about one
request.

\b
Examples:
  gpushare queue
  gpushare queue --explain
  gpushare queue --pool
  gpushare queue -o json
""",
    schema="gpushare.queue/1",
    columns=(
        Column("pos", right=True),
        Column("lease"),
        Column("node", least=8, pool=True),
        Column("name", least=16),
        Column("user", least=12),
        Column("class"),
        Column("asks"),
        Column("waited", right=True),
        Column("eta"),
        Column("image", least=16),
        Column("reason", least=20),
        Column("code", wide=True),
        Column("isolation", wide=True),
        Column("preset", wide=True),
        Column("project", wide=True),
        Column("priority", wide=True, right=True),
    ),
    drops=("image", "class", "waited", "asks", "user", "eta"),
    fetch=fetch,
    explains=True,
    own_options=(OwnOption(("--pool",), "Show who waits for the pool, and who waits on each node."),),
)


class QueueExplanation(NamedTuple):
    """Hold a waiting lease's explanation, and its project."""

    explanation: Explanation
    project: Project | None

    def to_json(self) -> dict[str, Any]:
        """Return the lease, with the explanation of its wait beside it."""
        item = self.explanation.to_json()
        standing = self.project.to_json() if self.project is not None else None
        details = {name: item[name] for name in ("refusals", "kept", "fits_now")}
        return {**item["lease"], **details, "standing": standing}


def explained(client: Client, ids: Sequence[str]) -> list[QueueExplanation]:
    """Return the explanations of the leases that still wait, in the queue's order."""
    projects = {project.name: project for project in client.projects().projects}
    entries = []
    for lease in ids:
        with suppress(NotFound):
            explanation = client.explain(lease)
            if explanation.lease.waiting is not None:
                entries.append(QueueExplanation(explanation, projects.get(explanation.lease.project)))
    return sorted(entries, key=_position)


def _position(entry: QueueExplanation) -> int:
    waiting = entry.explanation.lease.waiting
    return waiting.position if waiting is not None else 0


def entry_lines(entry: QueueExplanation, now: float) -> Iterator[str]:
    from gpushared.cli.why import aside, container  # a plain listing does not need it

    lease = entry.explanation.lease
    waiting = lease.waiting
    if waiting is None:
        return
    start = text.start(waiting.start_from, waiting.start_to, now)
    facts = f"asks {lease.asks}, {lease.lease_class}, of {lease.owner}, waits for {waited(lease, now)}, start {start}"
    yield f"{waiting.position} of {waiting.queue_length}: {lease.id}, {facts}"
    yield from container(lease)
    yield f"  why      {waiting.text or waiting.reason} ({waiting.reason})"
    yield from aside(entry.explanation, now)
    if entry.project is not None:
        yield f"  project  {_standing(entry.project)}"


def _standing(project: Project) -> str:
    quotas = "; ".join(filter(None, map(_quota, project.quotas)))
    used = f"used {project.decayed_gpu_seconds / HOUR_SECONDS:.1f} GPU hours lately ({project.use_ratio:.0%})"
    unit = "GPU" if project.held_permille == ONE_GPU else "GPUs"
    holds = f"{project.name} holds {text.share(project.held_permille)} {unit}"
    return ", ".join(filter(None, (holds, quotas, used)))


def _quota(quota: Quota) -> str:
    parts = [f"guaranteed {text.share(quota.guaranteed_permille)}"]
    parts += [f"fixed {text.share(quota.fixed_permille)}"] if quota.fixed_permille else []
    parts += [f"at most {text.share(quota.limit_permille)}"] if quota.limit_permille is not None else []
    return " and ".join(parts) + (f" on {quota.model}" if quota.model else "")
