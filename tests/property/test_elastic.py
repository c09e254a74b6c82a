"""Elastic requests against brute force and under a stream of others: large, but never at anybody's cost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from gpushared.domain.leases.explain import bounds, count_bounds
from gpushared.domain.leases.granting import decisions
from gpushared.domain.model.elastic import (
    as_held,
    is_elastic,
    largest,
    least,
    most,
)
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacity,
    is_grant,
    need_on,
    place,
)
from tests.property.test_placement import capacities
from tests.property.test_queue import BIG, SMALL, Node, limited, node
from tests.property.worlds import COUNT_RANGES, ELASTIC, LIMITS, MEMORY_RANGES, REQUESTS, SHARE_RANGES


def granted(request: Request, world: dict[GpuId, FreeCapacity]) -> tuple[Grant, ...]:
    answer = place(request, world)
    return tuple(grant for grant in answer if isinstance(grant, Grant)) if is_grant(answer) else ()


def grown(request: Request, world: dict[GpuId, FreeCapacity]) -> tuple[Grant, ...]:
    return largest(request, lambda size: granted(size, world))


@given(SHARE_RANGES, capacities())
def test_a_range_of_shares_gets_the_largest_that_fits(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """Not one thousandth more would, nor any larger share."""
    low, high = request.compute_permille or 0, request.max_compute_permille or 0
    shares = [grant.compute_permille for grant in grown(request, world)]
    got = max(shares, default=low - 1)
    assert set(shares) <= {got}
    for share in {got + 1, *range(got + 1, high + 1, 97)} - {high + 1}:
        assert not granted(replace(least(request), compute_permille=share, memory_permille=share), world)


@given(MEMORY_RANGES, capacities())
def test_a_mib_more_than_a_range_of_memory_gets_would_not_fit(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    grants = grown(request, world)
    assume(grants)
    memory = grants[0].memory_bytes
    assert memory == (request.max_memory_bytes or 0) or not granted(
        replace(least(request), memory_bytes=memory + MIB), world
    )


@given(COUNT_RANGES, capacities())
def test_a_range_of_gpus_gets_all_that_are_free_up_to_its_end(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    one = replace(least(request), gpu_count=1)
    free = sum(bool(granted(replace(one, gpus=(gpu,)), world)) for gpu in world)
    expected = min(free, request.max_gpu_count or 0)
    assert len(grown(request, world)) == (expected if expected >= request.gpu_count else 0)


@given(ELASTIC, capacities())
def test_whether_a_range_fits_is_a_matter_of_its_least(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """So whatever looks at waiting requests may look at them as if they were not elastic."""
    assert (
        bool(grown(request, world)) == bool(granted(least(request), world)) == bool(granted(request, world))
    )


@given(ELASTIC, capacities())
def test_the_same_world_gives_the_same_size(request: Request, world: dict[GpuId, FreeCapacity]) -> None:
    """In whatever order its GPUs are listed."""
    backwards = dict(reversed(list(world.items())))
    assert sorted(grown(request, world), key=str) == sorted(grown(request, backwards), key=str)


@given(REQUESTS, capacities())
def test_what_was_held_is_a_request_for_exactly_that(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """For containers whose settings cannot change any more."""
    grants = grown(request, world)
    assume(grants)
    again = as_held(request, grants)
    assert not is_elastic(again)
    assert sorted(granted(again, world), key=str) == sorted(grants, key=str)


# --- on a node -----------------------------------------------------------------------------------------


def check(world: Node) -> None:
    """Nothing is sold twice, and every grant is what was asked for."""
    for capacity in world.state.capacities().values():
        assert capacity.free_permille >= 0
        assert capacity.free_bytes >= 0
    for lease in world.state.holders():
        check_range(lease, world)


def check_range(lease: Lease, world: Node) -> None:
    request = lease.request
    fewest, top = count_bounds(request)
    assert fewest <= len(lease.grants) <= top
    if request.wants_whole_gpus:
        return
    assert len({grant.compute_permille for grant in lease.grants}) == 1 or request.compute_permille is None
    for grant in lease.grants:
        gpu = world.state.gpus[grant.gpu]
        low, high = need_on(least(request), gpu), need_on(most(request), gpu)
        assert low.memory_bytes <= grant.memory_bytes <= min(high.memory_bytes, gpu.leasable_bytes)
        assert low.compute_permille <= grant.compute_permille <= max(high.compute_permille, 1)
        assert (grant.compute_limit_permille or WHOLE_PERMILLE) >= grant.compute_permille
        ends = bounds(request, grant, gpu)
        assert ends[0].memory_bytes <= grant.memory_bytes <= ends[1].memory_bytes


@given(st.integers(1, 3), st.lists(st.tuples(REQUESTS, st.integers(0, 3)), min_size=1, max_size=25))
def test_a_grant_is_within_its_range_and_nothing_is_sold_twice(
    gpus: int, asked: list[tuple[Request, int]]
) -> None:
    """Whoever asks, and whoever ends."""
    world = node(gpus)
    for request, ends in asked:
        try:
            world.ask(request)
        except GpushareError:
            continue
        check(world)
        for lease in world.state.holders()[:ends]:
            world.end(lease.id)
            check(world)


@given(
    st.integers(1, 3),
    st.lists(SMALL, min_size=1, max_size=8),
    BIG,
    st.lists(st.tuples(ELASTIC, LIMITS), min_size=10, max_size=10),
)
def test_a_range_that_passes_the_head_never_delays_it(
    gpus: int, before: list[Request], big: Request, stream: list[tuple[Request, int | None]]
) -> None:
    """Its start, which time limits tell, never moves back, and what it waits for never grows."""
    world = node(gpus)
    for request in before:
        world.ask(limited(request))
    count = min(gpus, big.gpu_count)
    head = world.ask(Request(count, 1000, None, 1000, isolation=Isolation.EXCLUSIVE))
    known = float("inf")
    held: set[LeaseId] | None = None
    for request, limit in stream:
        first = next((one for one in decisions(world.state, world.now) if one.lease == head), None)
        if first is None or first.reservation is None or first.reservation.head != head:
            break
        kept = first.reservation
        assert kept.start_at <= known
        unlimited = {
            lease.id
            for lease in world.state.holders()
            if lease.expires_at is None and any(grant.gpu in kept.gpus for grant in lease.grants)
        }
        assert held is None or unlimited <= held
        known, held = kept.start_at, unlimited
        world.now += 1.0
        if request.gpu_count <= gpus:
            world.ask(replace(request, time_limit_seconds=limit))
        check(world)
