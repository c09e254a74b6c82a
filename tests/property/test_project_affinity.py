"""Leases of one project together: what that may never cost, and that it knows who is where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.gpu_choice import rate
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import (
    PlacementPolicy,
    PolicyName,
    Together,
    policy_for,
)
from gpushared.domain.scheduling.placement.request_shape import Need

GIB = 1024 * MIB
PROJECTS = st.sampled_from(["", "red", "blue"])


def slice_of(count: int, share: int, project: str) -> Request:
    return Request(count, share, None, share, project=project)


def whole(count: int, project: str) -> Request:
    return Request(count, 1000, None, 1000, Isolation.EXCLUSIVE, project=project)


REQUESTS = st.one_of(
    st.builds(slice_of, st.sampled_from([1, 1, 1, 2]), st.sampled_from([100, 250, 400, 500]), PROJECTS),
    st.builds(whole, st.sampled_from([1, 2]), PROJECTS),
)
STEPS = st.lists(st.tuples(REQUESTS, st.booleans(), st.integers(0, 5)), max_size=25)


def fleet_of(sizes: list[int], policy: PolicyName, together: Together) -> Fleet:
    hosts = [
        Host(
            f"h{number}",
            tuple(Gpu(GpuId(f"h{number}/{at}"), at, "H100", 80 * GIB, 80 * GIB) for at in range(size)),
        )
        for number, size in enumerate(sizes)
    ]
    return Fleet(hosts, policy, together=together)


def untouched(fleet: Fleet, placed: Placement) -> int:
    return sum(not fleet.capacity(grant.gpu).leases for grant in placed.grants)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(PolicyName), STEPS)
def test_it_costs_no_room_for_whole_gpus_and_undoing_leaves_it_as_made_anew(sizes, name, steps):
    fleet = fleet_of(sizes, name, Together.PROJECT)
    held: dict[LeaseId, tuple[Request, Placement]] = {}
    policy = policy_for(name, fleet.demand_profile)
    for number, (request, stays, ending) in enumerate(steps):
        answer, alone = fleet.place(request), as_made_anew(fleet, held, sizes, name, Together.OFF)
        plain = alone.place(request)
        assert fleet.place(request) == as_made_anew(fleet, held, sizes, name, Together.PROJECT).place(request)
        assert type(answer) is type(plain), "what fits alone fits together"
        if not isinstance(answer, Placement) or not isinstance(plain, Placement):
            continue
        if policy.whole_gpus_last:
            assert untouched(fleet, answer) <= untouched(fleet, plain)
        if request.wants_whole_gpus:
            assert cost(alone, answer, request, policy) == cost(alone, plain, request, policy)
        mark, lease = fleet.mark(), LeaseId(f"l-{number}")
        fleet.take(lease, request, answer)
        if not stays:
            fleet.undo(mark)
            continue
        held[lease] = (request, answer)
        if ending < len(held):
            gone = list(held)[ending]
            del held[gone]
            fleet.give(gone)


def as_made_anew(
    fleet: Fleet,
    held: dict[LeaseId, tuple[Request, Placement]],
    sizes: list[int],
    name: PolicyName,
    together: Together,
) -> Fleet:
    other = fleet_of(sizes, name, together)
    other.demand_profile = fleet.demand_profile
    other.book_existing([(lease, request, placed.grants) for lease, (request, placed) in held.items()])
    return other


def cost(fleet: Fleet, placed: Placement, request: Request, policy: PlacementPolicy) -> object:
    """What the best place of that host costs for whoever cares for no project."""
    return rate(Need.of(request), fleet.free(placed.host), policy)
