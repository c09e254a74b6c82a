"""Count the pool's limits on a node's own leases: the amounts held, the waiting requests, the pool's view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.requeue import wanted_request
from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.scheduling.allowance import Allowance, ShareNeed
from gpushared.domain.scheduling.gpu_amounts import permille_on
from gpushared.domain.scheduling.outcome import Decision
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.domain.scheduling.projects import gpus
from gpushared.domain.scheduling.quota_usage import size_on

Held = Mapping[tuple[str, str], int]
"""Permille of GPUs by the pool's project and the GPU model; an empty model stands for all models together."""


def drawn(state: NodeState) -> Held:
    """Return the permille that the node's own leases hold of each project that the pool limits."""
    held: dict[tuple[str, str], int] = defaultdict(int)
    for lease in state.holders():
        project = state.draws_on(lease)
        for grant in lease.grants if project else ():
            for model, size in _sizes(grant, state):
                held[project, model] += size
    return held


def _sizes(grant: Grant, state: NodeState) -> Iterable[tuple[str, int]]:
    gpu = state.gpus.get(grant.gpu)
    if gpu is None:
        return (("", grant.compute_permille),)
    size = permille_on(grant, gpu)
    return (("", size), (gpu.name, size))


def told_project(lease: Lease, state: NodeState) -> str:
    """Return the project of the pool to which a lease counts, as the node reports it to the pool.

    Projects of one name may have other people on the node than in the pool. So the lease of a user who is not
    in the pool's project counts as a project of that user's own.
    """
    allowance = state.allowance
    if allowance is None or state.is_of_pool(lease):
        return lease.payer
    found = allowance.project_of(lease.owner_name, lease.payer)
    limited = {share.project for share in allowance.shares}
    return found or (lease.owner_name if lease.payer in limited else lease.payer)


def wants(state: NodeState, decisions: Mapping[LeaseId, Decision]) -> tuple[ShareNeed, ...]:
    """Return the needs of requests that wait because the node may give no more by itself."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for decision in decisions.values():
        if decision.reason is not Reason.POOL_ALLOWANCE:
            continue
        lease = state.leases[decision.lease]
        model, size = _least(lease, state)
        found[state.draws_on(lease), ""].append(size)
        found[state.draws_on(lease), model].append(size)
    return tuple(
        ShareNeed(project, model, min(sizes), sum(sizes)) for (project, model), sizes in sorted(found.items())
    )


def _least(lease: Lease, state: NodeState) -> tuple[str, int]:
    """Return the model on which a request counts for the least, and that size."""
    request = wanted_request(lease, state)
    models = [gpu for gpu in state.gpus.values() if not request.models or gpu.name in request.models]
    size, model = min(((size_on(request, gpu), gpu.name) for gpu in models), default=(0, ""))
    return model, size


def check_growth(lease: Lease, grants: Sequence[Grant], state: NodeState) -> None:
    """Raise LimitReached if the pool's limits forbid a lease to grow to these grants."""
    project, allowance = state.draws_on(lease), state.allowance
    if not project or allowance is None:
        return
    held = drawn(state)
    for key, more in _growth(lease, grants, state).items():
        most = allowance.most(project, key)
        if most is not None and more > 0 and held.get((project, key), 0) + more > most:
            raise LimitReached(
                f"{_said(allowance, project, key, most)}, and {gpus(held.get((project, key), 0))} is held",
                hint="the pool's coordinator allows more to requests that wait: ask for a new lease",
            )


def _growth(lease: Lease, grants: Sequence[Grant], state: NodeState) -> Mapping[str, int]:
    more: dict[str, int] = defaultdict(int)
    for sign, several in ((-1, lease.grants), (1, grants)):
        for grant in several:
            for model, size in _sizes(grant, state):
                more[model] += sign * size
    return more


def _said(allowance: Allowance, project: str, model: str, most: int) -> str:
    of = f" of model {model}" if model else ""
    return f"pool {allowance.pool} lets this node give {gpus(most)}{of} to project {project} by itself"
