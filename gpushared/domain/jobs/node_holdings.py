"""List the holders of GPUs on a node: the reported ones, and the placed ones without a report yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpushared.domain.jobs.coordinator_state import PoolState, is_over
from gpushared.domain.jobs.job import (
    HERE,
    Cancelling,
    Job,
    NodeName,
    Part,
    Placing,
    Running,
)
from gpushared.domain.jobs.member import Holding, Member
from gpushared.domain.jobs.quota_owners import QuotaOwners, payer_of
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Grant,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.pass_records import PreemptionMode, RunningLease
from gpushared.domain.scheduling.projects import Policy

_HOLDS = (Placing, Running, Cancelling)


@dataclass(frozen=True, slots=True)
class PlacedHolder:
    """Hold a holder and its source. For a job, ``node_report`` is the holding that the node reports for it."""

    holder: RunningLease
    source: Job | Holding
    node_report: Holding | None = None

    @property
    def lease(self) -> LeaseId:
        return self.holder.lease.id

    def is_still(self, source: Job | Holding, grants: tuple[Grant, ...], project: str) -> bool:
        """Return True if the same entry would be made again.

        A node's new report is equal but has other objects.
        """
        same = source is self.source or (isinstance(source, Holding) and source == self.source)
        return same and grants == self.holder.lease.grants and project == self.holder.project


def holders_on(
    member: Member,
    gpus: frozenset[GpuId],
    previous: Mapping[LeaseId, tuple[PlacedHolder, object]],
    state: PoolState,
    policy: Policy,
    quota_owners: QuotaOwners,
) -> Iterator[PlacedHolder]:
    """Yield all holders of a node's ``gpus``; GPUs that belong to other nodes are left out.

    ``previous`` has the entries of the last pass, and unchanged entries are reused.
    """
    name, free = member.name, member.free
    holdings = {
        (holding.attempt.job, holding.attempt.number): holding
        for holding in free.holdings
        if holding.attempt is not None
    }
    job_holding_ids = set()
    for job_id in sorted(state.by_node.get(name) or ()):
        job = state.jobs[job_id]
        if not isinstance(job.state, _HOLDS):
            continue
        part = next(part for part in job.parts if part.node == name)
        before = previous.get(part_id(job, part))
        holding = holdings.get((job.id, job.state.attempt))
        job_holding_ids.add(id(holding))
        if before is not None and before[0].source is job and before[0].node_report == holding:
            yield before[0]
            continue
        grants = (
            _without_surplus(holding.grants, part.request)
            if holding
            else state.booked.get(job.id, {}).get(name, ())
        )
        if grants := _on(gpus, grants):
            same = before is not None and before[0].is_still(job, grants, payer_of(job))
            holder = before[0].holder if same and before else _of_job(job, part, grants, policy)
            yield PlacedHolder(holder, job, holding)
    for other in free.holdings:
        if id(other) in job_holding_ids or _is_known(other, name, state):
            continue
        if grants := _on(gpus, other.grants):
            before, project = previous.get(_id_of_other(other, name)), quota_owners.project_of(other, member)
            if before is not None and before[0].is_still(other, grants, project):
                yield before[0]
            else:
                holder = _of_other(replace(other, grants=grants), name, project, state.started_at)
                yield PlacedHolder(holder, other)


def _on(gpus: frozenset[GpuId], grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Return the grants on these GPUs. A node can only report holdings of its own GPUs."""
    if all(grant.gpu in gpus for grant in grants):
        return grants
    return tuple(grant for grant in grants if grant.gpu in gpus)


def _without_surplus(grants: tuple[Grant, ...], request: Request) -> tuple[Grant, ...]:
    """Return each GPU of a node's report on a part once, and no more GPUs than were asked for."""
    most = len(request.gpus) or max(request.gpu_count, request.max_gpu_count or 0)
    once = {grant.gpu: grant for grant in reversed(grants)}
    if len(once) == len(grants) <= most:
        return grants
    return tuple(sorted(once.values(), key=lambda grant: grant.gpu)[:most])


def part_id(job: Job, part: Part) -> LeaseId:
    """Return the name under which the coordinator books a part."""
    return LeaseId(job.id if part.rank == 0 else f"{job.id}#{part.rank}")


def _is_known(holding: Holding, name: NodeName, state: PoolState) -> bool:
    """Return True if the holding belongs to an attempt of ours, live or already over."""
    if holding.attempt is None:
        return False
    job = state.jobs.get(holding.attempt.job)
    if job is None:
        return holding.attempt.job in state.ended
    if not isinstance(job.state, _HOLDS):
        return holding.attempt.number <= job.attempts
    if job.state.attempt != holding.attempt.number:
        return holding.attempt.number < job.attempts
    return any(part.node == name for part in job.parts)


def _of_job(job: Job, part: Part, grants: tuple[Grant, ...], policy: Policy) -> RunningLease:
    assert isinstance(job.state, Placing | Running | Cancelling)
    request, since = job.spec.request, job.state.since
    limit = request.time_limit_seconds
    running = isinstance(job.state, Running)
    lease = Lease(
        id=part_id(job, part),
        sequence=job.sequence,
        request=part.request,
        owner_uid=0,
        owner_name=job.spec.owner.person,
        created_at=job.submitted_at,
        state=Active(grants, ContainerId(""), since) if running else Reserved(grants, since, since),
        device_name="",
        expires_at=since + limit if running and limit is not None else None,
        project=payer_of(job),
    )
    priority = policy.classes[request.lease_class].priority + job.priority
    leaving = isinstance(job.state, Cancelling) or is_over(part)
    # The age of a turn counts from the grant, not from the time at which the container was up.
    granted_at = job.state.granted_at if isinstance(job.state, Running) else 0.0
    # A holder that counts to no quota is not weighed against the guarantees of others.
    stays = job.told_by != HERE
    return RunningLease(
        lease,
        lease.project,
        priority,
        granted_at or since,
        step=PreemptionMode.REQUEUE if job.starts_again else PreemptionMode.STOP,
        leaving=leaving,
        served=job.served_seconds,
        begun_anew=job.preemptions,
        stays=stays,
    )


def _of_other(holding: Holding, name: NodeName, project: str, since: float) -> RunningLease:
    """Return another holding as a running lease.

    The start of the holding is not reported, so it counts from our start.
    """
    isolation = Isolation.EXCLUSIVE if holding.exclusive else Isolation.SHARED
    request = Request(gpu_count=len(holding.grants), isolation=isolation)
    lease = Lease(
        id=_id_of_other(holding, name),
        sequence=0,
        request=request,
        owner_uid=0,
        owner_name=holding.owner,
        created_at=since,
        state=Active(holding.grants, ContainerId(""), since),
        device_name="",
        project=project,
    )
    return RunningLease(lease, project, 0, since, stays=True)


def _id_of_other(holding: Holding, name: NodeName) -> LeaseId:
    return LeaseId(f"{name}/{holding.lease}")
