"""From reservation to end, in the orders that engines, users and crashes really produce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.instructions import (
    DropEdits,
    HoldContainer,
    InspectContainer,
    Instruction,
    MakeEdits,
    StopContainer,
)
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import (
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Draining,
    Ended,
    Expired,
    Failed,
    Finished,
    Lease,
    LeaseId,
    NeverClaimed,
    Paused,
    Queued,
    Reserved,
    Starting,
    Stopped,
    state_name,
)
from gpushared.domain.model.request import Caller, Process, Request

ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
BOX = ContainerId("box")
HALF = Request(1, 500, None, 500)
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)


class Node:
    """A node with one GPU and one lease on its way."""

    def __init__(self, request: Request = HALF, device_name: str = "") -> None:
        self.state = NodeState()
        self.now = 1000.0
        self.step = self.send(m.GpusSurveyed((GPU,)))
        asked = self.send(m.RequestSubmitted(request, ALICE, device_name=device_name)).lease
        assert asked is not None
        self.id = asked.id

    def send(self, event: m.Event) -> Step:
        self.step = handle(self.state, event, self.now)
        self.state = self.step.state
        return self.step

    def see(self, condition: Condition, code: int | None = None, container: ContainerId = BOX) -> Step:
        return self.send(m.ContainerSeen(container, condition, self.lease.device_name, code, "web", "image"))

    def survey(self, *conditions: Condition, at: float) -> Step:
        seen = (m.ContainerSeen(BOX, one, self.lease.device_name, 0) for one in conditions)
        return self.send(m.EngineSurveyed(tuple(seen), at))

    def sample(self, *, at: float | None = None, busy: bool = False, mute: bool = False) -> Step:
        there = frozenset({self.id} if busy else ())
        troubles = {GPU.id: "is lost"} if mute else {}
        readable = frozenset({GPU.id}) - troubles.keys()
        return self.send(m.GpusSampled(self.now if at is None else at, there, {}, readable, troubles))

    def passes(self, seconds: float) -> Step:
        self.now += seconds
        return self.send(m.Tick())

    def restarts(self) -> None:
        self.state = restore(NodeState(), self.state.leases.values(), self.state.next_sequence)
        self.send(m.GpusSurveyed((GPU,)))

    def to(self, where: str) -> Node:
        """Bring the lease into a state, the usual way."""
        ways: dict[str, tuple[m.Event, ...]] = {
            "reserved": (),
            "claimed": (m.ClaimAsked(self.id, ALICE),),
            "starting": (m.ClaimAsked(self.id, ALICE), m.ContainerCreated(self.id, BOX, "web", "image")),
        }
        up: tuple[m.Event, ...] = (*ways["starting"], m.ContainerSeen(BOX, Condition.RUNNING))
        ways |= {
            "held": (*up, m.RestartAsked(self.id, 10)),
            "active": up,
            "paused": (*up, m.ContainerSeen(BOX, Condition.PAUSED)),
            "stopping": (*up, m.StopAsked(self.id, ALICE, 10)),
            "draining": (*up, m.ContainerSeen(BOX, Condition.EXITED, exit_code=3)),
            "ended": (m.ReleaseAsked(self.id, ALICE),),
        }
        for event in ways[where]:
            self.send(event)
        return self

    @property
    def lease(self) -> Lease:
        return self.state.find(self.id)

    @property
    def is_in(self) -> str:
        return state_name(self.lease.state)

    @property
    def did(self) -> list[Instruction]:
        return list(self.step.instructions)

    @property
    def asked_for(self) -> set[str]:
        return {type(one).__name__ for one in self.step.instructions}

    def outcome(self) -> object:
        assert isinstance(self.lease.state, Draining | Ended)
        return self.lease.state.outcome


SEEN = {
    # from           created     running    paused    restarting   exited      gone
    "reserved": ("starting", "active", "paused", "starting", "draining", "reserved"),
    "claimed": ("starting", "active", "paused", "starting", "draining", "reserved"),
    "starting": ("starting", "active", "paused", "starting", "draining", "draining"),
    "held": ("starting", "starting", "starting", "starting", "starting", "draining"),
    "active": ("active", "active", "paused", "starting", "draining", "draining"),
    "paused": ("paused", "active", "paused", "starting", "draining", "draining"),
    "stopping": ("draining", "draining", "draining", "draining", "draining", "draining"),
    "draining": ("draining", "active", "paused", "starting", "draining", "draining"),
    "ended": ("ended",) * 6,
}


@pytest.mark.parametrize(
    ("where", "condition", "then"),
    [(where, c, then) for where, row in SEEN.items() for c, then in zip(Condition, row, strict=True)],
)
def test_what_each_sight_of_a_container_means_in_each_state(
    where: str, condition: Condition, then: str
) -> None:
    """A container that is seen before its create was noted is found by its label."""
    node = Node().to(where)
    node.see(condition, 3 if condition is Condition.EXITED else None)
    assert node.is_in == then


USERS: dict[str, Callable[[Node], m.Event]] = {
    "release": lambda node: m.ReleaseAsked(node.id, ALICE),
    "stop": lambda node: m.StopAsked(node.id, ALICE, 10),
    "claim": lambda node: m.ClaimAsked(node.id, ALICE),
    "unclaim": lambda node: m.ClaimDropped(node.id),
    "created": lambda node: m.ContainerCreated(node.id, BOX, "web", "image"),
    "created as another": lambda node: m.ContainerCreated(node.id, ContainerId("other"), "web", "image"),
    "start": lambda node: m.StartAsked(node.id),
    "restart": lambda node: m.RestartAsked(node.id, 10),
    "restart done": lambda node: m.RestartDone(node.id),
    "edits fail": lambda node: m.EditsFailed(node.id, "no MPS"),
    "abandon": lambda node: m.RequestAbandoned(node.id),
}
NO = "refused"
ASKED = {
    # from: reserved, claimed, starting, active, paused, stopping, draining, ended
    "release": ("ended", "ended", NO, NO, NO, NO, NO, "ended"),
    "stop": ("ended", "ended", "draining", "draining", "draining", "draining", "draining", "ended"),
    "claim": ("reserved", NO, NO, NO, NO, NO, NO, NO),
    "unclaim": ("reserved", "reserved", "starting", "active", "paused", "draining", "draining", "ended"),
    "created": ("starting", "starting", "starting", "active", "paused", NO, NO, NO),
    "created as another": ("starting", "starting", NO, NO, NO, NO, NO, NO),
    "start": ("reserved", "reserved", "starting", "active", "paused", "draining", "draining", "ended"),
    "restart": ("reserved", "reserved", "starting", "starting", "starting", "draining", "draining", "ended"),
    "restart done": ("reserved", "reserved", "starting", "active", "paused", "draining", "draining", "ended"),
    "edits fail": ("ended", "ended", "starting", "active", "paused", "draining", "draining", "ended"),
    "abandon": ("ended", "reserved", "starting", "active", "paused", "draining", "draining", "ended"),
}
FROM = ("reserved", "claimed", "starting", "active", "paused", "stopping", "draining", "ended")


@pytest.mark.parametrize(
    ("event", "where", "then"),
    [(event, where, then) for event, row in ASKED.items() for where, then in zip(FROM, row, strict=True)],
)
def test_what_each_wish_means_in_each_state(event: str, where: str, then: str) -> None:
    """Refused with a sentence, or done; a wish that comes too late changes nothing."""
    node = Node().to(where)
    before = node.is_in
    if then == NO:
        with pytest.raises(StateConflict) as caught:
            node.send(USERS[event](node))
        assert caught.value.hint
        assert node.is_in == before
    else:
        node.send(USERS[event](node))
        assert node.is_in == then


def test_an_abandoned_reservation_is_kept_until_the_engine_says_what_it_has() -> None:
    """Its container may exist already; after a restart only the engine knows."""
    node = Node().to("claimed")
    node.restarts()
    node.send(m.RequestAbandoned(node.id))
    assert node.is_in == "reserved"
    node.survey(Condition.RUNNING, at=node.now + 1)
    node.send(m.RequestAbandoned(node.id))
    assert node.is_in == "active"


def test_a_request_that_is_asked_again_goes_with_the_process_that_asked_last() -> None:
    node, processes = Node(), [Process(number, 7, "b1") for number in (1, 2)]
    for process in processes:
        asked = m.RequestSubmitted(HALF, ALICE, request_id="r1", holder=process)
        lease = node.send(asked).lease
        assert lease is not None
        assert lease.holder == process
    assert len(node.state.leases) == 2


# --- the orders of things --------------------------------------------------------------------------------


def test_the_usual_life_of_a_lease() -> None:
    """Reserved, claimed, started, running, ended, memory back."""
    node = Node()
    assert node.did == [MakeEdits(node.id)]
    node.to("draining")
    assert node.asked_for == {"SampleGpus"}
    node.sample(busy=True)
    assert node.is_in == "draining"
    node.sample()
    assert node.outcome() == Finished(3)
    assert node.did == [DropEdits(node.id, node.id)]


def test_a_create_that_is_noted_after_the_engine_told_of_it_is_no_conflict() -> None:
    """A survey may see the container before the gate has the engine's answer."""
    node = Node().to("claimed")
    node.see(Condition.CREATED)
    step = node.send(m.ContainerCreated(node.id, BOX, "web", "image"))
    assert step.lease is not None
    assert step.lease.id == node.id
    assert node.lease.container == BOX


def test_one_container_never_holds_two_leases() -> None:
    """Or its end would be the end of the wrong one."""
    node = Node().to("active")
    second = node.send(m.RequestSubmitted(HALF, ALICE)).lease
    assert second is not None
    with pytest.raises(StateConflict, match=f"belongs to lease {node.id}"):
        node.send(m.ContainerCreated(second.id, BOX, "web", "image"))


def test_an_exit_while_a_restart_is_under_way_is_not_the_end() -> None:
    """The engine stops and starts; only when it is done is it looked at."""
    node = Node().to("held")
    node.see(Condition.EXITED, 137)
    assert node.is_in == "starting"
    node.send(m.RestartDone(node.id))
    assert node.did == [InspectContainer(BOX)]
    node.see(Condition.RUNNING)
    assert node.is_in == "active"


def test_a_restart_that_failed_ends_the_lease() -> None:
    """The container stays down."""
    node = Node().to("held")
    node.send(m.RestartDone(node.id))
    node.see(Condition.EXITED, 1)
    assert node.outcome() == Finished(1)


def test_a_restart_that_is_never_reported_done_is_looked_at_in_the_end() -> None:
    """Its gate may be gone."""
    node = Node().to("held")
    node.passes(71.0)
    assert InspectContainer(BOX) in node.step.instructions
    node.see(Condition.EXITED, 1)
    assert node.is_in == "draining"


def test_a_stop_while_a_restart_is_under_way_wins() -> None:
    """The restart starts the container again after its stop, and it is asked to stop again."""
    node = Node().to("held")
    node.send(m.StopAsked(node.id, ALICE, 10))
    node.see(Condition.EXITED, 137)
    node.see(Condition.RUNNING)
    assert node.did == [StopContainer(node.id, BOX, 10)]
    node.sample()
    assert node.is_in == "draining"
    node.see(Condition.EXITED, 137)
    node.sample()
    assert node.outcome() == Stopped("alice")


def test_a_container_started_again_before_its_memory_was_back_keeps_its_lease() -> None:
    """As with a restart past the gate, or a restart policy that is slower than our look."""
    node = Node().to("draining")
    node.see(Condition.RUNNING)
    assert isinstance(node.lease.state, Active)
    assert node.did == [HoldContainer(node.id, BOX), InspectContainer(BOX)]


@pytest.mark.parametrize("condition", [Condition.RUNNING, Condition.PAUSED])
def test_a_container_is_given_what_only_a_running_one_can_be_given(condition: Condition) -> None:
    """When it is seen to run for the first time, and each time it is looked at: it may be a new run."""
    node = Node().to("starting")
    node.see(condition)
    assert node.did == [HoldContainer(node.id, BOX)]
    node.see(Condition.RUNNING)
    node.see(Condition.RUNNING)
    assert node.did == [HoldContainer(node.id, BOX)]


def test_after_a_restart_of_the_daemon_running_containers_are_held_again() -> None:
    """The first survey tells of them."""
    node = Node().to("active")
    node.passes(60)
    node.survey(Condition.RUNNING, at=node.now)
    assert HoldContainer(node.id, BOX) in node.did


@pytest.mark.parametrize("condition", [Condition.RUNNING, Condition.PAUSED, Condition.RESTARTING])
def test_a_lease_that_is_over_never_comes_back(condition: Condition) -> None:
    """A container that runs without a lease is shown as such, not adopted."""
    node = Node().to("draining")
    node.sample()
    node.see(condition)
    assert node.is_in == "ended"


def test_a_start_that_failed_ends_the_lease_with_its_code() -> None:
    """Command not found, for example."""
    node = Node().to("starting")
    node.see(Condition.EXITED, 127)
    node.sample()
    assert node.outcome() == Finished(127)


def test_a_container_removed_before_anyone_could_look_ends_the_lease() -> None:
    """``--rm``, and the exit code is not known."""
    node = Node().to("active")
    node.see(Condition.GONE)
    node.sample()
    assert node.outcome() == Stopped("removal of the container")


def test_the_last_words_of_a_removed_container_are_heard() -> None:
    """A survey may miss it before the news of its exit code comes."""
    node = Node().to("active")
    node.now += 1.0
    node.survey(at=node.now)
    node.see(Condition.EXITED, 3)
    assert node.outcome() == Finished(3)


def test_a_container_that_is_never_started_is_looked_at_and_then_given_up() -> None:
    """``docker create`` and nothing more."""
    node = Node().to("starting")
    node.passes(60.0)
    assert node.did == [InspectContainer(BOX)]
    node.see(Condition.CREATED)
    assert node.outcome() == NeverClaimed()


def test_a_start_that_is_asked_for_again_gets_its_whole_time() -> None:
    """Pulling up a large image takes a while."""
    node = Node().to("starting")
    node.now += 59.0
    node.send(m.StartAsked(node.id))
    node.passes(59.0)
    node.see(Condition.CREATED)
    assert node.is_in == "starting"


def test_a_container_that_its_policy_restarts_has_no_deadline() -> None:
    """Also if it crashed before it was ever seen running."""
    node = Node().to("starting")
    node.see(Condition.RESTARTING, 1)
    node.passes(10_000.0)
    assert node.did == []
    node.see(Condition.RUNNING)
    assert node.is_in == "active"


def test_a_paused_container_that_is_killed_ends_its_lease() -> None:
    """A frozen one can be killed, too."""
    node = Node().to("paused")
    node.see(Condition.EXITED, 137)
    assert node.outcome() == Finished(137)


def test_a_paused_lease_expires_and_its_container_is_stopped() -> None:
    """Frozen time counts: the memory is held all the while."""
    node = Node(replace(HALF, time_limit_seconds=300)).to("paused")
    node.passes(300.0)
    assert node.outcome() == Expired()
    assert node.did == [StopContainer(node.id, BOX, 10)]


def test_a_stop_that_does_not_work_is_repeated_without_grace_and_looked_after() -> None:
    """The stop may have failed, or the news of its success was lost."""
    node = Node().to("stopping")
    node.passes(24.0)
    assert node.did == []
    node.passes(1.0)
    assert node.did == [StopContainer(node.id, BOX, 0), InspectContainer(BOX)]


def test_a_shorter_grace_overtakes_a_longer_one() -> None:
    """Who waits for an hour of grace may change their mind, in this direction only."""
    node = Node().to("active")
    node.send(m.StopAsked(node.id, ALICE, 3600))
    node.send(m.StopAsked(node.id, ALICE, 0))
    assert node.did == [StopContainer(node.id, BOX, 0)]
    node.send(m.StopAsked(node.id, ALICE, 3600))
    assert node.did == []


def test_a_sample_taken_before_the_exit_does_not_end_a_lease() -> None:
    """It shows the GPU as it was, perhaps before the process had any memory."""
    node = Node().to("draining")
    node.sample(at=node.now - 0.1)
    assert node.is_in == "draining"


def test_a_gpu_that_does_not_answer_does_not_give_its_memory_back() -> None:
    """Nobody knows whether it is free."""
    node = Node().to("draining")
    node.sample(mute=True)
    assert node.is_in == "draining"
    node.sample()
    assert node.is_in == "ended"


def test_a_clock_that_is_set_back_does_not_hold_memory_for_as_long() -> None:
    """Samples would seem older than the exit."""
    node = Node().to("draining")
    node.passes(-3600.0)
    node.passes(1.0)
    node.sample()
    assert node.is_in == "ended"


# --- surveys ---------------------------------------------------------------------------------------------


def test_a_survey_older_than_the_lease_says_nothing_about_it() -> None:
    """Its container did not exist yet, or looked different."""
    node = Node().to("active")
    node.survey(at=node.now)
    node.survey(Condition.EXITED, at=node.now - 1.0)
    assert node.is_in == "active"
    node.now += 5.0
    node.survey(at=node.now)
    assert node.outcome() == Stopped("removal of the container")


def test_the_last_end_of_a_container_does_not_end_the_lease_for_its_next_start() -> None:
    """A stopped container is surveyed as exited until its start is done."""
    node = Node(device_name="c-1").to("claimed")
    node.now += 1.0
    node.survey(Condition.EXITED, at=node.now)
    assert node.is_in == "reserved"
    node.see(Condition.EXITED, 0)
    assert node.is_in == "reserved"
    node.send(m.ContainerCreated(node.id, BOX, "web", "image"))
    node.now += 1.0
    node.survey(Condition.EXITED, at=node.now)
    assert node.is_in == "starting"
    node.see(Condition.RUNNING)
    node.now += 1.0
    node.survey(Condition.EXITED, at=node.now)
    assert node.is_in == "draining"


def test_a_start_of_an_old_container_that_was_missed_altogether_is_found_by_its_deadline() -> None:
    """It ran and ended while nobody listened."""
    node = Node(device_name="c-1").to("starting")
    node.passes(60.0)
    assert node.did == [InspectContainer(BOX)]
    node.see(Condition.EXITED, 4)
    assert node.outcome() == Finished(4)


def test_a_container_that_a_survey_missed_is_not_stopped_for_it() -> None:
    """An engine that is just starting may not list everything yet."""
    node = Node().to("active")
    node.now += 1.0
    node.survey(at=node.now)
    assert node.is_in == "draining"
    node.now += 1.0
    node.survey(Condition.RUNNING, at=node.now)
    assert node.is_in == "active"
    assert "StopContainer" not in node.asked_for


def test_containers_without_a_lease_are_no_matter_of_ours() -> None:
    """Unknown ids, labels of leases that are over, labels of leases that have another container."""
    node = Node().to("active")
    for sight in (
        m.ContainerSeen(ContainerId("stranger"), Condition.RUNNING),
        m.ContainerSeen(ContainerId("stranger"), Condition.EXITED, "l-0000", 1),
        m.ContainerSeen(ContainerId("twin"), Condition.EXITED, node.id, 1),
    ):
        assert node.send(sight).changed == ()


# --- restarts of the daemon --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["reserved", "claimed", "starting", "held", "active", "paused", "stopping", "draining"]
)
def test_a_restarted_daemon_holds_what_was_held(where: str) -> None:
    """In every state; nobody else gets it meanwhile."""
    node = Node(Request(1, 1000, None, 1000)).to(where)
    before = node.lease.grants
    node.restarts()
    assert node.lease.grants == before
    other = node.send(m.RequestSubmitted(HALF, BOB)).lease
    assert other is not None
    assert isinstance(other.state, Queued)


def test_a_reservation_waits_for_the_first_survey_after_a_restart() -> None:
    """Its container may run already: the daemon died before it could note it."""
    node = Node(replace(HALF, time_limit_seconds=100)).to("claimed")
    node.restarts()
    node.passes(10_000.0)
    assert node.is_in == "reserved"
    node.survey(Condition.RUNNING, at=node.now)
    assert node.is_in == "active"


def test_a_reservation_without_a_container_ends_after_the_first_survey() -> None:
    """The create died with the daemon."""
    node = Node().to("claimed")
    node.restarts()
    node.now += 10_000.0
    node.survey(at=node.now)
    node.passes(1.0)
    assert node.outcome() == NeverClaimed()


def test_a_create_cut_off_by_a_restart_has_a_claims_time_left() -> None:
    """Not the time that a create under way may take."""
    node = Node().to("claimed")
    node.restarts()
    node.now += 1.0
    node.survey(at=node.now)
    node.passes(60.0)
    assert node.outcome() == NeverClaimed()


@pytest.mark.parametrize(
    ("condition", "then"), [(Condition.RUNNING, "active"), (Condition.EXITED, "draining")]
)
def test_a_restart_cut_off_by_the_daemons_end_is_decided_by_the_survey(
    condition: Condition, then: str
) -> None:
    """Nobody will report it done."""
    node = Node().to("held")
    node.restarts()
    node.now += 5.0
    node.survey(condition, at=node.now)
    assert node.is_in == then


def test_the_queue_is_the_same_after_a_restart() -> None:
    """Same order, same numbers, and new ones go on from there."""
    node = Node(Request(1, 1000, None, 1000)).to("active")
    for _ in range(5):
        node.send(m.RequestSubmitted(HALF, BOB))
    before = [lease.id for lease in node.state.waiting()]
    node.state = restore(NodeState(), reversed(list(node.state.leases.values())), node.state.next_sequence)
    node.send(m.GpusSurveyed((GPU,)))
    assert [lease.id for lease in node.state.waiting()] == before
    fresh = node.send(m.RequestSubmitted(HALF, BOB)).lease
    assert fresh is not None
    assert fresh.id not in before
    assert fresh.sequence == 7


# --- users -----------------------------------------------------------------------------------------------


def test_a_claim_dropped_after_its_lease_is_over_changes_nothing() -> None:
    """The create took longer than the reservation lasts."""
    node = Node().to("claimed")
    node.passes(600.0)
    assert node.outcome() == NeverClaimed()
    assert node.send(m.ClaimDropped(node.id)).changed == ()
    with pytest.raises(StateConflict, match="is ended already"):
        node.send(m.ContainerCreated(node.id, BOX, "web", "image"))


def test_a_create_that_failed_may_be_tried_again() -> None:
    """The docker command pulls the image and creates once more."""
    node = Node().to("claimed")
    node.now += 100.0
    node.send(m.ClaimDropped(node.id))
    state = node.lease.state
    assert isinstance(state, Reserved)
    assert state.deadline == node.now + 60.0
    node.send(m.ClaimAsked(node.id, ALICE))


@pytest.mark.parametrize(
    "event", [m.ReleaseAsked, m.ClaimAsked, lambda lease, who: m.StopAsked(lease, who, 0)]
)
def test_strangers_may_not_touch_a_lease(event: type[m.ReleaseAsked]) -> None:
    """Not even see that it was possible."""
    node = Node()
    with pytest.raises(PermissionRefused, match="belongs to alice"):
        node.send(event(node.id, BOB))


def test_the_trusted_may_stop_but_not_claim_what_is_anothers() -> None:
    """A lease is used by whom it was granted to."""
    node = Node()
    with pytest.raises(PermissionRefused):
        node.send(m.ClaimAsked(node.id, ROOT))
    node.send(m.StopAsked(node.id, ROOT, 0))
    assert node.outcome() == Stopped("root")


def test_edits_that_cannot_be_made_end_a_reservation_but_no_running_container() -> None:
    """What runs has its edits; making them again is a repair."""
    node = Node()
    node.send(m.EditsFailed(node.id, "no MPS"))
    assert node.outcome() == Failed("no MPS")
    node = Node().to("active")
    node.send(m.EditsFailed(node.id, "no MPS"))
    assert node.is_in == "active"
    assert node.lease.story[-1].text == "no MPS"


def test_asking_twice_with_one_id_is_asking_once() -> None:
    """Also when the lease is over; with another request or a huge id it is refused."""
    node = Node()
    event = m.RequestSubmitted(HALF, BOB, "once")
    first, again = node.send(event).lease, node.send(event).lease
    assert first is not None
    assert again is not None
    assert first.id == again.id
    node.send(m.ReleaseAsked(first.id, BOB))
    over = node.send(event).lease
    assert over is not None
    assert isinstance(over.state, Ended)
    with pytest.raises(RequestError, match="used for something else"):
        node.send(m.RequestSubmitted(Request(1, 250, None, 250), BOB, "once"))
    with pytest.raises(RequestError, match="10000000 characters is too long"):
        node.send(m.RequestSubmitted(HALF, BOB, "x" * 10_000_000))
    mine = node.send(m.RequestSubmitted(HALF, ALICE, "once")).lease
    assert mine is not None
    assert mine.id != first.id


def test_who_will_not_wait_is_refused_and_leaves_no_trace() -> None:
    """And is told why there is no room."""
    node = Node(Request(1, 1000, None, 1000))
    before = node.state
    with pytest.raises(LimitReached, match="needs 40 GiB"):
        node.send(m.RequestSubmitted(HALF, BOB, immediate=True))
    assert node.state is before


def test_the_queue_has_bounds() -> None:
    """For each user and for all."""
    node = Node(Request(1, 1000, None, 1000))
    for number in range(1000):
        node.send(m.RequestSubmitted(HALF, Caller(2000 + number // 100, 0, "u")))
        if number == 99:
            with pytest.raises(LimitReached, match="100 of your requests"):
                node.send(m.RequestSubmitted(HALF, Caller(2000, 0, "u")))
    with pytest.raises(LimitReached, match="1000 requests wait already"):
        node.send(m.RequestSubmitted(HALF, Caller(9999, 0, "u")))


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (Rules(max_queued_per_user=1), "1 of your requests waits already"),
        (Rules(max_queued=1), "1 request waits already"),
    ],
)
def test_a_bound_of_one_is_told_in_the_singular(rules: Rules, sentence: str) -> None:
    node = Node(Request(1, 1000, None, 1000))
    node.state = replace(node.state, rules=rules)
    node.send(m.RequestSubmitted(HALF, ALICE))
    with pytest.raises(LimitReached, match=sentence):
        node.send(m.RequestSubmitted(HALF, ALICE))


def test_a_lease_that_never_was_is_not_found() -> None:
    """Its name is repeated only as far as it is a name."""
    with pytest.raises(NotFound) as caught:
        Node().send(m.StopAsked(LeaseId("\x1b[2J" * 1_000_000), ROOT, 0))
    assert len(str(caught.value)) < 250
    assert "\x1b" not in str(caught.value)


def test_a_device_name_that_is_in_use_is_refused() -> None:
    """Two leases would overwrite each other's settings."""
    node = Node(device_name="c-1")
    with pytest.raises(StateConflict, match=rf"c-1 has a lease already \({node.lease.id}\)"):
        node.send(m.RequestSubmitted(HALF, ALICE, device_name="c-1"))


def test_states_are_reached_as_the_tables_above_say() -> None:
    """The tables start where they claim to."""
    kinds = {"held": Starting, "paused": Paused, "stopping": Draining, "draining": Draining, "ended": Ended}
    for where, kind in kinds.items():
        assert isinstance(Node().to(where).lease.state, kind)
