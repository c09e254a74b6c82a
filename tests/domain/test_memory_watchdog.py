"""Leases that take more memory than they hold, or leave MPS: what is said and done, by class and policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.instructions import StopContainer
from gpushared.domain.leases.memory_watchdog import overlap
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Action, Rules, WatchdogPolicy
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    ContainerId,
    Draining,
    Ended,
    Lease,
    LeaseId,
    OutsideMps,
    OverLimit,
    state_name,
)
from gpushared.domain.model.request import (
    Caller,
    Isolation,
    LeaseClass,
    Request,
)

ALICE = Caller(1000, 1000, "alice")
BOX = ContainerId("box")
TOTAL = 80 * 1024 * MIB
ONE, TWO = (Gpu(GpuId(f"GPU-{n}"), n, "H100", TOTAL, TOTAL) for n in range(2))
HALF = Request(1, 500, None, 500)
LIMIT = TOTAL // 2
TOLERANCE = 256 * MIB
PID = 1234
LEFT = "its process 1234 uses GPU 0 without MPS, where nothing holds it to its part"
BACK = "none of its processes uses a GPU without MPS any more"


class Node:
    """A node with one running lease."""

    def __init__(self, policy: WatchdogPolicy, request: Request = HALF) -> None:
        self.now = 1000.0
        self.state = NodeState(rules=Rules(watchdog=dict.fromkeys(LeaseClass, policy)))
        self.send(m.GpusSurveyed((ONE, TWO)))
        self.send(m.EngineSurveyed((), self.now))
        asked = self.send(m.RequestSubmitted(request, ALICE)).lease
        assert asked is not None
        self.id = asked.id
        self.send(m.ClaimAsked(self.id, ALICE))
        self.send(m.ContainerCreated(self.id, BOX, "box", "image"))
        self.send(m.ContainerSeen(BOX, Condition.RUNNING))

    def send(self, event: m.Event, after: float = 0.0) -> Step:
        self.now += after
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step

    def use(self, *used: int, after: float = 0.25) -> Step:
        """A sample in which the lease's processes hold so much on GPU 0, GPU 1."""
        on_gpus = dict(zip((ONE.id, TWO.id), used, strict=False))
        at = self.now + after
        readable = frozenset((ONE.id, TWO.id))
        return self.send(m.GpusSampled(at, frozenset({self.id}), {}, readable, {}, {self.id: on_gpus}), after)

    def leave(self, *, left: bool = True, readable: bool = True, after: float = 0.25, used: int = 0) -> Step:
        """A sample in which a process of the lease uses GPU 0 without MPS, or does not."""
        at = self.now + after
        seen = frozenset((ONE.id, TWO.id)) if readable else frozenset((TWO.id,))
        outside = {self.id: (ONE.id, PID)} if left else {}
        on_gpus = {self.id: {ONE.id: used}}
        return self.send(
            m.GpusSampled(at, frozenset({self.id}), {}, seen, {}, on_gpus, outside_mps=outside), after
        )

    @property
    def lease(self) -> Lease:
        return self.state.find(LeaseId(self.id))


def stops(step: Step) -> list[int]:
    return [one.grace_seconds for one in step.instructions if isinstance(one, StopContainer)]


@pytest.mark.parametrize(
    ("used", "is_over"),
    [(0, False), (LIMIT, False), (LIMIT + TOLERANCE, False), (LIMIT + TOLERANCE + MIB, True), (TOTAL, True)],
)
def test_a_lease_is_over_its_memory_beyond_the_tolerance_only(used: int, is_over: bool) -> None:
    node = Node(WatchdogPolicy(Action.WARN))
    node.use(used)
    assert (node.lease.health.over_since is not None) is is_over
    assert ("uses" in node.lease.story[-1].text) is is_over


@pytest.mark.parametrize(
    ("action", "grace", "done"), [(Action.KILL, 0, "killed"), (Action.STOP, 10, "stopped")]
)
def test_overuse_ends_the_container_with_what_it_used_and_what_it_had(
    action: Action, grace: int, done: str
) -> None:
    node = Node(WatchdogPolicy(action))
    step = node.use(TOTAL)
    assert stops(step) == [grace]
    state = node.lease.state
    assert isinstance(state, Draining)
    assert state.outcome == OverLimit(ONE.id, TOTAL, LIMIT)
    assert [entry.text for entry in node.lease.story[-2:]] == [
        "uses 80 GiB of its 40 GiB on GPU 0",
        f"{done} because of its memory",
    ]


def test_the_exit_code_does_not_hide_why_the_lease_ended() -> None:
    node = Node(WatchdogPolicy(Action.KILL))
    node.use(TOTAL)
    node.send(m.ContainerSeen(BOX, Condition.EXITED, exit_code=137))
    node.send(m.GpusSampled(node.now + 1, frozenset(), {}, frozenset((ONE.id, TWO.id))), after=1)
    assert node.lease.state == Ended(OverLimit(ONE.id, TOTAL, LIMIT), node.now, node.lease.state.grants)  # type: ignore[union-attr]  # ended, as the comparison says


def test_a_warning_is_given_once_and_taken_back_once() -> None:
    node = Node(WatchdogPolicy(Action.WARN))
    before = len(node.lease.story)
    for used, after in ((TOTAL, 1), (TOTAL, 1), (LIMIT, 1), (TOTAL, 1), (LIMIT, 1), (LIMIT, 10), (TOTAL, 1)):
        assert stops(node.use(used, after=after)) == []
    assert [entry.text for entry in node.lease.story[before:]] == [
        "uses 80 GiB of its 40 GiB on GPU 0",
        "is inside its memory again",
        "uses 80 GiB of its 40 GiB on GPU 0",
    ]
    assert state_name(node.lease.state) == "active"


def test_patience_waits_for_the_whole_time_and_begins_anew_after_a_good_while() -> None:
    node = Node(WatchdogPolicy(Action.KILL, patience_seconds=5.0))
    assert stops(node.use(TOTAL)) == []
    assert stops(node.use(TOTAL, after=4.0)) == []
    assert stops(node.use(LIMIT, after=0.5)) == []
    assert stops(node.use(LIMIT, after=10.0)) == []
    assert stops(node.use(TOTAL)) == []
    assert stops(node.use(TOTAL, after=5.0)) == [0]


@pytest.mark.parametrize("patience", [5.0, 60.0])
def test_who_lets_go_for_a_moment_now_and_again_does_not_buy_time(patience: float) -> None:
    node = Node(WatchdogPolicy(Action.KILL, patience_seconds=patience))
    began, before = node.now, len(node.lease.story)
    while not stops(node.use(TOTAL)):
        assert node.now - began < patience + 3
        assert stops(node.use(LIMIT)) == []
    assert node.now - began >= patience
    assert len(node.lease.story) == before + 2, "one line for the overuse, one for the end"


def test_each_gpu_of_a_lease_has_its_own_limit() -> None:
    node = Node(WatchdogPolicy(Action.KILL), replace(HALF, gpu_count=2))
    assert stops(node.use(LIMIT, LIMIT)) == []
    assert stops(node.use(MIB, TOTAL)) == [0]
    state = node.lease.state
    assert isinstance(state, Draining)
    assert state.outcome == OverLimit(TWO.id, TOTAL, LIMIT)


def test_a_whole_gpu_has_no_limit_to_watch() -> None:
    node = Node(WatchdogPolicy(Action.KILL), Request(1, 1000, None, 1000, Isolation.EXCLUSIVE))
    assert stops(node.use(TOTAL)) == []
    assert node.lease.health.over_since is None


def test_only_the_class_with_the_policy_is_ended() -> None:
    node = Node(WatchdogPolicy(Action.WARN), replace(HALF, lease_class=LeaseClass.INFER))
    policies = dict(node.state.rules.watchdog) | {LeaseClass.INFER: WatchdogPolicy(Action.KILL)}
    node.state = replace(node.state, rules=Rules(watchdog=policies))
    assert stops(node.use(TOTAL)) == [0]


@pytest.mark.parametrize(
    ("action", "grace", "done"), [(Action.KILL, 0, "killed"), (Action.STOP, 10, "stopped")]
)
def test_who_leaves_mps_is_named_after_one_sample_and_ended_after_the_next(
    action: Action, grace: int, done: str
) -> None:
    node = Node(WatchdogPolicy(action))
    assert stops(node.leave()) == []
    assert node.lease.story[-1].text == LEFT
    assert stops(node.leave()) == [grace]
    assert node.lease.story[-1].text == f"{done} because its process 1234 left MPS"
    state = node.lease.state
    assert isinstance(state, Draining)
    assert state.outcome == OutsideMps(ONE.id, PID)


def test_where_the_watchdog_only_warns_who_left_mps_is_told_once_and_taken_back_once() -> None:
    node = Node(WatchdogPolicy(Action.WARN))
    before = len(node.lease.story)
    steps = ((True, 1), (True, 1), (False, 1), (True, 1), (False, 1), (False, 10), (True, 1))
    for left, after in steps:
        assert stops(node.leave(left=left, after=after)) == []
    assert [entry.text for entry in node.lease.story[before:]] == [LEFT, BACK, LEFT]


def test_patience_holds_for_who_left_mps_too_and_begins_anew_after_a_good_while() -> None:
    node = Node(WatchdogPolicy(Action.KILL, patience_seconds=5.0))
    for left, after in ((True, 0.25), (True, 4.0), (False, 0.25), (False, 10.0), (True, 0.25), (True, 4.0)):
        assert stops(node.leave(left=left, after=after)) == []
    assert stops(node.leave(left=False, after=0.25)) == [], "a moment is no return"
    assert stops(node.leave(after=1.0)) == [0]


def test_a_sample_that_does_not_see_the_gpu_takes_nothing_back() -> None:
    node = Node(WatchdogPolicy(Action.KILL))
    node.leave()
    before = node.lease
    assert stops(node.leave(left=False, readable=False)) == []
    assert (node.lease.health.outside_since, node.lease.story) == (before.health.outside_since, before.story)
    assert stops(node.leave()) == [0]


def test_who_left_mps_and_takes_too_much_is_ended_once_for_the_memory() -> None:
    node = Node(WatchdogPolicy(Action.KILL))
    node.leave()
    assert stops(node.leave(used=TOTAL)) == [0]
    state = node.lease.state
    assert isinstance(state, Draining)
    assert state.outcome == OverLimit(ONE.id, TOTAL, LIMIT)


def test_a_whole_gpu_is_not_held_by_mps() -> None:
    node = Node(WatchdogPolicy(Action.KILL), Request(1, 1000, None, 1000, Isolation.EXCLUSIVE))
    for _ in range(3):
        assert stops(node.leave()) == []
    assert node.lease.health.outside_since is None


@pytest.mark.parametrize(
    ("stray", "eaten"), [(0, 0), (LIMIT, 0), (LIMIT + MIB, MIB), (TOTAL, LIMIT), (2 * TOTAL, LIMIT + TOTAL)]
)
def test_strangers_eat_leased_memory_when_both_together_are_more_than_there_is(
    stray: int, eaten: int
) -> None:
    node = Node(WatchdogPolicy())
    assert overlap(node.state.leases, ONE.id, TOTAL, stray) == eaten
    assert overlap(node.state.leases, TWO.id, TOTAL, stray) == 0
