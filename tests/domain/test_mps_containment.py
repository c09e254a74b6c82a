"""Faults of MPS servers: what victims are told, who is ended, who is started again, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.instructions import InspectContainer, StartContainer, StopContainer
from gpushared.domain.leases.node_machine import restore
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import (
    Active,
    Draining,
    Ended,
    Failed,
    Finished,
    LeaseId,
    Starting,
    state_name,
)
from gpushared.domain.model.request import Request
from tests.domain.test_gpu_health import ALICE, BOB, ONE, QUARTER, ROOT, Node, box, stops, told

AGAIN = Request(1, 250, None, 250, restart_on_fault=2)
PATIENCE = 30.0


def fault(node: Node, *victims: LeaseId, culprit: LeaseId | None = None, after: float = 0.25) -> Step:
    """A look that finds the server of GPU 0 in its fault."""
    return node.send(m.ServerFaulted((ONE.id,), frozenset(victims), culprit), after)


def starts(step: Step) -> list[StartContainer]:
    return [one for one in step.instructions if isinstance(one, StartContainer)]


def recover(node: Node) -> Step:
    """Long enough after the last look that found a fault."""
    return node.send(m.Tick(), 4.0)


def test_victims_and_culprit_are_told_what_happened() -> None:
    node = Node()
    victim, culprit = node.run(), node.run(caller=BOB)
    for _ in range(3):
        fault(node, victim, culprit, culprit=culprit)
    assert told(node.lease(victim))[-1] == (
        f"the MPS server on GPU 0 met a fault caused by lease {culprit} of bob"
    )
    assert told(node.lease(culprit))[-1] == "its own process caused a fault of the MPS server on GPU 0"
    assert node.lease(victim).health.fault
    assert not node.lease(culprit).health.fault
    assert [told(node.lease(one)).count(told(node.lease(one))[-1]) for one in (victim, culprit)] == [1, 1]


def test_whoever_was_alone_on_a_server_broke_it() -> None:
    node = Node()
    lease = node.run(AGAIN)
    fault(node, lease)
    node.exit(lease, 1)
    assert node.outcome(lease) == Finished(1)


def test_that_the_others_have_left_makes_nobody_the_culprit() -> None:
    node = Node()
    first, last = node.run(), node.run(caller=BOB)
    fault(node, first, last)
    fault(node, last)
    assert node.lease(last).health.fault == "the MPS server on GPU 0 met a fault"


@pytest.mark.parametrize(("code", "failed"), [(0, False), (1, True), (134, True), (137, False), (143, False)])
def test_a_victim_that_ends_by_its_fault_has_failed(code: int, failed: bool) -> None:
    """Success is success, and whoever was killed was killed by somebody."""
    node = Node()
    victim, culprit = node.run(), node.run(caller=BOB)
    fault(node, victim, culprit, culprit=culprit)
    node.exit(victim, code)
    because = f"the MPS server on GPU 0 met a fault caused by lease {culprit} of bob"
    hint = "run it again; with `--restart-on-fault 3` that happens by itself"
    expected = Failed(f"its container ended with {code} because {because}", hint)
    assert node.outcome(victim) == (expected if failed else Finished(code))
    node.exit(culprit, code)
    assert node.outcome(culprit) == Finished(code)


def test_a_victim_whose_end_was_seen_before_the_fault_has_failed_all_the_same() -> None:
    node = Node()
    victim, other = node.run(), node.run(caller=BOB)
    node.exit(victim, 1)
    fault(node, victim, other, culprit=other, after=0.0)
    outcome = node.outcome(victim)
    assert isinstance(outcome, Failed)
    assert "ended with 1 because the MPS server on GPU 0" in outcome.reason
    node.sample()
    assert isinstance(node.lease(victim).state, Ended)


def test_who_holds_on_to_a_broken_server_for_too_long_is_ended() -> None:
    node = Node()
    victim, culprit, idle = node.run(), node.run(caller=BOB), node.run()
    node.sample(used_bytes={one: {ONE.id: MIB} for one in (victim, culprit)})
    fault(node, victim, culprit, idle, culprit=culprit)
    assert stops(fault(node, victim, culprit, idle, culprit=culprit, after=PATIENCE - 0.5)) == []
    step = fault(node, victim, culprit, idle, culprit=culprit, after=0.5)
    assert {one.lease for one in stops(step)} == {victim, culprit}
    for lease in (victim, culprit):
        outcome = node.outcome(lease)
        assert isinstance(outcome, Failed)
        assert "hold on to the broken MPS server on GPU 0 for 30 s" in outcome.reason
    assert isinstance(node.lease(idle).state, Active), "it has left the server"


def test_a_container_that_outlives_a_fault_is_rid_of_it() -> None:
    node = Node()
    victim, other = node.run(), node.run(caller=BOB)
    fault(node, victim, other, culprit=other)
    node.send(m.Tick(), PATIENCE + 11)
    assert told(node.lease(victim))[-1] == "it goes on after the fault"
    node.exit(victim, 1)
    assert node.outcome(victim) == Finished(1)


def test_a_victim_that_asked_for_it_is_started_again_when_the_server_is_well() -> None:
    node = Node()
    victim, culprit = node.run(AGAIN), node.run(caller=BOB)
    fault(node, victim, culprit, culprit=culprit)
    step = node.exit(victim, 1)
    assert starts(step) == [] == starts(node.send(m.Tick(), 1.0))
    assert told(node.lease(victim))[-1] == "the container ended with 1; it is to be started again (1 of 2)"
    fault(node, victim, culprit, culprit=culprit)
    assert starts(node.send(m.Tick(), 2.5)) == [], "the culprit clings to the server"
    assert starts(node.send(m.Tick(), 2.5)) == [StartContainer(victim, box(victim))]
    assert starts(node.send(m.Tick(), 1.0)) == [], "once is enough"
    node.exit(victim, 1)  # an old word, from before the start
    step = node.send(m.RestartDone(victim))
    assert InspectContainer(box(victim)) in step.instructions
    node.send(m.ContainerSeen(box(victim), Condition.RUNNING))
    lease = node.lease(victim)
    assert (state_name(lease.state), lease.health.restarts, lease.health.fault) == ("active", 1, "")
    assert lease.grants[0].gpu == ONE.id


def test_a_start_that_does_not_come_about_is_tried_again_and_given_up_in_the_end() -> None:
    node = Node()
    victim, other = node.run(AGAIN), node.run(caller=BOB)
    fault(node, victim, other, culprit=other)
    node.exit(victim, 1)
    assert starts(recover(node))
    assert starts(node.send(m.Tick(), 9.0)) == []
    assert starts(node.send(m.Tick(), 1.0))
    assert starts(node.send(m.Tick(), 200.0)) == []
    assert node.outcome(victim) == Failed(
        "its container could not be started again", "see the log of gpushared and `docker logs`"
    )


def test_after_so_many_restarts_a_victim_has_failed() -> None:
    node = Node()
    victim, culprit = node.run(AGAIN), node.run(caller=BOB)
    for number in (1, 2):
        fault(node, victim, culprit, culprit=culprit)
        node.exit(victim, 1)
        recover(node)
        node.send(m.RestartDone(victim))
        node.send(m.ContainerSeen(box(victim), Condition.RUNNING))
        assert node.lease(victim).health.restarts == number
    fault(node, victim, culprit, culprit=culprit)
    node.exit(victim, 1)
    outcome = node.outcome(victim)
    assert isinstance(outcome, Failed)
    assert outcome.reason.endswith("of bob, after 2 restarts for such faults")


def test_a_victim_that_holds_on_is_stopped_and_started_again() -> None:
    node = Node()
    victim, other = node.run(AGAIN), node.run(caller=BOB)
    node.sample()
    fault(node, victim, other, culprit=other)
    step = fault(node, victim, culprit=other, after=PATIENCE)
    assert StopContainer(victim, box(victim), 10) in step.instructions
    state = node.lease(victim).state
    assert isinstance(state, Starting)
    assert state.by_node
    node.exit(victim, 137)
    assert starts(node.send(m.Tick(), 11.0))


def test_an_error_that_hits_everybody_through_mps_counts_as_a_fault() -> None:
    node = Node()
    victim, other = node.run(AGAIN), node.run(caller=BOB)
    node.sample(xids={ONE.id: (31,)})
    node.exit(victim, 1)
    node.exit(other, 1)
    assert isinstance(node.lease(victim).state, Starting)
    outcome = node.outcome(other)
    assert isinstance(outcome, Failed)
    assert "XID 31" in outcome.reason


def test_a_victim_that_waits_to_be_started_again_may_be_stopped_or_removed() -> None:
    for event in ("stop", "remove"):
        node = Node()
        victim, other = node.run(AGAIN), node.run(caller=BOB)
        fault(node, victim, other, culprit=other)
        node.exit(victim, 1)
        if event == "stop":
            node.send(m.StopAsked(victim, ALICE, 0))
        node.send(m.ContainerSeen(box(victim), Condition.GONE))
        node.sample()
        assert isinstance(node.lease(victim).state, Ended)
        assert starts(recover(node)) == []


def test_a_restart_of_the_daemon_does_not_lose_who_waits_to_be_started_again() -> None:
    node = Node()
    victim, other = node.run(AGAIN), node.run(caller=BOB)
    fault(node, victim, other, culprit=other)
    node.exit(victim, 1)
    state = restore(NodeState(), node.state.leases.values(), node.state.next_sequence)
    node.state = replace(state, gpus=node.state.gpus)
    seen = m.ContainerSeen(box(victim), Condition.EXITED, str(victim), 1)
    node.send(m.EngineSurveyed((seen,), node.now + 1), 2.0)
    assert starts(node.send(m.Tick(), 1.0)) == [StartContainer(victim, box(victim))]


def test_a_gpu_that_turns_out_to_be_sick_ends_who_waits_to_be_started_again() -> None:
    node = Node()
    victim, other = node.run(AGAIN), node.run(caller=BOB)
    fault(node, victim, other, culprit=other)
    node.exit(victim, 1)
    node.sample(xids={ONE.id: (79,)})
    assert isinstance(node.lease(victim).state, Draining)
    assert "fell off the bus" in str(node.outcome(victim))


def test_a_victim_that_its_user_starts_before_it_is_over_keeps_its_lease() -> None:
    node = Node()
    victim, other = node.run(QUARTER), node.run(caller=BOB)
    fault(node, victim, other, culprit=other)
    node.exit(victim, 1)
    node.send(m.ContainerSeen(box(victim), Condition.RUNNING))
    assert isinstance(node.lease(victim).state, Active)
    node.send(m.StopAsked(victim, ROOT, 0))
    assert isinstance(node.lease(victim).state, Draining)


def test_nobody_is_put_on_a_gpu_whose_server_is_broken_until_it_is_well() -> None:
    node = Node()
    fault(node, node.run())
    node.sample()
    assert node.lease(node.ask(caller=BOB)).grants[0].gpu != ONE.id
    recover(node)
    node.sample()
    assert node.lease(node.ask(caller=BOB)).grants[0].gpu == ONE.id
