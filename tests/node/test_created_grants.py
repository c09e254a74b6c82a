"""What a look at a container expects it to have, in each state of its lease: by the rule alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from gpushared.domain.leases.node_machine import restore
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    TRANSITIONS,
    Active,
    ContainerId,
    Draining,
    Grant,
    Lease,
    LeaseId,
    LeaseState,
    Paused,
    Requeued,
    Resuming,
    Starting,
    Stopped,
    Suspended,
    Suspending,
    WithContainer,
)
from gpushared.domain.model.request import Request
from gpushared.node.runtime.container_verifier import given_gpus, minors_of
from gpushared.ports import MachineDevices

BOX = ContainerId("box")
FIRST, SECOND, PART = GpuId("GPU-1"), GpuId("GPU-2"), GpuId("MIG-1")
GPUS = {
    FIRST: Gpu(FIRST, 0, "H100", 80 * MIB, 80 * MIB),
    SECOND: Gpu(SECOND, 1, "H100", 80 * MIB, 80 * MIB),
    PART: Gpu(PART, 0, "H100 MIG 1g.10gb", 10 * MIB, 10 * MIB, parent=FIRST),
}
HELD = (Grant(FIRST, 20 * MIB, 250),)
SMALLER = (Grant(FIRST, 10 * MIB, 125),)
ELSEWHERE = (Grant(SECOND, 20 * MIB, 250),)
STATES: tuple[LeaseState, ...] = (
    Starting(HELD, BOX, 0.0, 60.0),
    Active(HELD, BOX, 0.0),
    Paused(HELD, BOX, 0.0),
    Suspending(HELD, BOX, 0.0, 60.0, wanted=True),
    Suspended(BOX, 0.0, 7, HELD, None, wanted=False),
    Suspended(BOX, 0.0, 7, HELD, 60.0, wanted=True),
    Resuming(HELD, BOX, 0.0, 60.0),
    Draining(HELD, BOX, 0.0, Stopped("root"), exited=False, retry_at=60.0),
    Requeued(BOX, 0.0, 7, HELD),
)
MACHINE = MachineDevices({195: "nvidia"}, {FIRST: 3, SECOND: 4})


def lease(state: LeaseState, created: tuple[Grant, ...] = HELD) -> Lease:
    request = Request(1, 250, 20 * MIB)
    return Lease(LeaseId("l-1"), 1, request, 1000, "alice", 0.0, state, "l-1", created_grants=created)


def restored(one: Lease) -> Lease:
    """As the next life of the daemon has it."""
    return restore(NodeState(), [one], 2).leases[one.id]


def test_the_table_has_every_state_that_has_a_container() -> None:
    known = {state for pair in TRANSITIONS for state in pair if state in get_args(WithContainer)}
    assert {type(state) for state in STATES} == known


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize(
    "created", [HELD, SMALLER, ()], ids=["as created", "resized since", "of an earlier release"]
)
def test_in_every_state_it_is_known_what_a_container_was_created_with(
    state: LeaseState, created: tuple[Grant, ...]
) -> None:
    for one in (lease(state, created), restored(lease(state, created))):
        assert given_gpus(one, GPUS) == frozenset({FIRST})
        assert minors_of(one, GPUS, MACHINE) == frozenset({3})
    assert restored(lease(state, created)).created_grants == (created or HELD)


def test_one_that_is_restarted_without_its_grants_keeps_what_it_was_created_with() -> None:
    state = Draining((), BOX, 0.0, Stopped("root"), exited=False, retry_at=60.0)
    assert given_gpus(lease(state), GPUS) == frozenset({FIRST})
    assert given_gpus(restored(lease(state, ())), GPUS) is None, "an earlier release did not write it"


def test_one_that_was_started_on_another_gpu_may_have_both() -> None:
    """Settings that come at each start are of the GPUs that the lease has by then."""
    assert given_gpus(lease(Active(ELSEWHERE, BOX, 0.0)), GPUS) == frozenset({FIRST, SECOND})
    assert given_gpus(lease(Suspended(BOX, 0.0, 7, ELSEWHERE, None, wanted=True)), GPUS) == frozenset(
        {FIRST, SECOND}
    )


def test_an_instances_gpu_belongs_to_it() -> None:
    one = lease(Active((Grant(PART, 10 * MIB, 1000),), BOX, 0.0), (Grant(PART, 10 * MIB, 1000),))
    assert given_gpus(one, GPUS) == frozenset({PART, FIRST})
    assert minors_of(one, GPUS, MACHINE) == frozenset({3})
    # Before the GPUs have been looked at nobody knows which GPU it is a part of.
    assert minors_of(one, {}, MACHINE) is None


def test_while_a_gpu_is_off_the_bus_no_device_is_held_against_its_container() -> None:
    both = lease(Active((*HELD, *ELSEWHERE), BOX, 0.0))
    assert minors_of(both, GPUS, MACHINE) == frozenset({3, 4})
    assert minors_of(both, GPUS, replace(MACHINE, minors={FIRST: 3})) is None
