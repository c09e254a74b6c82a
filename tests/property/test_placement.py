"""Placement against brute force on small nodes: nothing that does not fit, everything that does."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from gpushared.domain.model.gpu import (
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.domain.model.lease import Grant
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.placement.free_capacity import (
    STRAY_PERMILLE,
    FreeCapacity,
    is_grant,
    need_on,
    place,
)
from tests.property.worlds import GIB, INSTANCES, PINNED, REQUESTS, SIZES_MIB, SLICES, WHOLE, gpu, instance


@st.composite
def capacities(draw: st.DrawFn) -> dict[GpuId, FreeCapacity]:
    """Up to four GPUs, in use in all ways that can come about."""
    found = {}
    for index in range(draw(st.integers(1, 4))):
        trouble = draw(st.sampled_from((None, None, None, "is lost")))
        one = draw(
            st.sampled_from(
                (
                    *(gpu(index, size, trouble) for size in SIZES_MIB),
                    *(instance(index, 0, slices, trouble) for slices in (1, 2, 3, 7)),
                    replace(gpu(index, 80_000, trouble), leasable_bytes=0, split=True),
                )
            )
        )
        stray = draw(st.sampled_from((0, 0, GIB, 3 * GIB)))
        use = draw(st.sampled_from(("free", "free", "shared", "exclusive")))
        found[one.id] = _used(one, stray, use, draw(st.integers(1, 1000)), draw(st.integers(1, 1000)))
    return found


def _used(one: Gpu, stray: int, use: str, memory_permille: int, compute_permille: int) -> FreeCapacity:
    free = one.leasable_bytes - stray
    if use == "free":
        return FreeCapacity(one, free, WHOLE_PERMILLE, stray_bytes=stray)
    if use == "exclusive":
        return FreeCapacity(one, 0, 0, 1, exclusive=True, stray_bytes=stray)
    held = one.memory_of_share(memory_permille)
    return FreeCapacity(one, free - held, WHOLE_PERMILLE - compute_permille, 2, stray_bytes=stray)


def fits(request: Request, capacity: FreeCapacity) -> bool:
    """The definition, said without the reasons."""
    if capacity.gpu.trouble or capacity.exclusive or (request.gpus and capacity.gpu.id not in request.gpus):
        return False
    of_mig = request.isolation is Isolation.MIG
    if capacity.gpu.split or of_mig != (capacity.gpu.mig is not None):
        return False
    if of_mig and capacity.gpu.mig is not None and not _enough(request, capacity.gpu.mig):
        return False
    if request.wants_whole_gpus:
        quiet = capacity.stray_bytes * WHOLE_PERMILLE <= STRAY_PERMILLE * capacity.gpu.leasable_bytes
        return capacity.leases == 0 and quiet and capacity.free_bytes >= max(1, request.memory_bytes or 0)
    need = need_on(request, capacity.gpu)
    enough_memory = 0 < need.memory_bytes <= capacity.free_bytes
    return enough_memory and need.compute_permille <= capacity.free_permille


def _enough(request: Request, mig: MigInstance) -> bool:
    memory, compute = request.memory_permille or 0, request.compute_permille or 0
    return memory <= mig.memory_permille and compute <= mig.compute_permille


@given(REQUESTS, capacities())
def test_placement_grants_exactly_when_some_choice_of_gpus_fits(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """Every choice of so many GPUs is tried beside it."""
    count = len(request.gpus) or request.gpu_count
    possible = any(
        all(fits(request, capacity) for capacity in chosen) for chosen in combinations(world.values(), count)
    )
    answer = place(request, world)
    assert is_grant(answer) == possible
    if possible:
        _check_grants(request, [one for one in answer if isinstance(one, Grant)], world)


def _check_grants(request: Request, grants: list[Grant], world: dict[GpuId, FreeCapacity]) -> None:
    assert len({grant.gpu for grant in grants}) == len(grants) == (len(request.gpus) or request.gpu_count)
    for grant in grants:
        capacity = world[grant.gpu]
        assert fits(request, capacity)
        assert 0 < grant.memory_bytes <= capacity.free_bytes
        assert 0 < grant.compute_permille <= capacity.free_permille


@given(REQUESTS, capacities())
def test_every_gpu_that_was_not_good_enough_says_why(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """One refusal for each, none for those that fit."""
    answer = place(request, world)
    assume(not is_grant(answer))
    refused = {one.gpu for one in answer if not isinstance(one, Grant)}
    assert refused == {gpu for gpu, capacity in world.items() if not fits(request, capacity)}


@given(SLICES, capacities())
def test_a_slice_leaves_whole_gpus_whole_where_it_can(
    request: Request, world: dict[GpuId, FreeCapacity]
) -> None:
    """An untouched GPU is taken only when too few of those in use have room."""
    answer = place(request, world)
    assume(is_grant(answer))
    taken = [world[one.gpu] for one in answer]
    in_use = [capacity for capacity in world.values() if capacity.leases and fits(request, capacity)]
    fresh = sum(capacity.leases == 0 for capacity in taken)
    assert fresh == max(0, request.gpu_count - len(in_use))


@given(SLICES, capacities())
def test_a_slice_goes_where_least_is_left(request: Request, world: dict[GpuId, FreeCapacity]) -> None:
    """No other GPU in the same use would have been left with less compute."""
    answer = place(request, world)
    assume(is_grant(answer))
    taken = {one.gpu for one in answer}
    share = request.compute_permille or 0
    for gpu_id in taken:
        for other in world.values():
            if other.gpu.id in taken or not fits(request, other):
                continue
            if bool(other.leases) == bool(world[gpu_id].leases):
                assert other.free_permille - share >= world[gpu_id].free_permille - share


SPLIT = st.lists(
    st.tuples(st.sampled_from((1, 2, 3, 7)), st.sampled_from(("free", "free", "exclusive"))), min_size=1
).map(
    lambda chosen: {
        one.id: _used(one, 0, use, 1, 1)
        for one, use in ((instance(0, place, slices), use) for place, (slices, use) in enumerate(chosen))
    }
)


@given(INSTANCES, SPLIT)
def test_an_instance_is_the_smallest_that_will_do(request: Request, world: dict[GpuId, FreeCapacity]) -> None:
    """Every one that was passed over is at least as large, or would not do."""
    answer = place(request, world)
    assume(is_grant(answer))
    taken = {one.gpu for one in answer}
    largest = max(world[gpu_id].gpu.leasable_bytes for gpu_id in taken)
    left = [capacity for gpu_id, capacity in world.items() if gpu_id not in taken and fits(request, capacity)]
    assert all(capacity.gpu.leasable_bytes >= largest for capacity in left)


@given(st.one_of(SLICES, WHOLE, PINNED, INSTANCES), capacities())
def test_the_same_world_gives_the_same_answer(request: Request, world: dict[GpuId, FreeCapacity]) -> None:
    """In whatever order its GPUs are listed."""
    backwards = dict(reversed(list(world.items())))
    if is_grant(place(request, world)):
        assert set(place(request, world)) == set(place(request, backwards))
