"""Show a node's state to the policy: one pass over its queue."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.requeue import (
    PreemptionStep,
    is_leaving,
    placement_request,
    step_of,
)
from gpushared.domain.leases.surroundings import size_of_host
from gpushared.domain.model.lease import (
    Draining,
    Lease,
    LeaseId,
    Promised,
    Requeued,
    Suspended,
    Suspending,
)
from gpushared.domain.model.request import Isolation
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PendingRequest,
    Plan,
    Preemption,
    PreemptionMode,
    RunningLease,
    Victim,
)
from gpushared.domain.scheduling.placement.fleet_capacity import FleetCapacity, fleet_with
from gpushared.domain.scheduling.placement.hosts import Host, link_groups
from gpushared.domain.scheduling.placement.policies import Together
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import Policy
from gpushared.domain.scheduling.quota_usage import QuotaUsage

HOST = ""
"""A node is one host."""

_MODES = {
    PreemptionStep.SUSPEND: PreemptionMode.PAUSE,
    PreemptionStep.REQUEUE: PreemptionMode.REQUEUE,
    PreemptionStep.STOP: PreemptionMode.STOP,
}


def pass_over(state: NodeState, now: float) -> Plan:
    """Return the policy's plan for now; the state itself stays as it is."""
    waiting, policy = state.waiting(), state.policy
    return plan(
        [candidate(lease, state, policy) for lease in waiting],
        [holder(lease, state, policy, now) for lease in state.holders()],
        fleet_of(state),
        state.usage,
        policy,
        now,
        under_way=[
            _under_way(lease.id, lease.preemption.promised) for lease in waiting if lease.preemption.promised
        ],
        turns=state.turns,
    )


def quota_usage(state: NodeState, fleet: FleetCapacity, now: float) -> QuotaUsage:
    """Return the projects' holdings and limits on the node as they are now."""
    policy = state.policy
    holders = [holder(lease, state, policy, now) for lease in state.holders()]
    return QuotaUsage(HolderIndex(policy, fleet, holders), state.usage, now)


def fleet_of(state: NodeState) -> FleetCapacity:
    """Return the node as a fleet of one host."""
    gpus, size = tuple(state.effective_gpus()), size_of_host(state)
    host = Host(HOST, gpus, size.cpu_milli, size.memory_bytes, link_groups(gpus))
    rules, leases = state.rules, [_of_project(lease, state) for lease in state.leases.values()]
    return FleetCapacity(
        fleet_with([host], leases, state.stray_bytes, rules.placement, state.demand_profile, rules.together)
    )


def _of_project(lease: Lease, state: NodeState) -> Lease:
    """Return the lease with its project in the request, by which placement knows a project's leases."""
    if state.rules.together is Together.OFF:
        return lease
    return replace(lease, request=replace(lease.request, project=lease.payer))


def candidate(lease: Lease, state: NodeState, policy: Policy) -> PendingRequest:
    """Return a waiting lease as a candidate, with the request by which it is placed now."""
    request = placement_request(lease, state)
    return PendingRequest(
        _of_project(lease if request is lease.request else replace(lease, request=request), state),
        lease.payer,
        _priority(lease, policy),
        lease.state.since if isinstance(lease.state, Requeued | Suspended) else lease.created_at,
        is_held=bool(lease.held_by),
        begin_at=state.begins_at(lease.request),
        after=tuple(LeaseId(name) for name in lease.request.after if LeaseId(name) in state.leases),
        served=lease.preemption.served_seconds,
        yields=_yields(lease, state, policy),
    )


def holder(lease: Lease, state: NodeState, policy: Policy, now: float) -> RunningLease:
    """Return a lease that holds something, and the cost of taking it back."""
    step = PreemptionStep.SUSPEND if isinstance(lease.state, Suspending) else step_of(lease, state)
    since = lease.holds_since
    return RunningLease(
        _of_project(lease, state),
        lease.payer,
        _priority(lease, policy),
        now if since is None else since,
        saved_at=now if step is PreemptionStep.SUSPEND else None,
        step=_MODES[step],
        leaving=is_leaving(lease) or isinstance(lease.state, Draining | Suspending),
        begun_anew=lease.preemption.begun_anew,
        served=lease.preemption.served_seconds,
        behind=lease.preemption.behind,
    )


def _priority(lease: Lease, policy: Policy) -> int:
    return policy.classes[lease.request.lease_class].priority + lease.request.priority


def _yields(lease: Lease, state: NodeState, policy: Policy) -> bool:
    """Return True if the lease would be suspended, not stopped, on a node where leases give way at all."""
    means, rules = state.means, policy.classes[lease.request.lease_class]
    able = not means.no_checkpoint and (
        means.checkpoint_with_mps or lease.request.isolation is Isolation.EXCLUSIVE
    )
    return able and rules.min_run_seconds < NEVER


def _under_way(winner: LeaseId, promised: Promised) -> Preemption:
    victims = tuple(Victim(lease, PreemptionMode.REQUEUE, 0.0) for lease in promised.victims)
    return Preemption(winner, promised.grants, victims, promised.why, promised.turn)
