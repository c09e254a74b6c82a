"""What the rules make of a restart, and of words that come late. Pure: one event after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.instructions import StopContainer
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.lease import (
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Finished,
    Lease,
    LeaseId,
    MemoryWall,
    Queued,
    Reserved,
    Starting,
    Stopped,
    Walls,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.testing import fake_gpu, fake_lease

NOW = 1_800_000_000.0
BOX = ContainerId("b" * 64)
GPU = fake_gpu(0)
CALLER = Caller(1000, 1000, "alice")
QUARTER = Request(compute_permille=250, memory_permille=250)
LIMITED = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
NO_WALLS = Walls(MemoryWall.NONE, ComputeCap.NONE)


def granted() -> tuple[NodeState, Lease]:
    """A node whose one lease is reserved."""
    state = handle(NodeState(), m.GpusSurveyed((GPU,)), NOW).state
    step = handle(state, m.RequestSubmitted(QUARTER, CALLER), NOW)
    assert step.lease is not None
    return step.state, step.lease


def after(state: NodeState, *events: m.Event, at: float = NOW) -> Step:
    step = Step(state)
    for event in events:
        step = handle(step.state, event, at)
    return step


def running() -> tuple[NodeState, Lease]:
    state, lease = granted()
    made = m.EditsMade(lease.id, LIMITED)
    created = m.ContainerCreated(lease.id, BOX, "box", "image")
    step = after(state, made, created, m.ContainerSeen(BOX, m.Condition.RUNNING))
    return step.state, step.state.leases[lease.id]


def restarted(state: NodeState) -> NodeState:
    """What is left of a state after a crash, before the engine was asked."""
    fresh = restore(NodeState(rules=state.rules), state.leases.values(), state.next_sequence)
    return handle(fresh, m.GpusSurveyed((GPU,)), NOW).state


def test_a_container_keeps_the_walls_it_was_created_with() -> None:
    state, lease = running()
    step = after(state, m.EditsMade(lease.id, NO_WALLS))
    assert step.state.leases[lease.id].walls == LIMITED
    assert step.changed == ()


def test_a_reservation_takes_the_walls_of_its_newest_settings() -> None:
    state, lease = granted()
    step = after(state, m.EditsMade(lease.id, LIMITED), m.EditsMade(lease.id, NO_WALLS))
    assert step.state.leases[lease.id].walls == NO_WALLS


def test_settings_that_fail_end_no_reservation_before_the_engine_was_asked() -> None:
    """Its container may exist: then giving the place away would sell it twice."""
    state, lease = granted()
    failed = m.EditsFailed(lease.id, "the driver is away")
    assert lease.id not in after(state, failed).state.leases
    asked = restarted(state)
    assert isinstance(after(asked, failed).state.leases[lease.id].state, Reserved)
    surveyed = after(asked, m.EngineSurveyed((), NOW), failed)
    assert lease.id not in surveyed.state.leases


def test_a_create_that_a_restart_cut_off_holds_its_place_no_longer_than_a_claim() -> None:
    state, lease = granted()
    claimed = after(state, m.ClaimAsked(lease.id, CALLER)).state
    fresh = after(restarted(claimed), m.EngineSurveyed((), NOW), at=NOW + 5).state
    reserved = fresh.leases[lease.id].state
    assert isinstance(reserved, Reserved)
    assert (reserved.claimed, reserved.deadline) == (False, NOW + 5 + Rules().claim_seconds)


def test_a_stop_that_a_restart_cut_off_is_asked_for_at_once_with_the_grace_that_is_left() -> None:
    state, lease = running()
    stopping = after(state, m.StopAsked(lease.id, CALLER, 10)).state
    up = m.ContainerSeen(BOX, m.Condition.RUNNING, lease.device_name)
    step = after(restarted(stopping), m.EngineSurveyed((up,), NOW + 4), at=NOW + 4)
    assert StopContainer(lease.id, BOX, 6) in step.instructions
    again = after(step.state, m.EngineSurveyed((up,), NOW + 5), at=NOW + 5)
    assert again.instructions == ()


def test_the_exit_code_wins_over_the_removal_that_was_seen_first() -> None:
    """A survey may come between a container's end and the news of it."""
    state, lease = running()
    gone = after(state, m.ContainerSeen(BOX, m.Condition.GONE))
    late = after(gone.state, m.ContainerSeen(BOX, m.Condition.EXITED, exit_code=42))
    draining = late.state.leases[lease.id].state
    assert isinstance(draining, Draining)
    assert draining.outcome == Finished(42)


@pytest.mark.parametrize("known", [True, False])
def test_strangers_are_counted_before_the_first_survey_lets_anything_be_granted(known: bool) -> None:
    queued = fake_lease(1, request=replace(QUARTER, compute_permille=1000, memory_permille=1000))
    state = restore(NodeState(), [queued], 2)
    taken = m.GpusSampled(NOW, frozenset(), {GPU.id: 2**30 if known else 0}, frozenset({GPU.id}))
    lease = after(state, taken, m.GpusSurveyed((GPU,))).state.leases[queued.id]
    assert isinstance(lease.state, Queued) is known


def test_a_request_id_is_known_after_a_restart_though_its_lease_is_over() -> None:
    over = replace(fake_lease(1, Ended(Stopped("alice"), NOW)), request=QUARTER, request_id="once")
    state = restore(NodeState(), [], 2, [over])
    state = handle(state, m.GpusSurveyed((GPU,)), NOW).state
    asked = handle(state, m.RequestSubmitted(QUARTER, Caller(1000, 1000, "user1000"), "once"), NOW)
    assert asked.lease == over


def test_a_node_where_nobody_may_wait_still_grants_what_fits() -> None:
    state = replace(granted()[0], rules=Rules(max_queued=0))
    half = replace(QUARTER, compute_permille=500, memory_permille=500)
    step = handle(state, m.RequestSubmitted(half, CALLER), NOW)
    assert step.lease is not None
    assert isinstance(step.lease.state, Reserved)
    with pytest.raises(LimitReached):
        handle(step.state, m.RequestSubmitted(half, CALLER), NOW)


def test_a_restart_under_way_is_over_when_the_daemon_starts_again() -> None:
    state, lease = running()
    held = after(state, m.RestartAsked(lease.id, 10)).state
    fresh = restarted(held)
    starting = fresh.leases[LeaseId(lease.id)].state
    assert isinstance(starting, Starting)
    assert not starting.held
    up = m.ContainerSeen(BOX, m.Condition.RUNNING, lease.device_name)
    surveyed = after(fresh, m.EngineSurveyed((up,), NOW + 1), at=NOW + 1).state
    assert type(surveyed.leases[lease.id].state).__name__ == "Active"
