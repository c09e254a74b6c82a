"""Notifications: which changes of a lease or a GPU are told, in which words, and that each is told once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Action, IdlePolicy, Rules, WatchdogPolicy
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.notifications import of_gpus, of_lease, outcome_text
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    AttemptKey,
    ContainerId,
    Expired,
    Failed,
    Finished,
    Idle,
    JobId,
    Lease,
    NeverClaimed,
    Outcome,
    OutsideMps,
    OverLimit,
    Preempted,
    Stopped,
    outcome_kind,
)
from gpushared.domain.model.notification import (
    Notification,
    NotificationKind,
    check_allowed,
    is_allowed,
    read_targets,
)
from gpushared.domain.model.request import Caller, LeaseClass, Request
from gpushared.node.services.views import outcome

ALICE, BOB = Caller(1000, 1000, "alice"), Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
HALF = Request(1, 500, None, 500)
TIMED = replace(HALF, time_limit_seconds=7200)
CHECKPOINTS = m.Means(no_checkpoint="", checkpoint_with_mps=True, binds_late=True)
RULES = Rules(
    notify_allowed=("mail",),
    watchdog=dict.fromkeys(LeaseClass, WatchdogPolicy(Action.WARN)),
    idle=dict.fromkeys(LeaseClass, IdlePolicy(warn_seconds=60, lower_seconds=0)),
)
Deed = Callable[["Node"], None]


class Node:
    """A node with one GPU, and a lease whose events are told."""

    def __init__(self, request: Request = HALF, means: m.Means = CHECKPOINTS) -> None:
        self.now = 1000.0
        self.state = NodeState(rules=RULES)
        self.told: dict[str, set[tuple[NotificationKind, str]]] = {}
        self.events: list[Notification] = []
        self.send(m.GpusSurveyed((GPU,)))
        self.send(m.MeansKnown(means))
        lease = self.send(m.RequestSubmitted(request, ALICE))
        assert lease is not None
        self.id, self.box = lease.id, ContainerId("box")

    def send(self, event: m.Event) -> Lease | None:
        step = handle(self.state, event, self.now)
        self.state = step.state
        for lease in step.changed:
            self.look(lease)
        for told in of_gpus(self.state, self.told):
            self.keep(told)
        return step.lease

    def look(self, lease: Lease) -> None:
        told = self.told.setdefault(lease.id, set())
        for event in of_lease(lease, self.state, self.now, told, soon_seconds=600):
            self.keep(event)

    def keep(self, event: Notification) -> None:
        self.told.setdefault(event.subject, set()).add((event.kind, event.occasion))
        self.events.append(event)

    @property
    def lease(self) -> Lease:
        return self.state.find(self.id)

    def said(self) -> list[str]:
        """What was told of the lease since the last call."""
        found = [event.kind.value for event in self.events if event.subject in (self.id, "gpu GPU-0")]
        self.events.clear()
        return found

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(m.Tick())
        for lease in list(self.state.leases.values()):
            self.look(lease)


# --- what users and machines do ----------------------------------------------------------------------------


def runs(node: Node) -> None:
    node.send(m.ClaimAsked(node.id, ALICE))
    node.send(m.ContainerCreated(node.id, node.box, "web", "image", stays=True))
    node.send(m.ContainerSeen(node.box, Condition.RUNNING))


def ends(node: Node, code: int = 0) -> None:
    node.send(m.ContainerSeen(node.box, Condition.EXITED, exit_code=code))
    sampled(node)


def sampled(node: Node, *, used: int = 0, idle: bool = False, xids: tuple[int, ...] = ()) -> None:
    busy = frozenset({node.id}) if used or idle else frozenset()
    node.send(
        m.GpusSampled(
            node.now,
            busy,
            {},
            frozenset({GPU.id}),
            used_bytes={node.id: {GPU.id: used}} if used else {},
            idle=frozenset({node.id}) if idle else frozenset(),
            active=frozenset() if idle else busy,
            xids={GPU.id: xids} if xids else {},
        )
    )


def is_paused(node: Node) -> None:
    node.send(m.PauseAsked(node.id, ALICE))
    node.send(m.ContainerSuspended(node.id))


def is_resumed(node: Node) -> None:
    node.send(m.ResumeAsked(node.id, ALICE))
    node.send(m.ContainerResumed(node.id))


def gives_way(node: Node) -> None:
    node.send(m.PreemptAsked(node.id, ROOT))


def is_stopped(node: Node) -> None:
    node.send(m.StopAsked(node.id, ROOT, 0))


def rests(node: Node) -> None:
    sampled(node, idle=True)
    node.now += 61
    sampled(node, idle=True)


def works(node: Node) -> None:
    sampled(node, used=MIB)


def overuses(node: Node) -> None:
    sampled(node, used=70_000 * MIB)


def passes(seconds: float) -> Deed:
    return lambda node: node.passes(seconds)


def is_extended(node: Node) -> None:
    node.send(m.ExtendAsked(node.id, ROOT, 3600))


def loses_its_gpu(node: Node) -> None:
    sampled(node, xids=(79,))


CASES: list[tuple[str, Request, list[Deed], list[str]]] = [
    ("is granted at once", HALF, [], ["granted"]),
    ("runs and ends", HALF, [runs, ends], ["granted", "ended"]),
    ("is never claimed", HALF, [passes(61)], ["granted", "ended"]),
    ("is stopped", HALF, [runs, is_stopped, ends], ["granted", "ended"]),
    ("is paused and resumed", HALF, [runs, is_paused, is_resumed], ["granted", "paused", "resumed"]),
    (
        "is paused and resumed twice",
        HALF,
        [runs, is_paused, is_resumed, passes(1), is_paused, is_resumed],
        ["granted", "paused", "resumed", "paused", "resumed"],
    ),
    (
        "is stopped while it is paused",
        HALF,
        [runs, is_paused, is_stopped, ends],
        ["granted", "paused", "ended"],
    ),
    ("gives way and is moved off", HALF, [runs, gives_way], ["granted", "gives-way"]),
    ("is idle, once", HALF, [runs, rests, rests], ["granted", "idle"]),
    ("is idle, works, and is idle again", HALF, [runs, rests, works, rests], ["granted", "idle", "idle"]),
    ("uses too much, once", HALF, [runs, overuses, overuses], ["granted", "over-limit"]),
    (
        "uses too much again",
        HALF,
        [runs, overuses, works, passes(11), works, overuses],
        ["granted", "over-limit", "over-limit"],
    ),
    ("ends soon, once", TIMED, [runs, passes(6601), passes(1)], ["granted", "ends-soon"]),
    ("does not end soon yet", TIMED, [runs, passes(6599)], ["granted"]),
    (
        "ends soon, is extended, and ends soon",
        TIMED,
        [runs, passes(6700), is_extended, passes(3600)],
        ["granted", "ends-soon", "ends-soon"],
    ),
    (
        "has half of its short time left",
        replace(HALF, time_limit_seconds=100),
        [runs, passes(49), passes(2)],
        ["granted", "ends-soon"],
    ),
    (
        "reaches its limit",
        replace(HALF, time_limit_seconds=100),
        [runs, passes(60), passes(60), ends],
        ["granted", "ends-soon", "ended"],
    ),
    ("loses its GPU", HALF, [runs, loses_its_gpu, ends], ["granted", "gpu-unhealthy", "ended"]),
]


@pytest.mark.parametrize(
    ("deeds", "request_", "told"), [(d, r, t) for _, r, d, t in CASES], ids=[c[0] for c in CASES]
)
def test_what_is_told_of_a_lease_that(deeds: list[Deed], request_: Request, told: list[str]) -> None:
    node = Node(request_)
    for deed in deeds:
        deed(node)
    assert node.said() == told
    node.look(node.lease)
    assert node.said() == [], "an event was told twice"


def test_a_lease_that_is_started_again_after_it_gave_way_was_paused_and_is_resumed() -> None:
    node = Node(means=m.Means(binds_late=True))
    runs(node)
    gives_way(node)
    node.passes(61)
    node.said()
    node.send(m.GpuDrainAsked(GPU.id, ROOT, "new fan"))
    ends(node, 143)
    assert node.said() == ["paused"]
    node.send(m.GpuDrainAsked(GPU.id, ROOT, None))
    assert node.said() == ["resumed"]


def test_a_request_that_waits_is_told_when_it_is_granted() -> None:
    node = Node(replace(HALF, memory_permille=1000, compute_permille=1000))
    runs(node)
    waiting = node.send(m.RequestSubmitted(HALF, BOB))
    assert waiting is not None
    assert [event for event in node.events if event.subject == waiting.id] == []
    ends(node)
    (granted,) = [event for event in node.events if event.subject == waiting.id]
    assert (granted.kind, granted.owner, granted.owner_uid) == (NotificationKind.GRANTED, "bob", 1001)


@pytest.mark.parametrize(("by", "told"), [(BOB, []), (ROOT, ["ended"])])
def test_the_end_of_a_waiting_request_is_told_unless_its_owner_ended_it(by: Caller, told: list[str]) -> None:
    node = Node(replace(HALF, memory_permille=1000, compute_permille=1000))
    waiting = node.send(m.RequestSubmitted(HALF, BOB))
    assert waiting is not None
    node.send(m.StopAsked(waiting.id, by, 0))
    assert [event.kind for event in node.events if event.subject == waiting.id] == told


def test_nobody_learns_for_whom_a_lease_gives_way_nor_who_broke_its_server() -> None:
    node = Node()
    runs(node)
    secret = "l-zzzz of mallory"
    lease = replace(node.lease, preemption=replace(node.lease.preemption, count=1))
    outcomes: tuple[Outcome, ...] = (
        Preempted(f"gives way to {secret}"),
        Failed(f"caused by {secret}", secret),
    )
    texts = [outcome_text(one) for one in outcomes]
    texts += [event.text for event in of_lease(lease, node.state, node.now, (), soon_seconds=0)]
    assert not any("mallory" in text or "zzzz" in text for text in texts)


OUTCOMES: tuple[Outcome, ...] = (
    Finished(0),
    Finished(3, "no such file"),
    Stopped("root"),
    Expired(),
    NeverClaimed(),
    OverLimit(GPU.id, 2, 1),
    OutsideMps(GPU.id, 7),
    Preempted("x"),
    Idle(60.0),
    Failed("x"),
)


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: type(one).__name__)
def test_an_outcome_has_the_name_that_the_api_gives_it(one: Outcome) -> None:
    assert outcome_kind(one) == outcome(one, {}).kind
    assert outcome_text(one)


def test_the_end_of_a_container_has_its_exit_code() -> None:
    node = Node()
    runs(node)
    ends(node, 3)
    (ended,) = [event for event in node.events if event.kind is NotificationKind.ENDED]
    assert (ended.outcome, ended.exit_code, ended.text) == (
        "finished",
        3,
        f"{node.id} of alice ended: exit code 3",
    )
    assert [(part.gpu, part.compute_permille) for part in ended.gpus] == [("0", 500)]


def test_the_pool_tells_that_its_jobs_begin_and_end_and_the_node_the_rest() -> None:
    node = Node(replace(HALF, notify=("mail",)))
    job = replace(node.lease, attempt=AttemptKey(JobId("job"), 1))
    kinds = {}
    for coordinator in ("", "pool"):
        lease = replace(job, coordinator=coordinator, preemption=replace(job.preemption, count=1))
        found = of_lease(lease, node.state, node.now, (), soon_seconds=0)
        kinds[coordinator] = {event.kind.value for event in found if event.targets}
    assert kinds == {"": {"granted", "gives-way"}, "pool": {"gives-way"}}


# --- targets -----------------------------------------------------------------------------------------------

HOOKS = ("https://hooks.example.org/gpu", "mail")


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("mail", True),
        ("https://hooks.example.org/gpu", True),
        ("https://hooks.example.org/gpu/ada", True),
        ("https://HOOKS.example.org/gpu/ada?x=1", True),
        ("https://hooks.example.org/gpus", False),
        ("https://hooks.example.org/gpu/../admin", False),
        ("https://hooks.example.org/gpu/%2e%2e/admin", False),
        ("https://hooks.example.org/gpu/..%2fadmin", False),
        ("https://hooks.example.org/gpu/..;/admin", False),
        ("https://hooks.example.org/gpu/%252e%252e/admin", False),
        ("https://hooks.example.org/gpu/%c0%ae%c0%ae/admin", False),
        ("https://hooks.example.org/gpu/a;b", False),
        ("https://hooks.example.org/gpu/a%20b", False),
        ("https://hooks.example.org/gpu/..\\admin", False),
        ("https://hooks.example.org/gpu/ada?x=%20;", True),
        ("https://hooks.example.org.evil.example/gpu", False),
        ("https://hooks.example.org@evil.example/gpu", False),
        ("https://hooks.example.org:444/gpu", False),
        ("http://hooks.example.org/gpu", False),
        ("https://evil.example/https://hooks.example.org/gpu", False),
        ("file:///etc/passwd", False),
    ],
)
def test_a_user_names_only_targets_that_the_site_allows(target: str, allowed: bool) -> None:
    assert is_allowed(target, HOOKS) is allowed
    if not allowed:
        with pytest.raises(PermissionRefused):
            check_allowed((target,), HOOKS)


def test_what_the_site_itself_allows_may_hold_any_sign() -> None:
    assert is_allowed("https://hooks.example.org/a%20b;c", ("https://hooks.example.org/a%20b;c",))
    assert is_allowed("https://hooks.example.org/a%20b/ada", ("https://hooks.example.org/a%20b",))


def test_without_mail_among_the_allowed_targets_there_is_no_mail() -> None:
    assert not is_allowed("mail", ())


@pytest.mark.parametrize(
    "text",
    [
        "post",
        "https://",
        "https://a b",
        "https://a/\nb",
        ",".join(["https://a/x"] * 9 + [f"https://a/{n}" for n in range(5)]),
        "x" * 9000,
    ],
)
def test_what_is_no_list_of_targets_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        read_targets(text)


def test_a_request_for_a_target_that_is_not_allowed_gets_no_lease() -> None:
    node = Node()
    assert node.send(m.RequestSubmitted(replace(HALF, notify=("mail",)), BOB)) is not None
    with pytest.raises(PermissionRefused, match="not allowed here"):
        node.send(m.RequestSubmitted(replace(HALF, notify=("https://a.example/",)), BOB))
