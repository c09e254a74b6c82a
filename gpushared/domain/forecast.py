"""When those who wait may start, from time limits alone: the queue played forward.

Asked for on demand, never while deciding. The times are estimates: leases may end sooner, and whoever asks
later may be placed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.policy.passes import Plan
from gpushared.domain.queue import granted
from gpushared.domain.requeue import wanted_request
from gpushared.domain.scheduling import pass_over
from gpushared.domain.state import NodeState

POSITIONS = 32
"""Further back, an estimate says nothing."""
STEPS = 64


def starts(state: NodeState, now: float) -> Mapping[LeaseId, float]:
    """When each waiting lease starts if every lease uses its whole time limit; those unknown are left out."""
    beyond = {lease.id for lease in state.waiting()[POSITIONS:]}
    state = _with(state, {lease: _due(one, now) for lease, one in state.leases.items() if lease not in beyond})
    found: dict[LeaseId, float] = {}
    at = now
    for _ in range(STEPS):
        plan = pass_over(state, at)
        for lease in (*plan.grants, *(one.winner for one in plan.preemptions)):
            found.setdefault(lease, at)
        state = _after(state, plan, at)
        ahead = [*_ends(state.leases.values()), plan.look_again_at]
        later = [moment for moment in ahead if at < moment < float("inf")]
        if not state.waiting() or not later:
            break
        at = min(later)
        state = _with(state, {lease: one for lease, one in state.leases.items() if not _is_over(one, at)})
    return found


def _after(state: NodeState, plan: Plan, at: float) -> NodeState:
    """With the plan's grants, and without those who give way for good."""
    leases = dict(state.leases)
    for preemption in plan.preemptions:
        for victim in preemption.victims:
            leases.pop(victim.lease, None)
    winners = {one.winner: one.grants for one in plan.preemptions}
    for lease, grants in (*plan.grants.items(), *winners.items()):
        asked = replace(leases[lease], request=wanted_request(leases[lease], state))
        leases[lease] = granted(asked, grants, at)
    return _with(state, leases)


def _due(lease: Lease, now: float) -> Lease:
    """One that should be over already: nobody knows when it will be."""
    return replace(lease, expires_at=None) if _is_over(lease, now) else lease


def _with(state: NodeState, leases: Mapping[LeaseId, Lease]) -> NodeState:
    return replace(state, leases=leases)


def _ends(leases: Iterable[Lease]) -> list[float]:
    return [lease.expires_at for lease in leases if lease.grants and lease.expires_at is not None]


def _is_over(lease: Lease, at: float) -> bool:
    return bool(lease.grants) and lease.expires_at is not None and lease.expires_at <= at
