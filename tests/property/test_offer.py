"""Offers come true: what starts now is granted there, and what waits starts no later than was said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition, Means
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.offers import offer
from gpushared.domain.leases.queue_pass import pass_over
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import (
    ContainerId,
    Draining,
    Lease,
    LeaseId,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
)
from gpushared.domain.model.request import (
    Caller,
    Isolation,
    LeaseClass,
    Request,
)
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    Policy,
    Project,
    Quota,
)
from tests.property.worlds import gpu

USERS = [Caller(uid, uid, name) for uid, name in ((1000, "ann"), (1001, "bob"), (1002, "eve"))]
NOTICE, GRACE = 30, 10


def rules(guaranteed: int, min_run_seconds: float) -> Rules:
    project = Project("red", users=frozenset({"bob"}), quota=Quota(guaranteed=guaranteed))
    classes = {name: replace(one, min_run_seconds=min_run_seconds) for name, one in DEFAULT_CLASSES.items()}
    policy = Policy({"red": project}, classes, notice_seconds=NOTICE, grace_seconds=GRACE)
    return Rules(
        claim_seconds=10**9,
        policy=policy,
        preempt_notice_seconds=NOTICE,
        stop_grace_seconds=GRACE,
        suspend_seconds=GRACE,
    )


@dataclass
class Node:
    """A node whose containers run as soon as they may, and use all the time that they have."""

    state: NodeState
    now: float = 1000.0

    def send(self, event: m.Event) -> Lease | None:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step.lease

    def ask(self, request: Request, caller: Caller) -> Lease | None:
        try:
            lease = self.send(m.RequestSubmitted(request, caller))
        except GpushareError:
            return None
        self.run_all()
        return lease

    def run_all(self) -> None:
        """What was granted runs; what must leave a reservation does so at its claim."""
        for lease in list(self.state.leases.values()):
            box = lease.container or ContainerId(f"box-{lease.id}")
            if isinstance(self.state.find(lease.id).state, Reserved):
                self.send(m.ClaimAsked(lease.id, Caller(lease.owner_uid, lease.owner_uid, lease.owner_name)))
            if isinstance(self.state.find(lease.id).state, Reserved):
                self.send(m.ContainerCreated(lease.id, box, "box", "image", stays=True))
            if isinstance(state := self.state.find(lease.id).state, Starting):
                if state.held:  # the node itself starts it again
                    self.send(m.RestartDone(lease.id))
                self.send(m.ContainerSeen(box, Condition.RUNNING))
            if isinstance(self.state.find(lease.id).state, Resuming):
                self.send(m.ContainerResumed(lease.id))

    def next_moment(self) -> float:
        """When something happens by itself: the end of a lease, a notice or a grace, or of a protection."""
        moments = [pass_over(self.state, self.now).look_again_at]
        for lease in self.state.holders():
            moments += [lease.expires_at or 0.0, lease.notice.until if lease.notice else 0.0]
            if isinstance(lease.state, Draining | Suspending):
                moments.append(lease.state.since + GRACE)
        return min((one for one in moments if one > self.now), default=float("inf"))

    def passes(self, until: float) -> None:
        self.now = until
        self.send(m.Tick())
        for lease in list(self.state.leases.values()):
            self.leave_if_due(lease)
        self.send(m.GpusSampled(self.now, frozenset(), {}, frozenset(self.state.gpus)))
        for _ in range(3):
            self.run_all()
            self.send(m.Tick())

    def leave_if_due(self, lease: Lease) -> None:
        match lease.state:
            case Draining(container=box, since=since, exited=False) if (
                self.is_expired(lease) or since + GRACE <= self.now
            ):
                self.send(m.ContainerSeen(box, Condition.EXITED, exit_code=143))
            case Suspending(container=box, since=since) if since + GRACE <= self.now:
                self.send(m.ContainerSuspended(lease.id))
            case _:
                pass

    def is_expired(self, lease: Lease) -> bool:
        return lease.expires_at is not None and lease.expires_at <= self.now

    def waits(self, lease: LeaseId) -> bool:
        return isinstance(self.state.find(lease).state, Queued | Requeued | Suspended)


def request(permille: int, lease_class: LeaseClass, limit: int | None) -> Request:
    isolation = Isolation.EXCLUSIVE if permille == 1000 else Isolation.SHARED
    return Request(
        1, permille, None, permille, isolation=isolation, lease_class=lease_class, time_limit_seconds=limit
    )


LIMITED = st.builds(
    request,
    st.sampled_from((250, 500, 750, 1000)),
    st.sampled_from(list(LeaseClass)),
    st.sampled_from((600, 1800, 3600)),
)
ANY = st.builds(
    request,
    st.sampled_from((250, 500, 750, 1000)),
    st.sampled_from(list(LeaseClass)),
    st.sampled_from((None, 600, 3600)),
)
WORLDS = st.builds(rules, st.sampled_from((0, 500, 1000)), st.sampled_from((0.0, 600.0, float("inf"))))
ASKED = st.tuples(LIMITED, st.sampled_from(USERS))


def node(count: int, by: Rules, *, checkpoints: bool = False) -> Node:
    world = Node(NodeState(rules=by))
    world.send(m.GpusSurveyed(tuple(gpu(index, 81920) for index in range(count))))
    if checkpoints:
        world.send(m.MeansKnown(Means(no_checkpoint="", checkpoint_with_mps=True, binds_late=True)))
    return world


@given(
    st.integers(1, 3),
    WORLDS,
    st.lists(st.tuples(ANY, st.sampled_from(USERS)), max_size=8),
    st.tuples(ANY, st.sampled_from(USERS)),
)
def test_what_is_offered_is_what_a_request_gets(
    gpus: int, by: Rules, before: list[tuple[Request, Caller]], asked: tuple[Request, Caller]
) -> None:
    """At once on the very same GPUs, or with the same leases giving way, or else it waits."""
    world = node(gpus, by)
    for one in before:
        world.ask(*one)
        world.now += 1
    offered = offer(world.state, *asked, world.now)
    lease = world.send(m.RequestSubmitted(*asked))
    assert lease is not None
    assert offered.starts_now == isinstance(lease.state, Reserved)
    if offered.starts_now:
        assert offered.grants == lease.grants
    victims = lease.preemption.promised.victims if lease.preemption.promised else ()
    assert tuple(one.lease.id for one in offered.gives_way) == victims


@given(st.integers(1, 2), WORLDS, st.lists(ASKED, min_size=1, max_size=8), ASKED, st.booleans())
def test_an_offered_time_holds_when_every_lease_uses_its_whole_time(
    gpus: int,
    by: Rules,
    before: list[tuple[Request, Caller]],
    asked: tuple[Request, Caller],
    checkpoints: bool,
) -> None:
    """Containers that give way use their whole grace, and nobody new comes."""
    world = node(gpus, by, checkpoints=checkpoints)
    for one in before:
        world.ask(*one)
        world.now += 60
        world.passes(world.now)
    offered = offer(world.state, *asked, world.now)
    lease = world.send(m.RequestSubmitted(*asked))
    assert lease is not None
    world.passes(world.now)
    while offered.start_to is not None and world.now < offered.start_to:
        world.passes(min(world.next_moment(), offered.start_to))
    if offered.start_to is not None:
        assert not world.waits(lease.id)
