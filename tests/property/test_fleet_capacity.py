"""On one host that is packed, the fleet answers the queue as the free capacity of the host does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Lease, LeaseId, Reserved
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.host_capacity import HostCapacity
from gpushared.domain.scheduling.placement.fleet_capacity import FleetCapacity, fleet_with
from gpushared.domain.scheduling.placement.free_capacity import free_capacities
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName

GIB = 1024 * MIB
SHARE = st.sampled_from([100, 250, 333, 500, 750, 1000])
REQUEST = st.builds(
    lambda count, share, isolation: Request(count, share, None, share, isolation),
    st.sampled_from([1, 1, 1, 2]),
    SHARE,
    st.sampled_from([Isolation.SHARED, Isolation.SHARED, Isolation.SEPARATE, Isolation.EXCLUSIVE]),
)


def _gpus(sizes: list[int]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(GpuId(f"g{at}"), at, f"{size}g", size * GIB, size * GIB) for at, size in enumerate(sizes)
    )


@given(
    st.lists(st.sampled_from([24, 80]), min_size=1, max_size=4),
    st.lists(REQUEST, max_size=12),
    REQUEST,
    st.data(),
)
def test_the_fleet_and_the_free_capacity_agree(sizes, asked, last, data):
    gpus = _gpus(sizes)
    capacities = HostCapacity({"": free_capacities(gpus, (), {})})
    fleet = FleetCapacity(fleet_with([Host("", gpus)], (), {}, PolicyName.PACK))
    held: list[Lease] = []
    for number, request in enumerate(asked):
        grants = capacities.place(request)
        assert fleet.place(request) == grants
        if grants:
            lease = Lease(
                LeaseId(f"l-{number}"), number, request, 0, "user", 0.0, Reserved(grants, 0.0, 0.0), "device"
            )
            held.append(lease)
            capacities.take(lease.id, request, grants)
            fleet.take(lease.id, request, grants)
    gone = [lease for lease in held if data.draw(st.booleans())]
    closed = {gpu.id for gpu in gpus if data.draw(st.integers(0, 3)) == 0}
    assert fleet.place(last, gone=gone, closed=closed) == capacities.place(last, gone=gone, closed=closed)
    for lease in gone:
        fleet.give(lease.id, lease.request, lease.grants)
        capacities.give(lease.id, lease.request, lease.grants)
    assert fleet.place(last, host="") == capacities.place(last, host="")
    made_anew = FleetCapacity(
        fleet_with([Host("", gpus)], [one for one in held if one not in gone], {}, PolicyName.PACK)
    )
    assert made_anew.place(last) == fleet.place(last)
