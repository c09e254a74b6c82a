"""Placement on a host whose memory is held by more leases than there is room for."""

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.fleet import Fleet, NoPlace, Placement
from gpushared.domain.scheduling.placement.hosts import Host


def test_a_lease_that_needs_no_more_memory_comes_back_to_a_host_that_has_none() -> None:
    """Paused leases keep their memory on the host, and must not lock each other out."""
    gpu = Gpu(GpuId("g0"), 0, "GPU", 80_000 * MIB, 80_000 * MIB)
    fleet = Fleet([Host("h", (gpu,), memory_bytes=10 * MIB)])
    fleet.take(LeaseId("paused"), Request(0, host_memory_bytes=20 * MIB), Placement("h", ()))
    assert isinstance(fleet.place(Request(compute_permille=500, memory_permille=500)), Placement)
    wants_memory = Request(compute_permille=500, memory_permille=500, host_memory_bytes=MIB)
    assert isinstance(fleet.place(wants_memory), NoPlace)
