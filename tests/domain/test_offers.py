"""What a request would get: the truth, for those who only ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.explain import Waiting, waiting
from gpushared.domain.leases.forecast import starts
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.offers import Offer, fits_instead, offer
from gpushared.domain.leases.prospects import when_others_need_it
from gpushared.domain.leases.requeue import PreemptionStep
from gpushared.domain.model.errors import NeverFits
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    ContainerId,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    GivesWay,
    Policy,
    PreemptionSetting,
    Project,
    Quota,
)

ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
SIZE = 81920 * MIB
NOW = 1000.0
NOTICE, GRACE = 30, 10


def rules(min_run_seconds: float = 0.0, train: GivesWay = GivesWay.OVER_QUOTA) -> Rules:
    """Project ``red`` is guaranteed a GPU, and it is Bob's."""
    red = Project("red", users=frozenset({"bob"}), quota=Quota(guaranteed=1000))
    of_class = {
        name: replace(one, min_run_seconds=min_run_seconds, gives_way=train)
        for name, one in DEFAULT_CLASSES.items()
    }
    policy = Policy({"red": red}, of_class, notice_seconds=NOTICE, grace_seconds=GRACE)
    return Rules(policy=policy, preempt_notice_seconds=NOTICE, stop_grace_seconds=GRACE)


class Node:
    """GPUs, and leases whose containers run."""

    def __init__(self, gpus: int = 1, by: Rules | None = None) -> None:
        self.now = NOW
        self.state = NodeState(rules=by or rules())
        self.send(m.GpusSurveyed(tuple(Gpu(GpuId(f"GPU-{n}"), n, "H100", SIZE, SIZE) for n in range(gpus))))

    def send(self, event: m.Event) -> Lease | None:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step.lease

    def ask(self, gpu: str, caller: Caller = ALICE, *, time: str = "", lease_class: str = "") -> Lease:
        lease = self.send(m.RequestSubmitted(request(gpu, time=time, lease_class=lease_class), caller))
        assert lease is not None
        return lease

    def run(self, gpu: str, caller: Caller = ALICE, *, time: str = "") -> Lease:
        lease = self.ask(gpu, caller, time=time)
        box = ContainerId(f"box-{lease.id}")
        self.send(m.ClaimAsked(lease.id, caller))
        self.send(m.ContainerCreated(lease.id, box, "box", "image", stays=True))
        self.send(m.ContainerSeen(box, Condition.RUNNING))
        return self.state.find(lease.id)

    def offered(self, gpu: str, caller: Caller = ALICE, *, time: str = "", lease_class: str = "") -> Offer:
        return offer(self.state, request(gpu, time=time, lease_class=lease_class), caller, self.now)

    def instead(self, lease: Lease) -> str:
        return fits_instead(self.state, lease, self.now)

    def told(self, lease: Lease) -> str:
        return when_others_need_it(self.state.find(lease.id), self.state, self.now)


def request(gpu: str, *, time: str = "", lease_class: str = "") -> Request:
    return read_request(RequestSpec(gpu=gpu, time=time, lease_class=lease_class), {})


# --- what is offered -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["0.25", "1", "2", "2x0.5", "0.25..1"])
def test_what_is_offered_now_is_granted_there_when_it_is_asked_for(gpu: str) -> None:
    node = Node(2)
    offered = node.offered(gpu)
    granted = node.ask(gpu)
    assert offered.starts_now
    assert isinstance(granted.state, Reserved)
    assert offered.grants == granted.grants


def test_an_offer_books_nothing() -> None:
    node = Node()
    before = node.state
    node.offered("1")
    assert node.state is before
    assert not node.state.leases


def test_what_must_wait_is_told_when_and_where_it_starts_at_the_latest() -> None:
    node = Node(2)
    node.run("1", time="10m")
    node.run("1", time="20m")
    offered = node.offered("1")
    assert not offered.starts_now
    assert (offered.start_to, [grant.gpu for grant in offered.grants]) == (NOW + 600, ["GPU-0"])
    assert offered.waiting is not None
    assert (offered.waiting.position, offered.waiting.reason) == (1, Reason.SHARING_MODE)


def test_what_nobody_can_tell_says_why() -> None:
    node = Node()
    node.run("1")
    offered = node.offered("1")
    assert offered.start_to is None
    assert offered.waiting is not None
    assert offered.waiting.text.endswith("start unknown: 1 lease has no time limit")


def test_those_ahead_in_the_queue_are_counted_in() -> None:
    node = Node()
    node.run("1", time="10m")
    node.ask("1", time="20m")
    offered = node.offered("1")
    assert offered.start_to == NOW + 1800
    assert offered.waiting is not None
    assert offered.waiting.position == 2


def test_an_offer_names_who_would_give_way_and_how_and_why() -> None:
    """A project below its guarantee needs nobody's time limit to know when it starts."""
    node = Node()
    victim = node.run("1")
    offered = node.offered("1", BOB, lease_class="build")
    assert [(one.lease.id, one.step) for one in offered.gives_way] == [(victim.id, PreemptionStep.REQUEUE)]
    assert offered.why == "its project is guaranteed the room"
    assert offered.start_to == NOW + NOTICE + GRACE
    assert [grant.gpu for grant in offered.grants] == ["GPU-0"]


def test_who_is_protected_by_the_least_run_time_gives_way_after_it() -> None:
    node = Node(by=rules(min_run_seconds=600.0))
    node.run("1")
    node.now += 60
    offered = node.offered("1", BOB)
    assert offered.gives_way == ()
    assert offered.start_to == NOW + 600 + NOTICE + GRACE


def test_what_never_fits_is_refused_as_a_request_would_be() -> None:
    with pytest.raises(NeverFits):
        Node().offered("2")


# --- what fits instead ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "held", "asked", "sentence"),
    [
        (1, ("0.25",), "1", "--gpu 0.75 would fit on GPU 0 now"),
        (1, ("0.6",), "0.5", "--gpu 0.4 would fit on GPU 0 now"),
        (2, ("1",), "2", "--gpu 1 would fit on GPU 1 now"),
        (2, ("0.6",), "2x0.5", "--gpu 0.5 would fit on GPU 1 now"),
        (1, ("1",), "0.5", ""),
        (1, ("0.995",), "0.5", ""),
    ],
)
def test_what_would_be_granted_instead_is_named(
    gpus: int, held: tuple[str, ...], asked: str, sentence: str
) -> None:
    """Nothing where nothing would."""
    node = Node(gpus)
    for gpu in held:
        node.run(gpu)
    offered = node.offered(asked)
    assert offered.fits_now == sentence
    assert node.instead(node.ask(asked)) == sentence


def test_room_that_is_kept_for_somebody_else_is_not_named() -> None:
    node = Node()
    node.run("0.5", time="10m")
    node.ask("1")
    assert node.offered("0.8").fits_now == ""


def test_what_a_projects_limit_refuses_is_not_named() -> None:
    limited = rules()
    policy = replace(
        limited.policy, projects={"red": Project("red", users=frozenset({"bob"}), quota=Quota(limit=500))}
    )
    node = Node(by=replace(limited, policy=policy))
    node.run("0.4", BOB)
    assert node.offered("0.5", BOB).fits_now == ""


# --- what those who wait for a preemption are told, and those who give way ------------------------------


def test_a_winner_starts_within_notice_and_grace_and_its_victim_is_back_when_it_ends() -> None:
    node = Node()
    victim = node.run("1")
    winner = node.ask("1", BOB, time="1h")
    assert starts(node.state, node.now)[winner.id].at == NOW + NOTICE + GRACE
    text = node.told(victim)
    assert text == f"gives way to {winner.id} of bob, because its project is guaranteed the room"
    assert (
        why_it_waits(node).text == f"{victim.id} gives way to it, because its project is guaranteed the room"
    )
    node.now += NOTICE
    node.send(m.Tick())
    node.send(m.ContainerSeen(ContainerId(f"box-{victim.id}"), Condition.EXITED, exit_code=143))
    node.now += 1
    node.send(m.GpusSampled(node.now, frozenset(), {}, frozenset(node.state.gpus)))
    assert isinstance(node.state.find(winner.id).state, Reserved)
    assert node.told(victim).startswith(f"gives way to {winner.id} of bob")
    assert starts(node.state, node.now)[victim.id].at == node.now + 3600


OVER = "is more than project alice is guaranteed, and gives way to those who are below theirs"


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (rules(), OVER),
        (rules(min_run_seconds=600.0), f"{OVER}, not in the next 10m"),
        (rules(train=GivesWay.NEVER), "is of class train, which gives way to administrators only"),
        (rules(train=GivesWay.ALWAYS), "is best effort, and gives way to the classes before it"),
        (Rules(), "gives way to nobody but administrators, because it would lose its work"),
        (Rules(preemption=PreemptionSetting.OFF), "gives way to nobody but administrators"),
    ],
)
def test_a_running_lease_is_told_what_happens_when_others_need_its_gpus(by: Rules, sentence: str) -> None:
    """Who may take them, from when on, and what becomes of it then."""
    node = Node()
    lease = node.run("1")
    node.state = replace(node.state, rules=by)
    assert node.told(lease) == f"{sentence}; then it is told, stopped, and started again when there is room"


def test_a_long_run_within_its_guarantee_is_told_that_it_gives_way_to_nobody() -> None:
    node = Node()
    lease = node.run("1", BOB)
    assert "and gives way to a higher priority in it only" in node.told(lease)
    node.now += 3601
    assert "and gives way to nobody, because it would lose a long run" in node.told(lease)


def test_who_waits_is_told_whose_work_would_be_lost() -> None:
    """Without configuration nobody's work is ended for others, and the administrator's means are named."""
    node = Node()
    lease = node.run("1")
    node.state = replace(node.state, rules=Rules())
    waits = node.ask("1", BOB)
    assert node.told(waits) == (
        f"{lease.id} of alice has no time limit and would lose its work by giving way; an administrator may set "
        "`time_limit_seconds` of a class, or let leases give way with `preemption`"
    )


def test_what_is_guaranteed_to_its_project_is_said() -> None:
    node = Node()
    assert node.told(node.run("1", BOB)).startswith("is guaranteed to project red")


def test_a_held_request_and_one_with_a_begin_time_say_so() -> None:
    node = Node()
    later = offer(node.state, replace(request("1"), begin_at=NOW + 600), ALICE, node.now)
    assert later.waiting is not None
    assert (later.waiting.start_from, later.start_to) == (NOW + 600, NOW + 600)
    assert later.fits_now == ""


def test_a_request_after_others_starts_when_they_are_over() -> None:
    node = Node(2)
    first = node.run("1", time="10m")
    after = offer(node.state, replace(request("1"), after=(str(first.id),)), ALICE, node.now)
    assert after.start_to == NOW + 600
    unknown = node.run("1")
    never = offer(node.state, replace(request("0.5"), after=(LeaseId(unknown.id),)), ALICE, node.now)
    assert never.start_to is None
    assert never.waiting is not None
    assert "start unknown: 1 lease has no time limit" in never.waiting.text


# --- a node as it is installed -------------------------------------------------------------------------


def installed(no_checkpoint: str) -> tuple[Node, Lease, Lease]:
    """Return a node without any configuration, whose GPU Alice fills without end, and on which Bob waits."""
    node = Node(by=Rules())
    node.send(m.MeansKnown(m.Means(no_checkpoint=no_checkpoint, checkpoint_with_mps=True)))
    return node, node.run("1"), node.ask("1", BOB)


def why_it_waits(node: Node) -> Waiting:
    decided = decisions(node.state, node.now)
    (one,) = decided
    return waiting(one, node.state, 1, node.now, starts(node.state, node.now, decided))


def test_who_waits_for_a_lease_that_can_be_paused_is_told_the_rule_and_the_time() -> None:
    node, victim, _ = installed(no_checkpoint="")
    reason = why_it_waits(node)
    by = node.state.rules
    assert reason.start_to == NOW + by.policy.patience_seconds / 4 + by.preempt_notice_seconds
    assert reason.text.endswith(
        f"; {victim.id} of alice gives way then, because others hold more than their share, and lose nothing "
        "by waiting"
    )


def test_who_waits_for_a_lease_that_would_lose_its_work_is_told_so_and_what_an_admin_may_do() -> None:
    node, holder, waits = installed(no_checkpoint="none here")
    reason = why_it_waits(node)
    assert (reason.start_to, "1 lease has no time limit" in reason.text) == (None, True)
    assert node.told(waits) == (
        f"{holder.id} of alice has no time limit and would lose its work by giving way; an administrator may "
        "set `time_limit_seconds` of a class, or let leases give way with `preemption`"
    )
