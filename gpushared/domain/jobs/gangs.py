"""Place gangs: jobs whose parts start together or not at all.

A pass looks at gangs before all other jobs, in the order of the gangs. Small jobs would take each GPU that
becomes free. So for the first gang that has waited for long, the pass keeps the nodes on which the gang will
have room soonest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpushared.domain.jobs.cluster_snapshot import (
    ClusterCapacity,
    in_full,
    marked,
    with_models_of,
)
from gpushared.domain.jobs.coordinator_state import PoolDraft
from gpushared.domain.jobs.job import (
    HERE,
    Job,
    JobFailed,
    NodeName,
    Part,
    Queued,
)
from gpushared.domain.jobs.job_progress import begin, end
from gpushared.domain.jobs.node_holdings import part_id
from gpushared.domain.jobs.orders import port_for
from gpushared.domain.model.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import PassDecision
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity, refuse
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.quota_usage import QuotaUsage, size_on
from gpushared.domain.scheduling.scheduling_pass import NO_ROOM

LOOKED_AT = 64
LOOKED_AT_ALIKE = 4

Share = tuple[NodeName, Request, tuple[Grant, ...]]
"""A node, its part of the request, and the grants for that part."""


def place_gangs(cluster: ClusterCapacity, holder_index: HolderIndex, draft: PoolDraft) -> bool:
    """Place the gangs that have room; return True if more gangs may have room."""
    names = draft.state.gangs.first(LOOKED_AT, LOOKED_AT_ALIKE)
    if not names:
        return False
    quota_usage = QuotaUsage(holder_index, draft.state.usage, draft.now)
    jobs = sorted(
        (draft.state.jobs[name] for name in names), key=lambda job: _order(job, holder_index.policy)
    )
    placed = False
    for job in jobs:
        if job.told_by != HERE:
            _end_unvouched(job, draft)
            continue
        decision = _over_limit(job, quota_usage, cluster) or _place(job, cluster, draft)
        if decision is None:
            placed = True
            continue
        draft.state.decisions = {**draft.state.decisions, LeaseId(job.id): decision}
        if not cluster.reserved_gpus and _has_waited_long(job, draft):
            cluster.reserved_gpus = _gpus_to_reserve(job, cluster)
    return placed and bool(draft.state.gangs)


def _end_unvouched(job: Job, draft: PoolDraft) -> None:
    """End a job that is known only from a node's report.

    The report of one node is not enough to run the job on other nodes.
    """
    reason = f"only node {job.told_by} told of it, which may not speak for {job.spec.owner.principal}"
    end(job, JobFailed(reason, hint="submit it again, and it is run"), reason, draft)


def _order(job: Job, policy: Policy) -> tuple[int, int]:
    rules = policy.classes[job.spec.request.lease_class]
    return -(rules.priority + job.priority), job.sequence


def _over_limit(job: Job, quota_usage: QuotaUsage, cluster: ClusterCapacity) -> PassDecision | None:
    """Return the decision that the project's limit forbids the gang, or None if some model has room."""
    request, times = in_full(job.spec.request, cluster.models()), job.spec.nodes
    models = [gpu for gpu in cluster.models().values() if not request.models or gpu.name in request.models]
    for gpu in models:
        remaining = quota_usage.left_to_limit(job.project, gpu.name, request.lease_class)
        if remaining is None or size_on(request, gpu) * times <= remaining:
            return None
    if not models:
        return None
    return quota_usage.beyond_limit(job.project, request, models, times)


def _place(job: Job, cluster: ClusterCapacity, draft: PoolDraft) -> PassDecision | None:
    """Begin the gang if all of its parts have room, with ranks in the order of the nodes' names."""
    shares = sorted(_spread(job, cluster) if job.spec.span else _on_each(job, cluster))
    if not shares:
        return NO_ROOM
    first, *rest = (
        Part(node, request, rank, address=draft.address_of(node))
        for rank, (node, request, _) in enumerate(shares)
    )
    parts = (replace(first, port=_port(job, first.node, draft)), *rest)
    for part, (_, request, grants) in zip(parts, shares, strict=True):
        cluster.take(part_id(job, part), request, grants)
    begin(job, parts, {node: grants for node, _, grants in shares}, draft)
    return None


def _port(job: Job, node: NodeName, draft: PoolDraft) -> int:
    """Return a port of the node that no other gang uses."""
    names = draft.state.by_node.get(node) or ()
    parts = (part for name in names for part in draft.state.jobs[name].parts if part.node == node)
    return port_for(AttemptKey(job.id, job.attempts + 1), {part.port for part in parts})


def _on_each(job: Job, cluster: ClusterCapacity) -> list[Share]:
    """Return shares on as many different nodes as the job asks for, each with the whole request.

    Return no share if too few nodes have room.
    """
    request = marked(job.spec.request, job.spec.target, job.refused_by)
    used: frozenset[GpuId] = cluster.reserved_gpus
    shares: list[Share] = []
    for _ in range(job.spec.nodes):
        grants = cluster.place(request, closed=used)
        if not grants:
            return []
        node = NodeName(cluster.host_of(grants[0].gpu))
        used = used.union(cluster.gpus_of(node))
        shares.append((node, with_models_of(node, job.spec.request, cluster), grants))
    return shares


def _spread(job: Job, cluster: ClusterCapacity) -> list[Share]:
    """Spread the GPUs over as few nodes as possible; the last is the node that its part fits best."""
    remaining, used, shares = job.spec.request.gpu_count, cluster.reserved_gpus, list[Share]()
    for count, node in _capable(job, cluster):
        if remaining <= 0:
            break
        share = replace(job.spec.request, gpu_count=min(remaining, count))
        host: str | None = node if count < remaining else None
        request = marked(share, NodeName(""), job.refused_by)
        grants = cluster.place(request, closed=used, host=host)
        if not grants:
            continue
        chosen = NodeName(cluster.host_of(grants[0].gpu))
        used = used.union(cluster.gpus_of(chosen))
        shares.append((chosen, with_models_of(chosen, share, cluster), grants))
        remaining -= share.gpu_count
    return shares if remaining <= 0 else []


def _capable(job: Job, cluster: ClusterCapacity) -> list[tuple[int, NodeName]]:
    """Return the nodes with the number of GPUs that each has free for the job, the largest number first."""
    request = _single(job, cluster)
    counts = []
    for host in cluster.hosts():
        if host in job.refused_by or (job.spec.target and host != job.spec.target):
            continue
        count = sum(
            capacity.gpu.id not in cluster.reserved_gpus and refuse(request, capacity) is None
            for capacity in cluster.capacities_on(host)
        )
        if count:
            counts.append((-count, NodeName(host)))
    return [(-count, host) for count, host in sorted(counts)]


def _single(job: Job, cluster: ClusterCapacity) -> Request:
    """Return the job's request for one GPU."""
    request = in_full(job.spec.request, cluster.models())
    return replace(request, gpu_count=1, near=(), away_from=())


# --- reserved nodes ------------------------------------------------------------------------------------


def _has_waited_long(job: Job, draft: PoolDraft) -> bool:
    assert isinstance(job.state, Queued)
    return job.submitted_at + draft.rules.gang_patience_seconds <= draft.now


def _gpus_to_reserve(job: Job, cluster: ClusterCapacity) -> frozenset[GpuId]:
    """Return the GPUs of the emptiest nodes that would have room for the job if nothing else ran there."""
    remaining = job.spec.request.gpu_count if job.spec.span else job.spec.nodes
    gpus: frozenset[GpuId] = frozenset()
    for count, host in _emptiest(job, cluster):
        if remaining <= 0:
            break
        if job.spec.span or count >= job.spec.request.gpu_count:
            gpus = gpus.union(cluster.gpus_of(host))
            remaining -= count if job.spec.span else 1
    return gpus if remaining <= 0 else frozenset()


def _emptiest(job: Job, cluster: ClusterCapacity) -> Iterator[tuple[int, str]]:
    """Yield nodes with the number of GPUs that they would have for the job if they were empty.

    The nodes with the most free capacity come first.
    """
    request = _single(job, cluster)
    free = {
        host: sum(capacity.free_permille for capacity in cluster.capacities_on(host))
        for host in cluster.hosts()
    }
    for host in sorted(free, key=lambda name: (-free[name], name)):
        capacities = [_emptied(capacity) for capacity in cluster.capacities_on(host)]
        count = sum(refuse(request, capacity) is None for capacity in capacities)
        if count and host not in job.refused_by:
            yield count, host


def _emptied(capacity: FreeCapacity) -> FreeCapacity:
    return FreeCapacity(
        capacity.gpu,
        capacity.gpu.leasable_bytes - capacity.stray_bytes,
        WHOLE_PERMILLE,
        stray_bytes=capacity.stray_bytes,
    )
