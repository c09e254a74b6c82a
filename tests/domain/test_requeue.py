"""Leases that give way: taken off their GPUs and back, told and stopped, queued again and started again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.explain import waiting
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import (
    DropEdits,
    FreezeAgain,
    MakeEdits,
    NotifyContainer,
    ResumeContainer,
    StartContainer,
    StopContainer,
    SuspendContainer,
)
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.leases.parked import THAWED
from gpushared.domain.leases.prospects import when_others_need_it
from gpushared.domain.leases.requeue import PreemptionStep as Rung
from gpushared.domain.leases.requeue import step_of
from gpushared.domain.model.errors import PermissionRefused, StateConflict
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.host import ContainerMemory, HostSize
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Failed,
    Finished,
    Lease,
    MemoryWall,
    NoticeKind,
    Preempted,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
    Walls,
    state_name,
)
from gpushared.domain.model.request import Caller, Isolation, Request
from gpushared.domain.scheduling.projects import Policy, Project, Quota

ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
GPUS = tuple(Gpu(GpuId(f"GPU-{n}"), n, "H100", 81920 * MIB, 81920 * MIB) for n in range(2))
HALF = Request(1, 500, None, 500)
WHOLE = Request(1, 1000, None, 1000, isolation=Isolation.EXCLUSIVE)
CHECKPOINTS = m.Means(no_checkpoint="", checkpoint_with_mps=True, binds_late=True)
GIB = 1024 * MIB
PAID = Project("paid", users=frozenset({"bob"}), quota=Quota(1000))
MPS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)


class Node:
    """A node with one GPU, or two."""

    def __init__(self, gpus: int = 1, means: m.Means | None = None) -> None:
        self.now = 1000.0
        self.state = NodeState()
        self.step = self.send(m.GpusSurveyed(GPUS[:gpus]))
        if means is not None:
            self.send(m.MeansKnown(means))

    def send(self, event: m.Event) -> Step:
        self.step = handle(self.state, event, self.now)
        self.state = self.step.state
        return self.step

    def ask(self, request: Request = WHOLE, caller: Caller = ALICE) -> Lease:
        lease = self.send(m.RequestSubmitted(request, caller)).lease
        assert lease is not None
        return lease

    def run(self, request: Request = WHOLE, *, stays: bool = True) -> Lease:
        """A lease whose container runs; ``stays``: detached, and not removed when it ends."""
        lease = self.ask(request)
        box = ContainerId(f"box-{lease.id}")
        self.send(m.ClaimAsked(lease.id, ALICE))
        self.send(m.EditsMade(lease.id, MPS))
        self.send(m.ContainerCreated(lease.id, box, "box", "image", stays=stays))
        return self.see(lease, Condition.RUNNING)

    def see(self, lease: Lease, condition: Condition, code: int | None = None) -> Lease:
        self.send(m.ContainerSeen(ContainerId(f"box-{lease.id}"), condition, exit_code=code))
        return self.of(lease)

    def tell(self, lease: Lease, memory: ContainerMemory | None) -> None:
        """The engine tells of the container's host memory."""
        self.send(m.ContainerSeen(ContainerId(f"box-{lease.id}"), Condition.RUNNING, memory=memory))

    def uses(self, lease: Lease, on_gpus: int | None) -> None:
        """So many bytes on the first of its GPUs; None: it is there, and the driver does not tell more."""
        (grant, *_) = lease.grants
        used = {lease.id: {grant.gpu: on_gpus or 0}}
        busy = frozenset() if on_gpus == 0 else frozenset({lease.id})
        self.send(m.GpusSampled(self.now, busy, {}, frozenset(self.state.gpus), used_bytes=used))

    def of(self, lease: Lease) -> Lease:
        return self.state.find(lease.id)

    def is_in(self, lease: Lease) -> str:
        return state_name(self.of(lease).state)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(m.Tick())

    def sample(self, *busy: Lease) -> None:
        """All GPUs answer; these leases are on them."""
        ids = frozenset(lease.id for lease in busy)
        self.send(m.GpusSampled(self.now, ids, {}, frozenset(self.state.gpus)))

    def gives_way(self, lease: Lease) -> Lease:
        """All the way, from being told to the memory being back."""
        self.send(m.PreemptAsked(lease.id, ROOT))
        self.passes(60)
        self.see(lease, Condition.EXITED, 143)
        self.passes(1)
        self.sample()
        return self.of(lease)


def restarted(node: Node) -> Step:
    """The daemon starts again, and has surveyed the engine."""
    there = tuple(
        m.ContainerSeen(
            lease.container,
            Condition.PAUSED if isinstance(lease.state, Suspended) else Condition.RUNNING,
            lease.device_name,
        )
        for lease in node.state.leases.values()
        if lease.container is not None
    )
    empty = NodeState(gpus=node.state.gpus, means=node.state.means)
    node.state = restore(empty, node.state.leases.values(), node.state.next_sequence)
    node.now += 1
    return node.send(m.EngineSurveyed(there, node.now))


def test_moves_that_a_restart_of_the_daemon_cut_off_are_asked_for_again_at_once() -> None:
    node = Node(means=CHECKPOINTS)
    lease = node.run()
    box = ContainerId(f"box-{lease.id}")
    node.send(m.PauseAsked(lease.id, ALICE))
    assert restarted(node).instructions == (SuspendContainer(lease.id, box),)
    node.send(m.ContainerSuspended(lease.id))
    assert restarted(node).instructions == ()
    node.send(m.ResumeAsked(lease.id, ALICE))
    assert restarted(node).instructions == (ResumeContainer(lease.id, box),)
    node.send(m.ContainerResumed(lease.id))
    assert node.is_in(lease) == "active"


def test_a_stop_that_a_restart_of_the_daemon_cut_off_keeps_what_is_left_of_its_grace() -> None:
    node = Node()
    lease = node.run()
    node.send(m.StopAsked(lease.id, ALICE, 300))
    node.now += 99
    stop = StopContainer(lease.id, ContainerId(f"box-{lease.id}"), 200)
    assert restarted(node).instructions == (stop,)


def told_for_a_claim() -> tuple[Node, Lease, Lease]:
    """A lease that has been told to give way, which loses its work, and the request for which it does."""
    node = Node()
    node.state = node.state.with_rules(Rules(policy=Policy(projects={"paid": PAID})))
    lease = node.run()
    node.passes(600)
    winner = node.ask(caller=BOB)
    node.passes(150)  # a quarter of the work that is lost
    assert node.of(lease).notice is not None
    assert node.of(winner).preemption.promised is not None
    return node, lease, winner


def test_room_that_is_promised_stays_so_over_a_restart_whose_first_event_knows_no_gpu() -> None:
    node, lease, winner = told_for_a_claim()
    gpus = tuple(node.state.gpus.values())
    empty = NodeState(rules=node.state.rules)
    node.state = restore(empty, node.state.leases.values(), node.state.next_sequence)
    node.send(m.GpusSampled(node.now, frozenset(), {}, frozenset()))
    assert [decision.lease for decision in decisions(node.state, node.now)] == [winner.id]
    node.send(m.GpusSurveyed(gpus))
    assert node.of(winner).preemption.promised is not None
    running = m.ContainerSeen(ContainerId(f"box-{lease.id}"), Condition.RUNNING, lease.device_name)
    node.send(m.EngineSurveyed((running,), node.now))
    node.passes(60)
    node.see(lease, Condition.EXITED, 143)
    node.passes(1)
    node.sample()
    assert node.is_in(winner) == "reserved"


def test_room_that_is_promised_on_a_gpu_that_is_lost_is_promised_no_more() -> None:
    node, _, winner = told_for_a_claim()
    node.send(m.GpusSurveyed((replace(GPUS[1], index=0),)))
    assert node.is_in(winner) == "reserved"
    assert node.of(winner).preemption.promised is None


@pytest.mark.parametrize(
    ("held", "then", "told"),
    [
        ("reserved", "ended", 0),
        ("told", "active", 1),
        ("paused", "suspending", 0),
    ],
)
def test_a_lease_gives_way_once_to_all_who_share_its_room(held: str, then: str, told: int) -> None:
    node = Node(means=CHECKPOINTS if held == "paused" else None)
    policy = Policy(projects={"paid": PAID})
    classes = {name: replace(rules, min_run_seconds=0.0) for name, rules in policy.classes.items()}
    node.state = node.state.with_rules(Rules(policy=replace(policy, classes=classes)))
    lease = node.ask() if held == "reserved" else node.run()
    for _ in range(2):
        asked = m.RequestSubmitted(HALF, BOB)
        node.state = handle(node.state, asked, node.now, grants=False).state
    node.now += 1
    instructions = node.send(m.Tick()).instructions
    assert node.is_in(lease) == then
    assert instructions.count(NotifyContainer(lease.id)) == told
    assert node.of(lease).preemption.begun_anew == told
    node.passes(1)
    winners = [each for each in node.state.leases.values() if each.owner_uid == BOB.uid]
    assert [state_name(each.state) == "reserved" for each in winners] == 2 * [held == "reserved"]


# --- told, stopped, queued again -----------------------------------------------------------------------


def test_who_gives_way_is_told_first_and_stopped_when_the_notice_is_over() -> None:
    node = Node()
    lease = node.run()
    node.send(m.PreemptAsked(lease.id, ROOT))
    notice = node.of(lease).notice
    assert notice is not None
    assert (notice.kind, notice.until) == (NoticeKind.PREEMPTED, node.now + 60)
    assert node.step.instructions == (NotifyContainer(lease.id),)
    node.passes(59)
    assert node.is_in(lease) == "active"
    node.passes(1)
    assert node.is_in(lease) == "draining"


def test_it_is_queued_again_behind_those_that_wait_and_comes_back_by_itself() -> None:
    node = Node()
    lease, winner = node.run(), node.ask(caller=BOB)
    again = node.gives_way(lease)
    assert isinstance(again.state, Requeued)
    assert isinstance(node.of(winner).state, Reserved)
    assert [one.lease for one in decisions(node.state, node.now)] == [lease.id]
    node.send(m.ReleaseAsked(winner.id, BOB))
    assert isinstance(node.of(lease).state, Starting)
    assert MakeEdits(lease.id) in node.step.instructions
    node.passes(1)
    assert StartContainer(lease.id, ContainerId(f"box-{lease.id}")) in node.step.instructions
    assert isinstance(node.see(lease, Condition.RUNNING).state, Starting)  # held until the start is done
    node.send(m.RestartDone(lease.id))
    assert isinstance(node.see(lease, Condition.RUNNING).state, Active)
    assert node.of(lease).notice is None


def test_it_stands_before_those_who_ask_later() -> None:
    node = Node()
    lease = node.run()
    node.ask(caller=BOB)
    node.gives_way(lease)
    later = node.ask(caller=BOB)
    assert [one.lease for one in decisions(node.state, node.now)] == [lease.id, later.id]


def test_one_that_waits_again_can_be_held_and_moved_as_others_in_the_queue() -> None:
    node = Node()
    lease, winner = node.run(), node.ask(caller=BOB)
    node.gives_way(lease)
    other = node.ask()
    node.send(m.PriorityAsked(other.id, ALICE, 7))
    assert [one.lease for one in decisions(node.state, node.now)] == [other.id, lease.id]
    node.send(m.PriorityAsked(lease.id, ALICE, 9))
    assert [one.lease for one in decisions(node.state, node.now)] == [lease.id, other.id]
    node.send(m.HoldAsked(lease.id, ALICE, held=True))
    node.send(m.ReleaseAsked(winner.id, BOB))
    assert (node.is_in(lease), node.is_in(other)) == ("requeued", "reserved")
    node.send(m.HoldAsked(lease.id, ALICE, held=False))
    node.send(m.ReleaseAsked(other.id, ALICE))
    assert node.is_in(lease) == "starting"


def test_its_time_limit_begins_again() -> None:
    node = Node()
    lease = node.run(replace(WHOLE, time_limit_seconds=3600))
    winner = node.ask(caller=BOB)
    node.gives_way(lease)
    assert node.of(lease).expires_at is None
    node.send(m.ReleaseAsked(winner.id, BOB))
    assert node.of(lease).expires_at == node.now + 3600


def test_more_time_for_a_lease_that_waits_for_its_start_is_there_then() -> None:
    node = Node()
    lease = node.run(replace(WHOLE, time_limit_seconds=3600))
    winner = node.ask(caller=BOB)
    node.gives_way(lease)
    node.send(m.ExtendAsked(lease.id, ALICE, 7200))
    node.send(m.ReleaseAsked(winner.id, BOB))
    assert node.of(lease).expires_at == node.now + 3600 + 7200


def test_a_container_that_nobody_could_start_again_ends_as_preempted() -> None:
    node = Node()
    lease = node.run(stays=False)
    assert step_of(node.of(lease), node.state) is Rung.STOP
    node.ask(caller=BOB)
    ended = node.gives_way(lease).state
    assert isinstance(ended, Ended)
    assert isinstance(ended.outcome, Preempted)


def test_a_container_that_was_removed_meanwhile_is_not_queued_again() -> None:
    node = Node()
    lease = node.run()
    node.send(m.PreemptAsked(lease.id, ROOT))
    node.passes(60)
    node.see(lease, Condition.EXITED, 143)
    node.see(lease, Condition.GONE)
    node.passes(1)
    node.sample()
    assert node.is_in(lease) == "ended"


def test_a_queued_container_that_is_removed_leaves_the_queue() -> None:
    node = Node()
    lease = node.run()
    node.ask(caller=BOB)
    node.gives_way(lease)
    assert isinstance(node.see(lease, Condition.GONE).state, Ended)


def test_a_queued_container_that_somebody_starts_beside_us_is_stopped() -> None:
    node = Node()
    lease = node.run()
    node.ask(caller=BOB)
    node.gives_way(lease)
    state = node.see(lease, Condition.RUNNING).state
    assert isinstance(state, Draining)
    assert isinstance(state.outcome, Failed)
    assert any(isinstance(one, StopContainer) for one in node.step.instructions)


@pytest.mark.parametrize("late", [True, False])
def test_it_comes_back_to_any_gpu_where_the_engine_gives_settings_anew_and_else_to_its_own(
    late: bool,
) -> None:
    node = Node(gpus=2, means=replace(CHECKPOINTS, no_checkpoint="none here", binds_late=late))
    lease, other = node.run(), node.run()
    (own,) = node.of(lease).grants
    winner = node.ask(caller=BOB)
    node.gives_way(lease)
    assert node.of(winner).grants[0].gpu == own.gpu
    node.send(m.StopAsked(other.id, ALICE, 0))
    node.see(other, Condition.EXITED, 0)
    node.passes(1)
    node.sample()
    assert (node.is_in(lease) == "starting") is late


def test_only_administrators_preempt() -> None:
    node = Node()
    lease = node.run()
    with pytest.raises(PermissionRefused):
        node.send(m.PreemptAsked(lease.id, ALICE))


def test_preempting_twice_tells_once() -> None:
    node = Node()
    lease = node.run()
    node.send(m.PreemptAsked(lease.id, ROOT))
    assert node.send(m.PreemptAsked(lease.id, ROOT)).instructions == ()


def test_a_reservation_that_gives_way_is_over() -> None:
    node = Node()
    lease = node.ask()
    node.send(m.PreemptAsked(lease.id, ROOT))
    assert node.is_in(lease) == "ended"


def test_a_program_that_ends_by_itself_while_it_is_told_has_finished() -> None:
    node = Node()
    lease = node.run()
    node.send(m.PreemptAsked(lease.id, ROOT))
    node.see(lease, Condition.EXITED, 0)
    node.passes(1)
    node.sample()
    assert node.of(lease).state == Ended(Finished(0), node.now, lease.grants)


# --- off the GPUs and back -----------------------------------------------------------------------------


@pytest.fixture
def able() -> Node:
    """A node where CUDA checkpoints work."""
    return Node(means=CHECKPOINTS)


def suspend(node: Node, lease: Lease) -> None:
    node.send(m.PauseAsked(lease.id, ALICE))
    assert isinstance(node.of(lease).state, Suspending)
    assert SuspendContainer(lease.id, ContainerId(f"box-{lease.id}")) in node.step.instructions
    node.see(lease, Condition.PAUSED)
    node.send(m.ContainerSuspended(lease.id))


def test_a_paused_lease_gives_its_gpu_to_the_next_and_waits_for_its_owner(able: Node) -> None:
    lease, winner = able.run(), able.ask(caller=BOB)
    suspend(able, lease)
    assert isinstance(able.of(lease).state, Suspended)
    assert isinstance(able.of(winner).state, Reserved)
    able.send(m.ReleaseAsked(winner.id, BOB))
    assert able.is_in(lease) == "suspended"
    able.send(m.ResumeAsked(lease.id, ALICE))
    assert isinstance(able.of(lease).state, Resuming)
    assert ResumeContainer(lease.id, ContainerId(f"box-{lease.id}")) in able.step.instructions
    able.send(m.ContainerResumed(lease.id))
    assert able.is_in(lease) == "active"


@pytest.mark.parametrize(("wanted", "gives_way"), [(8 * GIB, False), (2 * GIB, True)])
def test_a_lease_is_not_paused_for_a_request_that_lacks_the_memory_which_stays_on_the_host(
    able: Node, wanted: int, *, gives_way: bool
) -> None:
    """The memory of a paused container is not free, so the request could not start when it has left."""
    rules = Rules(policy=Policy(projects={"paid": PAID}))
    able.state = replace(able.state.with_rules(rules), host=HostSize(None, 10 * GIB))
    lease = able.run(replace(WHOLE, host_memory_bytes=8 * GIB))
    able.passes(600)
    winner = able.ask(replace(WHOLE, host_memory_bytes=wanted), BOB)
    assert able.is_in(lease) == ("suspending" if gives_way else "active")
    able.send(m.ContainerSuspended(lease.id))
    assert able.is_in(winner) == ("reserved" if gives_way else "queued")


def test_nobody_else_gets_the_memory_of_a_lease_that_is_being_paused() -> None:
    """Another request may have a free GPU in the meantime, but not what the host does not have."""
    node = Node(gpus=2, means=CHECKPOINTS)
    paid = replace(PAID, quota=Quota(2000))
    node.state = replace(
        node.state.with_rules(Rules(policy=Policy(projects={"paid": paid}))), host=HostSize(None, 10 * GIB)
    )
    lease = node.run(replace(WHOLE, host_memory_bytes=8 * GIB))
    node.passes(600)
    (held,) = lease.grants
    node.ask(replace(WHOLE, gpus=(held.gpu,), host_memory_bytes=GIB), BOB)
    assert node.is_in(lease) == "suspending"
    other = node.ask(replace(WHOLE, host_memory_bytes=2 * GIB), BOB)
    assert node.is_in(other) == "queued"
    node.send(m.ContainerSuspended(lease.id))
    assert node.is_in(other) == "queued"


def test_a_suspended_container_that_somebody_thawed_is_frozen_again(able: Node) -> None:
    """Its GPUs may be somebody else's; surveys see it run until it is frozen, and tell it once."""
    lease = able.run()
    suspend(able, lease)
    box = ContainerId(f"box-{lease.id}")
    for _ in range(2):
        able.see(lease, Condition.RUNNING)
        assert able.step.instructions == (FreezeAgain(lease.id, box),)
    able.see(lease, Condition.PAUSED)
    assert able.step.instructions == ()
    assert able.is_in(lease) == "suspended"
    assert [entry.text for entry in able.of(lease).story].count(THAWED) == 1


def test_a_thawed_container_that_cannot_be_frozen_again_is_stopped(able: Node) -> None:
    lease = able.run()
    suspend(able, lease)
    able.see(lease, Condition.RUNNING)
    able.send(m.SuspendFailed(lease.id, "no memory"))
    assert able.is_in(lease) == "draining"
    assert StopContainer(lease.id, ContainerId(f"box-{lease.id}"), 0) in able.step.instructions


def test_its_grants_count_until_its_memory_is_really_on_the_host(able: Node) -> None:
    lease, waits = able.run(), able.ask(caller=BOB)
    able.send(m.PauseAsked(lease.id, ALICE))
    able.sample()
    assert able.is_in(waits) == "queued"


def test_who_gives_way_comes_back_without_being_asked(able: Node) -> None:
    lease, winner = able.run(), able.ask(caller=BOB)
    assert step_of(able.of(lease), able.state) is Rung.SUSPEND
    able.send(m.PreemptAsked(lease.id, ROOT))
    able.send(m.ContainerSuspended(lease.id))
    able.send(m.ReleaseAsked(winner.id, BOB))
    assert able.is_in(lease) == "resuming"


def test_a_suspended_lease_is_held_while_it_waits_for_room_and_not_while_it_is_paused(able: Node) -> None:
    lease, winner = able.run(), able.ask(caller=BOB)
    suspend(able, lease)
    with pytest.raises(StateConflict, match="is suspended and does not wait"):
        able.send(m.HoldAsked(lease.id, ALICE, held=True))
    able.send(m.ResumeAsked(lease.id, ALICE))
    able.send(m.HoldAsked(lease.id, ALICE, held=True))
    able.send(m.ReleaseAsked(winner.id, BOB))
    assert able.is_in(lease) == "suspended"
    able.send(m.HoldAsked(lease.id, ALICE, held=False))
    assert able.is_in(lease) == "resuming"


def test_its_time_does_not_run_while_it_is_off(able: Node) -> None:
    lease = able.run(replace(WHOLE, time_limit_seconds=3600))
    able.passes(600)
    suspend(able, lease)
    able.passes(100_000)
    able.send(m.ResumeAsked(lease.id, ALICE))
    assert able.of(lease).expires_at == able.now + 3000


@pytest.mark.parametrize("state", [Suspending, Suspended, Resuming])
def test_more_time_for_a_lease_that_is_off_its_gpus_is_there_when_it_is_back(
    able: Node, state: type[Suspending | Suspended | Resuming]
) -> None:
    lease = able.run(replace(WHOLE, time_limit_seconds=3600))
    able.passes(600)
    able.send(m.PauseAsked(lease.id, ALICE))
    if state is not Suspending:
        able.send(m.ContainerSuspended(lease.id))
    if state is Resuming:
        able.send(m.ResumeAsked(lease.id, ALICE))
    assert isinstance(able.of(lease).state, state)
    able.send(m.ExtendAsked(lease.id, ALICE, 7200))
    able.send(m.ContainerSuspended(lease.id))
    able.send(m.ResumeAsked(lease.id, ALICE))
    assert able.of(lease).expires_at == able.now + 3000 + 7200


def test_it_comes_back_to_its_own_gpu_only() -> None:
    node = Node(gpus=2, means=CHECKPOINTS)
    lease = node.run()
    suspend(node, lease)
    (held,) = lease.grants
    winner = node.ask(replace(WHOLE, gpus=(held.gpu,)), BOB)
    node.send(m.ResumeAsked(lease.id, ALICE))
    assert (node.is_in(winner), node.is_in(lease)) == ("reserved", "suspended")
    (decision,) = decisions(node.state, node.now)
    text = waiting(decision, node.state, 1, node.now).text
    assert text.startswith("needs 1 whole GPU; 0 of 1 are free (bob holds 80 GiB)")


@pytest.mark.parametrize(
    ("means", "why"),
    [
        (replace(CHECKPOINTS, no_checkpoint="the driver is too old"), "too old"),
        (replace(CHECKPOINTS, checkpoint_with_mps=False), "MPS"),
    ],
)
def test_a_pause_that_would_keep_the_gpu_taken_is_refused(means: m.Means, why: str) -> None:
    node = Node(means=means)
    lease = node.run()
    with pytest.raises(StateConflict, match=why) as refused:
        node.send(m.PauseAsked(lease.id, ALICE))
    assert "docker pause" in refused.value.hint


def test_a_checkpoint_that_fails_leaves_the_lease_running_and_the_next_remedy_follows(able: Node) -> None:
    lease = able.run()
    able.send(m.PreemptAsked(lease.id, ROOT))
    able.send(m.SuspendFailed(lease.id, "it uses managed memory"))
    assert able.is_in(lease) == "active"
    assert step_of(able.of(lease), able.state) is Rung.REQUEUE
    with pytest.raises(StateConflict, match="managed memory"):
        able.send(m.PauseAsked(lease.id, ALICE))


FEW = ContainerMemory(8 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("memory", "on_gpus", "step"),
    [
        pytest.param(FEW, 5 * GIB, Rung.SUSPEND, id="its GPU memory just fits into its limit"),
        pytest.param(FEW, 5 * GIB + 1, Rung.REQUEUE, id="a byte more would be too much"),
        pytest.param(ContainerMemory(8 * GIB), 8 * GIB, Rung.SUSPEND, id="it has nothing there yet"),
        pytest.param(ContainerMemory(0, 3 * GIB), 80 * GIB, Rung.SUSPEND, id="it has no limit"),
        pytest.param(None, 80 * GIB, Rung.SUSPEND, id="nobody told of a limit"),
        pytest.param(FEW, 0, Rung.SUSPEND, id="it uses nothing on its GPUs"),
        pytest.param(FEW, None, Rung.REQUEUE, id="the driver tells of no bytes, so all that it holds counts"),
    ],
)
def test_gpu_memory_that_its_container_may_not_have_on_the_host_is_not_moved_there(
    able: Node, memory: ContainerMemory | None, on_gpus: int | None, step: Rung
) -> None:
    lease = able.run()
    able.tell(lease, memory)
    able.uses(lease, on_gpus)
    assert step_of(able.of(lease), able.state) is step
    able.send(m.PreemptAsked(lease.id, ROOT))
    assert able.is_in(lease) == ("suspending" if step is Rung.SUSPEND else "active")


def test_the_reason_is_told_with_the_figures(able: Node) -> None:
    lease = able.run()
    able.tell(lease, FEW)
    able.uses(lease, 6 * GIB)
    why = (
        "the 6 GiB on its GPUs would come to the 3 GiB that its container has of the host's memory, "
        "and it may have 8 GiB"
    )
    assert f"started again when there is room, because {why}" in when_others_need_it(
        able.of(lease), able.state, able.now
    )
    with pytest.raises(StateConflict, match=why):
        able.send(m.PauseAsked(lease.id, ALICE))


def test_a_larger_limit_takes_it_back(able: Node) -> None:
    lease = able.run()
    able.tell(lease, FEW)
    able.uses(lease, 6 * GIB)
    able.tell(lease, replace(FEW, limit_bytes=9 * GIB))
    able.send(m.PauseAsked(lease.id, ALICE))
    assert able.is_in(lease) == "suspending"


def test_one_that_grew_before_its_checkpoint_began_takes_the_next_step_and_may_be_tried_again(
    able: Node,
) -> None:
    able.state = able.state.with_rules(Rules(policy=Policy(projects={"paid": PAID})))
    lease = able.run()
    able.tell(lease, ContainerMemory(8 * GIB))
    able.uses(lease, 6 * GIB)
    able.passes(600)
    winner = able.ask(caller=BOB)
    assert able.is_in(lease) == "suspending"
    able.tell(lease, FEW)
    able.send(m.SuspendFailed(lease.id, "too little memory", lasting=False))
    assert able.of(lease).notice is None
    able.passes(150)  # it would lose its work now: the winner waits for a quarter of it
    notice = able.of(lease).notice
    assert notice is not None
    assert (notice.kind, able.of(lease).preemption.suspend_trouble) == (NoticeKind.PREEMPTED, "")
    able.passes(60)
    able.see(lease, Condition.EXITED, 143)
    able.passes(1)
    able.sample()
    assert (able.is_in(winner), able.is_in(lease)) == ("reserved", "requeued")


def test_what_was_told_of_containers_is_forgotten_with_their_leases(able: Node) -> None:
    first = able.run(HALF)
    able.tell(first, FEW)
    able.see(first, Condition.GONE)
    able.sample()
    second = able.run(HALF)
    able.tell(second, FEW)
    assert able.state.container_memory == {second.id: FEW}


def test_a_lease_that_cannot_be_brought_back_stays_as_it_is_and_may_be_tried_again(able: Node) -> None:
    lease = able.run()
    suspend(able, lease)
    able.send(m.ResumeAsked(lease.id, ALICE))
    able.send(m.ResumeFailed(lease.id, "the GPU is full"))
    assert able.is_in(lease) == "suspended"
    able.send(m.ResumeAsked(lease.id, ALICE))
    assert able.is_in(lease) == "resuming"


def test_what_was_not_done_in_time_is_asked_again(able: Node) -> None:
    lease = able.run()
    box = ContainerId(f"box-{lease.id}")
    able.send(m.PauseAsked(lease.id, ALICE))
    able.passes(60)
    assert SuspendContainer(lease.id, box) in able.step.instructions
    able.send(m.ContainerSuspended(lease.id))
    able.send(m.ResumeAsked(lease.id, ALICE))
    able.passes(60)
    assert ResumeContainer(lease.id, box) in able.step.instructions


@pytest.mark.parametrize(("condition", "code"), [(Condition.EXITED, 137), (Condition.GONE, None)])
def test_a_suspended_container_that_ends_has_nothing_to_drain(
    able: Node, condition: Condition, code: int | None
) -> None:
    lease = able.run()
    suspend(able, lease)
    assert isinstance(able.see(lease, condition, code).state, Ended)
    assert DropEdits(lease.id, lease.device_name) in able.step.instructions


def test_a_suspended_container_that_its_restart_policy_starts_is_stopped(able: Node) -> None:
    lease = able.run()
    suspend(able, lease)
    assert isinstance(able.see(lease, Condition.RESTARTING, 1).state, Draining)


def test_a_container_killed_while_it_is_taken_off_is_drained_as_ever(able: Node) -> None:
    lease = able.run()
    able.send(m.PauseAsked(lease.id, ALICE))
    assert isinstance(able.see(lease, Condition.EXITED, 137).state, Draining)


def test_a_suspended_lease_can_be_stopped(able: Node) -> None:
    lease = able.run()
    suspend(able, lease)
    able.send(m.StopAsked(lease.id, ALICE, 0))
    able.see(lease, Condition.EXITED, 137)
    able.passes(1)
    able.sample()
    assert able.is_in(lease) == "ended"


@pytest.mark.parametrize("ask", [m.PauseAsked, m.ResumeAsked])
def test_nobody_pauses_or_resumes_the_leases_of_others(
    able: Node, ask: type[m.PauseAsked | m.ResumeAsked]
) -> None:
    lease = able.run()
    with pytest.raises(PermissionRefused):
        able.send(ask(lease.id, BOB))
