"""What the answer of a resize says of walls and policies that the daemons of other tests do not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases.node_rules import Action, Rules, WatchdogPolicy
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    ContainerId,
    Grant,
    Lease,
    LeaseId,
    MemoryWall,
    Queued,
    Requeued,
    Reserved,
    Walls,
)
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.node.services.lease_views import resize_effects

GIB = 1024 * MIB
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 80 * GIB, 80 * GIB)


def state(action: Action) -> NodeState:
    rules = Rules(watchdog=dict.fromkeys(LeaseClass, WatchdogPolicy(action)))
    return NodeState(rules=rules, gpus={GPU.id: GPU})


def lease(gib: int, permille: int, wall: MemoryWall, cap: ComputeCap) -> Lease:
    return Lease(
        id=LeaseId("l-1"),
        sequence=1,
        request=Request(1, permille, gib * GIB),
        owner_uid=1000,
        owner_name="alice",
        created_at=0.0,
        state=Active((Grant(GPU.id, gib * GIB, permille),), ContainerId("box"), 0.0),
        device_name="l-1",
        walls=Walls(wall, cap),
    )


@pytest.mark.parametrize(
    ("wall", "cap", "action", "expected"),
    [
        (
            MemoryWall.MPS_SERVER,
            ComputeCap.MPS_PERCENTAGE,
            Action.KILL,
            ["booked now", "watchdog now", "MPS memory limit", "thread percentage", "MPS server"],
        ),
        (
            MemoryWall.DRIVER,
            ComputeCap.MPS_PERCENTAGE,
            Action.KILL,
            [
                "booked now",
                "watchdog now",
                "driver memory limit now",
                "MPS memory limit",
                "thread percentage",
            ],
        ),
        (
            MemoryWall.DRIVER,
            ComputeCap.NONE,
            Action.WARN,
            ["booked now", "watchdog now", "driver memory limit now", "compute"],
        ),
        (MemoryWall.WATCHDOG, ComputeCap.NONE, Action.KILL, ["booked now", "watchdog now", "compute"]),
        (MemoryWall.NONE, ComputeCap.NONE, Action.WARN, ["booked now", "watchdog now", "compute"]),
    ],
)
def test_each_wall_and_policy_has_its_own_effects(
    wall: MemoryWall, cap: ComputeCap, action: Action, expected: list[str]
) -> None:
    effects = resize_effects(lease(8, 250, wall, cap), lease(12, 500, wall, cap), state(action), None)
    assert [effect.partition(":")[0] for effect in effects] == expected
    assert ("warns" in effects[1]) is (action is Action.WARN)


def test_only_what_changed_is_told_of() -> None:
    before = lease(8, 250, MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
    after = lease(8, 500, MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
    effects = resize_effects(before, after, state(Action.KILL), None)
    assert [effect.partition(":")[0] for effect in effects] == ["booked now", "thread percentage"]


@pytest.mark.parametrize("waits", [Queued(0.0), Requeued(ContainerId("box"), 0.0, 1, ())])
def test_a_lease_that_waits_has_only_its_request(waits: Queued | Requeued) -> None:
    before = replace(lease(8, 250, MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE), state=waits)
    after = before.with_request(Request(1, 500, None, 500))
    assert resize_effects(before, after, state(Action.KILL), None) == [
        "asked for now: 0.5; it keeps its place in the queue"
    ]


def test_a_reservation_has_no_processes_to_speak_of() -> None:
    before, after = (
        replace(one, state=Reserved(one.grants, 0.0, 60.0))
        for size in (8, 12)
        for one in [lease(size, 250, MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)]
    )
    assert resize_effects(before, after, state(Action.KILL), None) == [
        "booked now: 12 GiB and 25% of the compute on GPU 0",
        "limits: those of its container, when it is created",
    ]
