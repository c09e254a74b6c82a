"""Place jobs: one bounded pass over the queue, by the same policy as on a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from gpushared.domain.jobs import liveness
from gpushared.domain.jobs.cluster_snapshot import (
    ClusterCapacity,
    ClusterSnapshot,
    in_full,
    marked,
    with_models_of,
)
from gpushared.domain.jobs.coordinator_state import PoolDraft
from gpushared.domain.jobs.gangs import place_gangs
from gpushared.domain.jobs.job import (
    HERE,
    Ending,
    EndKind,
    Job,
    JobFailed,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Then,
)
from gpushared.domain.jobs.job_progress import begin, cancel, end
from gpushared.domain.jobs.pending_jobs import JobShape
from gpushared.domain.jobs.placement_reasons import Lack, lack_of_room
from gpushared.domain.jobs.unreported_jobs import unreported_permille
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.lease import Grant, JobId, Lease, LeaseId
from gpushared.domain.model.lease import Queued as LeaseQueued
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PassDecision,
    PendingRequest,
    Plan,
    Preemption,
    WaitReason,
)
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.queue_order import shared

Decisions = Mapping[LeaseId | JobShape, PassDecision]


def run_pass_if_due(draft: PoolDraft, snapshot: ClusterSnapshot) -> None:
    """Run a pass over the queue if one is due: something changed, or time alone may let a job start."""
    state = draft.state
    due = state.stale or state.plan_again_at <= draft.now
    if not due or draft.now < state.plan_at:
        return
    state.stale, state.planned_at, state.plan_again_at = False, draft.now, NEVER
    if not state.waiting and not state.gangs:
        state.decisions, state.under_way = {}, {}
    elif draft.rules.here:
        _place_here(draft)
    else:
        _pass_over(draft, snapshot)


def _place_here(draft: PoolDraft) -> None:
    """Put jobs that may start into the node's own queue, in order, with a bound for each person."""
    most, begun = draft.rules.placed_at_once, 0
    queued = _in_the_queue(draft)
    for name in draft.state.waiting.first(most, most):
        job = draft.state.jobs[name]
        if queued[job.spec.owner.person] < draft.rules.here_at_once:
            queued[job.spec.owner.person] += 1
            begin(job, (Part(HERE, replace(job.spec.request, priority=job.priority)),), {}, draft)
            begun += 1
    draft.state.stale = bool(begun and draft.state.waiting)


def _in_the_queue(draft: PoolDraft) -> Counter[str]:
    """Return, for each person, the number of jobs that were sent to the node itself and do not run yet."""
    placed = (draft.state.jobs[name] for name in draft.state.by_node.get(HERE) or ())
    return Counter(job.spec.owner.person for job in placed if isinstance(job.state, Placing))


def _pass_over(draft: PoolDraft, snapshot: ClusterSnapshot) -> None:
    state, rules, policy = draft.state, draft.rules, draft.state.policy
    cluster, holder_index = snapshot.refresh(state, policy, draft.now), snapshot.holder_index
    holder_index.unreported = unreported_permille(holder_index, state)
    state.decisions = {}
    more = place_gangs(cluster, holder_index, draft)
    names = state.waiting.first(rules.looked_at, rules.looked_at_alike)
    names += [name for name in _winners(draft) if name not in names]
    names = [name for name in names if liveness.has_client(state.jobs[name], state, draft.now)]
    pass_plan = plan(
        _candidates(names, cluster, snapshot, draft),
        holder_index,
        cluster,
        state.usage,
        policy,
        draft.now,
        under_way=tuple(state.under_way.values()),
        turns=state.turns,
    )
    _carry_out(pass_plan, cluster, snapshot, draft)
    if more or (pass_plan.grants and len(state.waiting)):
        state.stale = True
    state.plan_again_at = pass_plan.look_again_at


def _candidates(
    names: Iterable[JobId], cluster: ClusterCapacity, snapshot: ClusterSnapshot, draft: PoolDraft
) -> list[PendingRequest]:
    """Return the jobs as requests; most of them waited in the last pass too."""
    state, policy, previous = draft.state, draft.state.policy, snapshot.candidates
    candidates: dict[JobId, tuple[Job, PendingRequest]] = {}
    for name in names:
        job, before = state.jobs[name], previous.get(name)
        if before is None or before[0] is not job:
            before = job, candidate(job, policy, cluster.models())
        candidates[name] = before
    snapshot.candidates = candidates
    return [request for _, request in candidates.values()]


def candidate(job: Job, policy: Policy, models: Mapping[str, Gpu]) -> PendingRequest:
    """Return a waiting job as the policy sees it. ``models`` are the pool's models by their names."""
    assert isinstance(job.state, Queued)
    request = in_full(job.spec.request, models)
    lease = Lease(
        id=LeaseId(job.id),
        sequence=job.sequence,
        request=shared(marked(request, job.spec.target, job.not_on)),
        owner_uid=0,
        owner_name=job.spec.owner.person,
        created_at=job.submitted_at,
        state=LeaseQueued(job.state.since),
        device_name="",
        project=job.project,
    )
    priority = policy.classes[request.lease_class].priority + job.priority
    return PendingRequest(lease, job.project, priority, job.submitted_at, served=job.served_seconds)


def _winners(draft: PoolDraft) -> list[JobId]:
    """Return the waiting jobs for which others leave, and forget those that wait no more."""
    state = draft.state
    under_way = {
        name: state.under_way[name] for name in state.under_way if JobId(name) in state.waiting.where
    }
    if len(under_way) != len(state.under_way):
        state.under_way = under_way
    return [JobId(lease) for lease in under_way]


def _carry_out(
    pass_plan: Plan, cluster: ClusterCapacity, snapshot: ClusterSnapshot, draft: PoolDraft
) -> None:
    """Carry out a pass's decisions: at most ``placed_at_once`` placements, and all preemptions."""
    state = draft.state
    for name, grants in islice(pass_plan.grants.items(), draft.rules.placed_at_once):
        _place(state.jobs[JobId(name)], grants, cluster, draft)
    granted, under_way = pass_plan.grants.keys(), state.under_way
    state.under_way = {name: under_way[name] for name in under_way if name not in granted}
    for preemption in pass_plan.preemptions:
        _make_room(preemption, draft)
    state.turns = pass_plan.turns
    state.decisions = {**state.decisions, **_decisions(pass_plan, draft)}
    _fail_impatient_jobs(snapshot, draft)


def _place(job: Job, grants: tuple[Grant, ...], cluster: ClusterCapacity, draft: PoolDraft) -> None:
    node = NodeName(cluster.host_of(grants[0].gpu))
    part = Part(node, with_models_of(node, job.spec.request, cluster), address=draft.address_of(node))
    begin(job, (part,), {node: grants}, draft)


def _make_room(preemption: Preemption, draft: PoolDraft) -> None:
    """Cancel the preempted jobs; each of them waits again if it may."""
    state = draft.state
    state.under_way = {**state.under_way, preemption.winner: preemption}
    winner = state.jobs[JobId(preemption.winner)]
    names = [victim.lease for victim in preemption.victims]
    text = f"{', '.join(names)} to give way to it, because {preemption.why}"
    draft.put(winner.note(draft.now, text))
    for name in names:
        victim = state.jobs.get(JobId(name.partition("#")[0]))
        if victim is not None and isinstance(victim.state, Placing | Running):
            reason = f"it gives way to job {winner.id}, because {preemption.why}"
            then = Then.REQUEUE if victim.starts_again else Then.FAIL
            victim = replace(victim, preemptions=victim.preemptions + 1)
            cancel(victim, then, reason, draft, reason, ending=Ending(EndKind.PREEMPTED, reason))


def _fail_impatient_jobs(snapshot: ClusterSnapshot, draft: PoolDraft) -> None:
    """Fail the jobs that asked not to wait, and interactive jobs that could only wait in vain."""
    for lease, decision in draft.state.decisions.items():
        job = None if isinstance(lease, JobShape) else draft.job(JobId(lease))
        if job is None or lease in draft.state.under_way:
            continue
        # Another job stands before this one. The check waits for this job's turn, because it costs a lot with
        # many jobs.
        is_new = job.spec.interactive and lease not in draft.base.decisions
        if job.spec.immediate or is_new:
            lack = _lack(job, decision, snapshot, draft)
            if job.spec.immediate or lack.hopeless:
                end(job, JobFailed(lack.sentence, hint=lack.hint), lack.sentence, draft)


def _lack(job: Job, decision: PassDecision, snapshot: ClusterSnapshot, draft: PoolDraft) -> Lack:
    if decision.reason is not WaitReason.RESOURCES:
        return Lack(Reason.RESOURCES, decision.text)
    return lack_of_room(job, draft.state, draft.now, snapshot)


def _decisions(pass_plan: Plan, draft: PoolDraft) -> Decisions:
    """Return the reasons why the jobs wait.

    The decision on a shape also serves for jobs of that shape that the pass did not reach.
    """
    decisions: dict[LeaseId | JobShape, PassDecision] = {}
    for lease, decision in pass_plan.verdicts.items():
        decisions[lease] = decision
        where = draft.state.waiting.where.get(JobId(lease))
        if where is not None:
            decisions.setdefault(where[1], decision)
    return decisions
