"""The use of a GPU by each of its leases: known where the driver tells it or leaves no doubt, else missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Active, ContainerId, Grant, Lease, LeaseId
from gpushared.node.runtime.sampler import LeaseUse, lease_uses
from gpushared.ports import GpuProcess, GpuReading
from gpushared.testing import fake_lease

GPU = GpuId("GPU-0")
A, B = LeaseId("l-a"), LeaseId("l-b")
MIB = 1024 * 1024


def reading(*processes: GpuProcess, whole: float | None = 0.5, used: int | None = 9 * MIB) -> GpuReading:
    return GpuReading(GPU, used, whole, processes=processes)


def running(lease: LeaseId, gpu: GpuId) -> Lease:
    return replace(fake_lease(), id=lease, state=Active((Grant(gpu, MIB, 500),), ContainerId("box"), 0.0))


@pytest.mark.parametrize(
    ("seen", "leases", "expected"),
    [
        pytest.param(
            reading(GpuProcess(1, 2 * MIB, utilization_ratio=0.3), GpuProcess(2, MIB, utilization_ratio=0.1)),
            {1: A, 2: B},
            {A: LeaseUse(2 * MIB, 0.3), B: LeaseUse(MIB, 0.1)},
            id="each process has its own figure",
        ),
        pytest.param(
            reading(GpuProcess(1, MIB, utilization_ratio=0.7), GpuProcess(3, MIB, utilization_ratio=0.7)),
            {1: A, 3: A},
            {A: LeaseUse(2 * MIB, 1.0), B: LeaseUse(0, 0.0)},
            id="processes add up to a whole GPU at most, and a lease without a process uses nothing",
        ),
        pytest.param(
            reading(GpuProcess(1, None), GpuProcess(2, MIB)),
            {1: A, 2: B},
            {A: LeaseUse(None, None), B: LeaseUse(MIB, None)},
            id="what the driver does not tell of processes on a shared GPU is missing",
        ),
        pytest.param(
            reading(GpuProcess(1, MIB), whole=0.0),
            {1: A},
            {A: LeaseUse(MIB, 0.0), B: LeaseUse(0, 0.0)},
            id="an idle GPU is idle for each of its leases",
        ),
        pytest.param(
            reading(GpuProcess(7, MIB, utilization_ratio=0.5)),
            {},
            {A: LeaseUse(0, None), B: LeaseUse(0, None)},
            id="a process that cannot be attributed leaves the use of all open",
        ),
        pytest.param(
            reading(GpuProcess(1, MIB, utilization_ratio=0.2), whole=0.0),
            {1: A},
            {A: LeaseUse(MIB, 0.2), B: LeaseUse(0, 0.0)},
            id="a process counts also if the whole was read a moment later",
        ),
        pytest.param(
            GpuReading(GPU, trouble="fell off the bus"),
            {},
            {A: LeaseUse(None, None), B: LeaseUse(None, None)},
            id="a GPU that cannot be read leaves all missing",
        ),
    ],
)
def test_a_lease_uses_what_its_processes_use(
    seen: GpuReading, leases: dict[int, LeaseId], expected: dict[LeaseId, LeaseUse]
) -> None:
    found = lease_uses([seen], leases, [running(A, GPU), running(B, GPU)])
    assert found == {(lease, GPU): use for lease, use in expected.items()}


def test_a_lease_that_is_alone_on_its_gpu_has_the_gpus_use() -> None:
    found = lease_uses([reading(GpuProcess(1, MIB))], {1: A}, [running(A, GPU)])
    assert found == {(A, GPU): LeaseUse(MIB, 0.5)}
