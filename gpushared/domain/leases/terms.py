"""Check and complete an incoming request, and teach placement its size."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.gpu_names import models_named
from gpushared.domain.model.lease import Ended, Lease, LeaseId
from gpushared.domain.model.request import Request, check_priority
from gpushared.domain.scheduling.placement.demand_profile import DemandProfile
from gpushared.domain.scheduling.placement.request_shape import size_of


def check_terms(request: Request, draft: Draft) -> None:
    """Raise RequestError, or NotFound for a lease that the request names and nobody knows."""
    check_priority(request.priority)
    for name in (*request.after, *request.near, *request.away_from):
        draft.find(LeaseId(name))


def without_ended(request: Request, leases: Collection[LeaseId]) -> Request:
    """Return the request without the leases that are over, so that it may be asked again much later."""
    live = {name: tuple(lease for lease in getattr(request, name) if lease in leases) for name in _NAMING}
    return replace(request, after=live["after"], near=live["near"], away_from=live["away_from"])


_NAMING = ("after", "near", "away_from")


def with_models(request: Request, gpus: Collection[Gpu]) -> Request:
    """Return the request with its models by their full names; raises NeverFits for an unknown model."""
    if not request.models or not gpus:
        return request
    models = models_named(request.models, gpus)
    return request if models == request.models else replace(request, models=models)


def with_request(demand_profile: DemandProfile, request: Request, gpus: Iterable[Gpu]) -> DemandProfile:
    """Return the demand profile with one more request."""
    size = size_of(request, gpus)
    if size is None:
        return demand_profile
    demand_profile = demand_profile.copy()
    demand_profile.see(size)
    return demand_profile


def demand_profile_of(leases: Iterable[Lease]) -> DemandProfile:
    """Return the demand profile of earlier requests, the oldest first, from the leases after a restart."""
    demand_profile = DemandProfile()
    for lease in leases:
        size = size_of(_by_share(lease))
        if size is not None:
            demand_profile.see(size)
    return demand_profile


def _by_share(lease: Lease) -> Request:
    """Return a request for bytes with its granted share beside them; this needs no GPU."""
    request = lease.request
    grants = lease.state.grants if isinstance(lease.state, Ended) else lease.grants
    if request.compute_permille is not None or request.memory_permille is not None or not grants:
        return request
    return replace(request, compute_permille=grants[0].compute_permille)
