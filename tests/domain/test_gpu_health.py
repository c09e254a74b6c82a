"""Sick and drained GPUs: who gets them no more, what becomes of the leases there, and who may say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.explain import waiting
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import DropEdits, StopContainer
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import (
    MIB,
    Drained,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.domain.model.lease import (
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Failed,
    Finished,
    Lease,
    LeaseId,
    MemoryWall,
    Walls,
    state_name,
)
from gpushared.domain.model.request import Caller, Isolation, Request

ALICE, BOB = Caller(1000, 1000, "alice"), Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
TOTAL = 80 * 1024 * MIB
ONE, TWO = (Gpu(GpuId(f"GPU-{n}"), n, "H100", TOTAL, TOTAL) for n in range(2))
BOTH = frozenset((ONE.id, TWO.id))
QUARTER = Request(1, 250, None, 250)
ON_BOTH = Request(2, 250, None, 250)
MPS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
OFF_THE_BUS = Failed(
    "GPU 0 fell off the bus (XID 79)", "reset it (`nvidia-smi -r -i 0`) or reboot, then `gpushare undrain 0`"
)


class Node:
    """A node with two GPUs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = NodeState()
        self.send(m.GpusSurveyed((ONE, TWO)))
        self.send(m.EngineSurveyed((), self.now))

    def send(self, event: m.Event, after: float = 0.0) -> Step:
        self.now += after
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step

    def ask(self, request: Request = QUARTER, caller: Caller = ALICE) -> LeaseId:
        lease = self.send(m.RequestSubmitted(request, caller)).lease
        assert lease is not None
        return lease.id

    def run(self, request: Request = QUARTER, caller: Caller = ALICE) -> LeaseId:
        lease = self.ask(request, caller)
        self.send(m.ClaimAsked(lease, caller))
        self.send(m.ContainerCreated(lease, box(lease), "box", "image"))
        self.send(m.EditsMade(lease, MPS))
        self.send(m.ContainerSeen(box(lease), Condition.RUNNING))
        return lease

    def sample(self, **what: object) -> Step:
        """A quarter of a second later, with everybody who runs on the GPUs."""
        used = {
            one.id: {grant.gpu: MIB for grant in one.grants}
            for one in self.state.leases.values()
            if state_name(one.state) in {"active", "paused"}
        }
        given = {"busy": frozenset(used), "stray_bytes": {}, "readable": BOTH, "used_bytes": used, **what}
        self.now += 0.25
        return self.send(m.GpusSampled(self.now, **given))  # type: ignore[arg-type]

    def lose(self, *gpus: Gpu, trouble: str = "The GPU is lost: it does not answer (see `dmesg`)") -> Step:
        lost = frozenset(gpu.id for gpu in gpus)
        return self.sample(lost=lost, readable=BOTH - lost, troubles=dict.fromkeys(lost, trouble))

    def exit(self, lease: LeaseId, code: int | None = 0) -> Step:
        return self.send(m.ContainerSeen(box(lease), Condition.EXITED, exit_code=code))

    def drain(self, gpu: Gpu, reason: str | None = "new fan", caller: Caller = ROOT) -> Step:
        return self.send(m.GpuDrainAsked(gpu.id, caller, reason))

    def lease(self, lease: LeaseId) -> Lease:
        return self.state.find(lease)

    def outcome(self, lease: LeaseId) -> object:
        state = self.lease(lease).state
        return state.outcome if isinstance(state, Ended | Draining) else None

    def why_waits(self, lease: LeaseId) -> tuple[str, str]:
        (decision,) = [one for one in decisions(self.state, self.now) if one.lease == lease]
        reason = waiting(decision, self.state, 1, self.now)
        return reason.reason, reason.text


def box(lease: LeaseId) -> ContainerId:
    return ContainerId(f"box-{lease}")


def stops(step: Step) -> list[StopContainer]:
    return [one for one in step.instructions if isinstance(one, StopContainer)]


def told(lease: Lease) -> list[str]:
    return [entry.text for entry in lease.story]


# --- sick GPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("xids", "lost", "reason"),
    [
        ((79,), False, "fell off the bus (XID 79)"),
        ((45, 48), False, "met a memory error that it cannot correct (XID 48)"),
        ((777,), False, "reported an error that its driver calls critical (XID 777)"),
        ((79,), True, "fell off the bus (XID 79)"),
        ((), True, "is lost: it does not answer"),
        ((31,), True, "is lost: it does not answer"),
    ],
)
def test_a_gpu_is_drained_when_it_is_lost_or_has_an_error_that_no_program_made(
    xids: tuple[int, ...], lost: bool, reason: str
) -> None:
    node = Node()
    trouble = {ONE.id: "The GPU is lost: it does not answer (see `dmesg`)"} if lost else {}
    step = node.sample(
        xids={ONE.id: xids}, lost=frozenset(trouble), troubles=trouble, readable=BOTH - trouble.keys()
    )
    assert step.drained == {ONE.id: Drained(reason, node.now, "gpushared", sick=True)}
    assert node.sample().drained is None, "nothing new is to be written"


@pytest.mark.parametrize(
    "xid", [8, 11, 13, 31, 32, 37, 39, 43, 45, 60, 63, 68, 69, 92, 94, 99, 105, 109, 126, 135, 137, 139, 154]
)
def test_an_error_of_a_program_or_one_that_was_mended_does_not_drain(xid: int) -> None:
    node = Node()
    assert node.sample(xids={ONE.id: (xid,)}).drained is None
    assert not node.state.drained


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("The GPU is gone: the driver does not list it (reboot)", "is gone: the driver does not list it"),
        ("The GPU has to be reset before it can be used (stop it)", "has to be reset before it can be used"),
        ("fell off the bus", "is lost: fell off the bus"),
        ("", "is lost"),
    ],
)
def test_the_drivers_own_words_say_why_it_is_lost(trouble: str, reason: str) -> None:
    node = Node()
    node.lose(ONE, trouble=trouble)
    assert node.state.drained[ONE.id].reason == reason


def test_a_gpu_that_does_not_answer_is_not_taken_for_lost() -> None:
    node = Node()
    node.run()
    node.sample(troubles={ONE.id: "gave up on a call"}, readable=frozenset((TWO.id,)))
    assert not node.state.drained
    assert [state_name(one.state) for one in node.state.leases.values()] == ["active"]


def test_leases_on_a_sick_gpu_end_with_what_happened_and_what_to_do_and_others_run_on() -> None:
    node = Node()
    there, neighbour = node.run(), node.run(Request(isolation=Isolation.EXCLUSIVE), BOB)
    step = node.sample(xids={ONE.id: (79,)})
    assert stops(step) == [StopContainer(there, box(there), 2)]
    node.exit(there, 1)
    node.lose(ONE)
    assert node.outcome(there) == OFF_THE_BUS
    assert told(node.lease(there))[-3:] == [
        "GPU 0 fell off the bus (XID 79)",
        "the container has ended",
        "its memory is back",
    ]
    assert state_name(node.lease(neighbour).state) == "active"


def test_a_lease_over_several_gpus_ends_too_and_its_other_part_comes_free() -> None:
    node = Node()
    lease = node.run(ON_BOTH)
    node.lose(ONE)
    node.exit(lease, 1)
    node.lose(ONE)
    assert isinstance(node.lease(lease).state, Ended)
    assert node.state.capacities()[TWO.id].free_permille == 1000


def test_a_reservation_on_a_sick_gpu_ends_without_waiting_for_a_container() -> None:
    node = Node()
    lease = node.ask()
    step = node.sample(xids={ONE.id: (79,)})
    assert node.outcome(lease) == OFF_THE_BUS
    assert DropEdits(lease, str(lease)) in step.instructions


def test_a_reservation_may_have_a_container_before_the_engine_was_asked() -> None:
    node = Node()
    lease = node.ask()
    node.state = replace(node.state, engine_surveyed=False)
    node.sample(xids={ONE.id: (79,)})
    assert state_name(node.lease(lease).state) == "reserved"
    node.send(m.EngineSurveyed((), node.now + 1), after=2)
    node.sample()
    assert node.outcome(lease) == OFF_THE_BUS


def test_memory_on_a_lost_gpu_counts_as_back_because_nothing_will_ever_show_it() -> None:
    node = Node()
    lease = node.run()
    node.exit(lease)
    quiet = {"troubles": {ONE.id: "no answer"}, "readable": frozenset((TWO.id,))}
    node.sample(**quiet)
    assert isinstance(node.lease(lease).state, Draining), "it may yet answer"
    node.lose(ONE)
    assert node.outcome(lease) == Finished(0)
    assert isinstance(node.lease(lease).state, Ended)


def test_memory_on_a_sick_gpu_that_fell_silent_counts_as_back_too() -> None:
    node = Node()
    lease = node.run()
    node.sample(xids={ONE.id: (119,)})
    node.exit(lease, 137)
    node.sample(troubles={ONE.id: "no answer"}, readable=frozenset((TWO.id,)))
    assert isinstance(node.lease(lease).state, Ended)


def test_who_waits_is_told_of_sick_gpus_and_gets_another() -> None:
    node = Node()
    node.lose(ONE)
    whole = Request(isolation=Isolation.EXCLUSIVE)
    elsewhere = node.lease(node.ask(whole))
    assert [grant.gpu for grant in elsewhere.grants] == [TWO.id]
    node.lose(ONE, TWO)
    waits = node.ask()
    assert node.why_waits(waits) == (
        "gpu_unhealthy",
        "no healthy GPU has room: each of GPUs 0, 1 is lost: it does not answer",
    )
    node.sample()
    for gpu in (ONE, TWO):
        node.drain(gpu, None)
    assert state_name(node.lease(waits).state) == "reserved"


# --- errors of programs --------------------------------------------------------------------------------

SEGFAULT = "on GPU 0 a program used GPU memory that it does not have (XID 31)"


def test_the_error_of_a_program_is_told_once_to_the_leases_that_are_there() -> None:
    node = Node()
    there, idle = node.run(), node.run(caller=BOB)
    elsewhere = node.run(Request(isolation=Isolation.EXCLUSIVE))
    used = {there: {ONE.id: MIB}, elsewhere: {TWO.id: MIB}}
    for _ in range(3):
        node.sample(xids={ONE.id: (31, 31)}, used_bytes=used)
    assert told(node.lease(there)).count(SEGFAULT) == 1
    assert SEGFAULT not in told(node.lease(idle)) + told(node.lease(elsewhere))
    assert not node.lease(there).health.fault, "it was alone on the server: its own error"


def test_a_process_that_its_error_ended_was_there_a_moment_ago() -> None:
    node = Node()
    lease = node.run()
    node.sample()
    node.sample(xids={ONE.id: (31,)}, used_bytes={}, busy=frozenset())
    assert told(node.lease(lease))[-1] == SEGFAULT


def test_the_error_of_a_program_on_a_mig_instance_is_told_to_the_leases_on_that_gpu() -> None:
    """The driver tells errors of GPUs, and use of instances."""
    node = Node()
    mig = MigInstance(0, "1g.10gb", 125, 142)
    part = Gpu(GpuId("MIG-1"), 0, "H100 MIG", TOTAL // 8, TOTAL // 8, parent=ONE.id, mig=mig)
    node.send(m.GpusSurveyed((replace(ONE, split=True), part, TWO)))
    lease = node.run(Request(isolation=Isolation.MIG))
    node.sample(xids={ONE.id: (31,)})
    assert told(node.lease(lease))[-1] == SEGFAULT


@pytest.mark.parametrize(("xid", "hit"), [(13, True), (31, True), (43, False), (45, False)])
def test_through_mps_some_errors_of_one_hit_every_lease_there(xid: int, hit: bool) -> None:
    node = Node()
    both = node.run(), node.run(caller=BOB)
    node.sample(xids={ONE.id: (xid,)})
    for lease in both:
        assert ("which through MPS hits every lease there" in told(node.lease(lease))[-1]) is hit
        assert bool(node.lease(lease).health.fault) is hit


# --- what people ask -----------------------------------------------------------------------------------


def test_a_drained_gpu_gets_no_new_leases_and_those_there_run_on() -> None:
    node = Node()
    lease = node.run()
    step = node.drain(ONE)
    assert step.drained == {ONE.id: Drained("new fan", node.now, "root")}
    node.sample()
    assert state_name(node.lease(lease).state) == "active"
    assert told(node.lease(lease))[-1] == "root drained GPU 0 (new fan); it runs on"
    assert [grant.gpu for grant in node.lease(node.ask()).grants] == [TWO.id]
    node.drain(TWO)
    waits = node.ask()
    assert node.why_waits(waits) == (
        "gpu_unhealthy",
        "no healthy GPU has room: each of GPUs 0, 1 is drained by root: new fan",
    )
    node.drain(TWO, None)
    assert [grant.gpu for grant in node.lease(waits).grants] == [TWO.id]


def test_draining_again_changes_the_reason_and_undraining_again_nothing() -> None:
    node = Node()
    node.drain(ONE)
    since = node.now
    node.now += 60
    node.drain(ONE, " two new fans ", replace(ROOT, name="carol"))
    assert node.state.drained[ONE.id] == Drained("two new fans", since, "carol")
    node.drain(ONE, None)
    assert node.drain(ONE, None).drained is None


@pytest.mark.parametrize(
    ("event", "error", "says"),
    [
        (m.GpuDrainAsked(ONE.id, ALICE, "mine"), PermissionRefused, "only trusted callers may drain"),
        (m.GpuDrainAsked(ONE.id, ALICE, None), PermissionRefused, "only trusted callers may undrain"),
        (m.GpuDrainAsked(GpuId("GPU-9"), ROOT, "x"), NotFound, "there is no GPU"),
        (m.GpuDrainAsked(ONE.id, ROOT, "  "), RequestError, "needs a reason"),
        (m.GpuDrainAsked(ONE.id, ROOT, "a\nb"), RequestError, "needs a reason"),
        (m.GpuDrainAsked(ONE.id, ROOT, "x" * 201), RequestError, "needs a reason"),
    ],
)
def test_who_may_drain_what_and_how(event: m.GpuDrainAsked, error: type[GpushareError], says: str) -> None:
    node = Node()
    with pytest.raises(error, match=says):
        node.send(event)


def test_a_sick_gpu_stays_so_when_somebody_would_drain_it() -> None:
    node = Node()
    node.sample(xids={ONE.id: (79,)})
    with pytest.raises(StateConflict, match=r"drained already: it fell off the bus"):
        node.drain(ONE)


def test_a_gpu_that_is_still_lost_cannot_be_undrained_and_one_that_answers_can() -> None:
    node = Node()
    node.lose(ONE)
    with pytest.raises(StateConflict, match=r"GPU 0 is still lost") as caught:
        node.drain(ONE, None)
    assert "nvidia-smi -r -i 0" in caught.value.hint
    node.sample()
    assert node.state.drained, "that it answers again does not mean that somebody looked after it"
    node.drain(ONE, None)
    assert not node.state.drained


def test_what_is_drained_stays_so_over_a_restart() -> None:
    node = Node()
    node.sample(xids={ONE.id: (79,)})
    again = restore(NodeState(), (), 1, drained=node.state.drained)
    assert again.drained == node.state.drained


def test_a_gpus_drain_holds_for_its_instances() -> None:
    node = Node()
    part = Gpu(GpuId("MIG-1"), 0, "H100 MIG", TOTAL // 8, TOTAL // 8, parent=ONE.id)
    node.send(m.GpusSurveyed((ONE, part, TWO)))
    node.sample(xids={ONE.id: (79,)})
    drained = node.state.drain_of(part.id)
    assert drained is not None
    assert drained.sick
    assert node.state.capacities()[part.id].gpu.trouble == "fell off the bus (XID 79)"
