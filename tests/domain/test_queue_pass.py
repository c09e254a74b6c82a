"""What the queue's policy is told of a node's leases."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.queue_pass import holder
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Active, ContainerId, LeaseId
from gpushared.domain.model.request import Caller, Request

ALICE = Caller(1000, 1000, "alice")
BOX = ContainerId("box")
HALF = Request(1, 500, None, 500)


def _of_an_old_journal() -> tuple[NodeState, LeaseId]:
    """A lease of half a GPU that is reserved since 1000, of which it is not said since when it holds that."""
    gpu = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
    state = handle(NodeState(), m.GpusSurveyed((gpu,)), 1000.0).state
    step = handle(state, m.RequestSubmitted(HALF, ALICE), 1000.0)
    assert step.lease is not None
    lease = step.lease.id
    leases = {lease: replace(step.state.leases[lease], held_since=None)}
    return replace(step.state, leases=leases), lease


def test_a_lease_of_an_old_journal_has_held_its_gpus_since_it_was_in_its_state() -> None:
    """It does not start anew with each look, which would keep it from ever giving way."""
    state, lease = _of_an_old_journal()
    found = holder(state.leases[lease], state, state.policy, 4600.0)
    assert found.started_at == state.leases[lease].holds_since == 1000.0


def test_its_use_is_counted_from_then_too_whatever_states_it_goes_through() -> None:
    state, lease = _of_an_old_journal()
    runs: list[m.Event] = [
        m.ClaimAsked(lease, ALICE),
        m.ContainerCreated(lease, BOX, "box", "image"),
        m.ContainerSeen(BOX, Condition.RUNNING),
    ]
    for event in runs:
        state = handle(state, event, 2800.0).state
    active = state.leases[lease].state
    assert isinstance(active, Active)
    assert active.since == 2800.0
    assert holder(state.leases[lease], state, state.policy, 4600.0).started_at == 1000.0
    ends: list[m.Event] = [
        m.ContainerSeen(BOX, Condition.EXITED, exit_code=0),
        m.GpusSampled(4600.0, frozenset(), {}, frozenset(state.gpus)),
    ]
    for event in ends:
        state = handle(state, event, 4600.0).state
    assert lease not in state.leases
    assert state.usage.total("alice") == 3600 * 0.5
