"""When leases may start and must end: holds, begin times, order, more time, and being told of the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import MakeEdits, NotifyContainer
from gpushared.domain.leases.node_machine import handle
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
    Ended,
    Lease,
    LeaseId,
    NoticeKind,
    Queued,
    Reserved,
)
from gpushared.domain.model.request import Caller, Isolation, Request
from gpushared.domain.scheduling.placement.free_capacity import Reason

ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
HALF = Request(1, 500, None, 500)
WHOLE = Request(1, 1000, None, 1000, isolation=Isolation.EXCLUSIVE)


class Node:
    """A node with one GPU."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = NodeState()
        self.step = self.send(m.GpusSurveyed((GPU,)))

    def send(self, event: m.Event) -> Step:
        self.step = handle(self.state, event, self.now)
        self.state = self.step.state
        return self.step

    def ask(self, request: Request = HALF, caller: Caller = ALICE, *, held: bool = False) -> Lease:
        lease = self.send(m.RequestSubmitted(request, caller, held=held)).lease
        assert lease is not None
        return lease

    def run(self, request: Request = HALF, caller: Caller = ALICE) -> Lease:
        lease = self.ask(request, caller)
        box = ContainerId(f"box-{lease.id}")
        self.send(m.ClaimAsked(lease.id, caller))
        self.send(m.ContainerCreated(lease.id, box, "box", "image"))
        self.send(m.ContainerSeen(box, m.Condition.RUNNING))
        return self.lease(lease)

    def lease(self, lease: Lease) -> Lease:
        return self.state.find(lease.id)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(m.Tick())

    def why(self, lease: Lease) -> tuple[Reason | None, str]:
        found = next(one for one in decisions(self.state, self.now) if one.lease == lease.id)
        return found.reason, found.text


@pytest.fixture
def node() -> Node:
    return Node()


# --- when it may start ---------------------------------------------------------------------------------


def test_a_held_request_waits_though_there_is_room_and_starts_when_it_is_let_go(node: Node) -> None:
    lease = node.ask(held=True)
    assert isinstance(lease.state, Queued)
    assert node.why(lease) == (Reason.HELD, "is held by alice")
    node.send(m.HoldAsked(lease.id, ALICE, held=False))
    assert isinstance(node.lease(lease).state, Reserved)


def test_a_held_request_does_not_keep_others_waiting(node: Node) -> None:
    node.ask(WHOLE, held=True)
    assert isinstance(node.ask(HALF, BOB).state, Reserved)


def test_a_waiting_request_can_be_held_and_keeps_its_place(node: Node) -> None:
    node.run(WHOLE)
    first, second = node.ask(HALF), node.ask(HALF)
    node.send(m.HoldAsked(first.id, ALICE, held=True))
    assert [one.lease for one in decisions(node.state, node.now)] == [second.id, first.id]
    node.send(m.HoldAsked(first.id, ALICE, held=False))
    assert [one.lease for one in decisions(node.state, node.now)] == [first.id, second.id]


def test_who_was_held_by_an_administrator_cannot_let_themselves_go(node: Node) -> None:
    node.run(WHOLE)
    lease = node.ask(HALF)
    node.send(m.HoldAsked(lease.id, ROOT, held=True))
    with pytest.raises(PermissionRefused, match="held by root"):
        node.send(m.HoldAsked(lease.id, ALICE, held=False))
    node.send(m.HoldAsked(lease.id, ROOT, held=False))
    assert node.lease(lease).held_by == ""


def test_nobody_holds_the_requests_of_others(node: Node) -> None:
    lease = node.ask(held=True)
    with pytest.raises(PermissionRefused):
        node.send(m.HoldAsked(lease.id, BOB, held=False))


def test_what_does_not_wait_cannot_be_held(node: Node) -> None:
    with pytest.raises(StateConflict, match="does not wait"):
        node.send(m.HoldAsked(node.run().id, ALICE, held=True))


def test_a_request_does_not_start_before_its_begin_time(node: Node) -> None:
    lease = node.ask(replace(HALF, begin_at=node.now + 3600))
    assert node.why(lease) == (Reason.BEGIN_TIME, "is to start in 1h at the earliest")
    soon = node.ask(replace(HALF, begin_at=node.now + 2))
    assert node.why(soon) == (Reason.BEGIN_TIME, "is to start in 2s at the earliest")
    node.passes(3599)
    assert isinstance(node.lease(lease).state, Queued)
    node.passes(1)
    assert isinstance(node.lease(lease).state, Reserved)


def test_a_begin_time_is_one_of_the_clock_on_the_wall_which_people_set(node: Node) -> None:
    """Where it is set back the request waits for as much longer, and the offer of its start says so."""
    lease = node.ask(replace(HALF, begin_at=node.now + 3600))
    node.send(m.DayTimeSet(-3600.0))
    assert node.why(lease) == (Reason.BEGIN_TIME, "is to start in 2h at the earliest")
    node.passes(3600)
    assert isinstance(node.lease(lease).state, Queued)
    node.send(m.DayTimeSet(0.0))
    assert isinstance(node.lease(lease).state, Reserved)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_limit_is_not_reached_by_setting_the_clock_and_the_container_reads_the_new_time(
    node: Node, ahead: float
) -> None:
    lease = node.run(replace(HALF, time_limit_seconds=1800))
    assert node.send(m.DayTimeSet(ahead)).instructions == (MakeEdits(lease.id),)
    node.passes(1799)
    assert isinstance(node.lease(lease).state, Active)
    node.passes(1)
    assert not isinstance(node.lease(lease).state, Active)


def test_a_request_starts_after_another_lease_however_that_ends(node: Node) -> None:
    first = node.ask()
    second = node.ask(replace(HALF, after=(first.id,)))
    assert node.why(second) == (Reason.AFTER_LEASE, f"starts after {first.id}")
    node.send(m.ReleaseAsked(first.id, ALICE))
    assert isinstance(node.lease(second).state, Reserved)


def test_a_request_after_a_lease_that_is_over_starts_at_once(node: Node) -> None:
    first = node.ask()
    node.send(m.ReleaseAsked(first.id, ALICE))
    assert isinstance(node.ask(replace(HALF, after=(first.id,))).state, Reserved)


def test_a_request_after_a_lease_that_never_was_is_refused(node: Node) -> None:
    with pytest.raises(NotFound):
        node.ask(replace(HALF, after=(LeaseId("l-none"),)))


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_bounds_is_refused(node: Node, priority: int) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        node.ask(replace(HALF, priority=priority))


def test_a_waiting_request_gets_another_priority_and_asking_the_first_one_again_finds_it(node: Node) -> None:
    node.run(WHOLE)
    event = m.RequestSubmitted(HALF, ALICE, "once")
    lease = node.send(event).lease
    assert lease is not None
    node.send(m.PriorityAsked(lease.id, ALICE, 7))
    assert node.lease(lease).request.priority == 7
    again = node.send(event).lease
    assert again is not None
    assert again.id == lease.id


# --- when it must end ----------------------------------------------------------------------------------

AN_HOUR = replace(HALF, time_limit_seconds=3600)


def test_an_extended_lease_ends_later(node: Node) -> None:
    lease = node.run(AN_HOUR)
    node.send(m.ExtendAsked(lease.id, ALICE, 1800))
    node.passes(3600)
    assert isinstance(node.lease(lease).state, Active)
    node.passes(1800)
    assert not isinstance(node.lease(lease).state, Active)


def test_an_extension_reaches_what_the_container_can_read_of_its_lease(node: Node) -> None:
    lease = node.run(AN_HOUR)
    assert MakeEdits(lease.id) in node.send(m.ExtendAsked(lease.id, ALICE, 1800)).instructions


def test_a_waiting_request_is_extended_before_its_time_begins(node: Node) -> None:
    node.run(WHOLE)
    lease = node.ask(AN_HOUR)
    node.send(m.ExtendAsked(lease.id, ALICE, 60))
    assert node.lease(lease).request.time_limit_seconds == 3660
    assert node.lease(lease).expires_at is None


def test_a_lease_without_a_limit_has_nothing_to_extend(node: Node) -> None:
    with pytest.raises(RequestError, match="no time limit"):
        node.send(m.ExtendAsked(node.run().id, ALICE, 60))


def test_a_lease_that_is_over_is_not_extended(node: Node) -> None:
    lease = node.ask(AN_HOUR)
    node.send(m.ReleaseAsked(lease.id, ALICE))
    assert isinstance(node.lease(lease).state, Ended)
    with pytest.raises(StateConflict):
        node.send(m.ExtendAsked(lease.id, ALICE, 60))


def test_nobody_extends_for_ever(node: Node) -> None:
    with pytest.raises(RequestError, match="too long"):
        node.send(m.ExtendAsked(node.run(AN_HOUR).id, ALICE, 366 * 24 * 3600))


def test_a_lease_whose_end_the_first_in_the_queue_counts_on_is_extended_by_an_administrator_only(
    node: Node,
) -> None:
    lease = node.run(AN_HOUR)
    waits = node.ask(WHOLE, BOB)
    with pytest.raises(LimitReached, match=f"{waits.id} waits for the GPU"):
        node.send(m.ExtendAsked(lease.id, ALICE, 60))
    node.send(m.ExtendAsked(lease.id, ROOT, 60))
    assert node.lease(lease).expires_at == 1000.0 + 3660


# --- being told ----------------------------------------------------------------------------------------


def test_a_program_is_told_once_before_its_time_is_up(node: Node) -> None:
    lease = node.run(AN_HOUR)
    node.passes(3299)
    assert node.lease(lease).notice is None
    node.passes(1)
    notice = node.lease(lease).notice
    assert notice is not None
    assert (notice.kind, notice.until) == (NoticeKind.EXPIRES, 1000.0 + 3600)
    assert NotifyContainer(lease.id) in node.step.instructions
    node.passes(1)
    assert NotifyContainer(lease.id) not in node.step.instructions


def test_a_short_lease_is_told_in_the_middle_of_its_time_and_not_at_its_start(node: Node) -> None:
    lease = node.run(replace(HALF, time_limit_seconds=60))
    node.passes(29)
    assert node.lease(lease).notice is None
    node.passes(1)
    assert node.lease(lease).notice is not None


def test_what_was_told_is_withdrawn_with_an_extension(node: Node) -> None:
    lease = node.run(AN_HOUR)
    node.passes(3400)
    assert NotifyContainer(lease.id) in node.send(m.ExtendAsked(lease.id, ALICE, 7200)).instructions
    assert node.lease(lease).notice is None
