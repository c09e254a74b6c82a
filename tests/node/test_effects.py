"""What a user is told of a new size, by the wall that the lease stands behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.gpu import MIB
from gpushared.domain.lease import Active, ComputeCap, ContainerId, Grant, Lease, MemoryWall, Walls
from gpushared.domain.state import NodeState
from gpushared.node.effects import resize_effects
from gpushared.testing.gpus import fake_gpu
from gpushared.testing.leases import SOME_TIME, fake_lease

GPU = fake_gpu(0)
STATE = NodeState(gpus={GPU.id: GPU})


def held(gib: int, wall: MemoryWall) -> Lease:
    grants = (Grant(GPU.id, gib * 1024 * MIB, 250),)
    lease = fake_lease(1, Active(grants, ContainerId("box"), SOME_TIME))
    return replace(lease, walls=Walls(wall, ComputeCap.MPS_PERCENTAGE))


@pytest.mark.parametrize(("wall", "told"), [(MemoryWall.MPS_SERVER, True), (MemoryWall.MPS_CLIENT, False)])
def test_who_resizes_a_separate_lease_is_told_that_its_server_keeps_its_limits(
    wall: MemoryWall, told: bool
) -> None:
    effects = resize_effects(held(8, wall), held(16, wall), STATE, None)
    assert any("keeps the limits it was started with" in line for line in effects) is told
