"""An attempt's record follows its lease, in the same step, from the order to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpushared.domain.jobs.attempt_log import FINAL_KEPT_SECONDS, Attempt
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
    Owner,
)
from gpushared.domain.jobs.node_messages import (
    AttemptPrepared,
    Contact,
    ContactMade,
    EngineEnded,
    FencesLooked,
    GiveUpAttempt,
    GuardEnded,
    GuardLooked,
    LaunchAttempt,
    LaunchFailed,
    MachineGoesDown,
    OrderTaken,
    PrepareAttempt,
    TellCoordinator,
)
from gpushared.domain.jobs.protocol import CancelPart, Commit, Gang, GiveBack, Place, Query, Report
from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.instructions import DropEdits, StopContainer
from gpushared.domain.leases.job_attempts import GUARD_AFTER_SECONDS, deadlines, under_way
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    AttemptKey,
    ContainerId,
    Ended,
    Expired,
    JobId,
    Lease,
    NeverClaimed,
    Queued,
    Reserved,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.scheduling.projects import Policy, Project

ADA = Caller(1000, 1000, "ada")
BOX = ContainerId("box")
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
HALF, WHOLE = Request(1, 500, None, 500), Request(1, 1000, None, 1000)
KEY = AttemptKey(JobId("job"), 1)
GANG = Gang(("a", "b"), 0, 29500, (1, 1))
POOL = "lab"
OF_SPEC = ("interactive", "stop_after_seconds", "requeue")


class Node:
    """A node with one GPU, and what a coordinator and the daemon say to it."""

    def __init__(self, coordinator: str = POOL) -> None:
        self.coordinator = coordinator
        self.state = NodeState(boot_id="b1")
        self.now = 1000.0
        self.step = self.send(m.GpusSurveyed((GPU,)))

    def with_projects(self, *projects: Project) -> Node:
        policy = Policy(projects={project.name: project for project in projects})
        self.state = replace(self.state, rules=replace(self.state.rules, policy=policy))
        return self

    def send(self, event: m.Event) -> Step:
        self.now += 1.0
        self.step = handle(self.state, event, self.now)
        self.state = self.step.state
        return self.step

    def place(self, request: Request = HALF, *, key: AttemptKey = KEY, **fields: Any) -> Step:
        of_spec = {name: fields.pop(name) for name in OF_SPEC if name in fields}
        spec = JobSpec(request, Owner("ada@lab", "ada"), image="i", body="{}", **of_spec)
        return self.send(OrderTaken(Place(key, 1, spec, request, **fields), self.coordinator, ADA))

    def placed(self, request: Request = HALF, **fields: Any) -> Step:
        """As far as its lease."""
        self.place(request, **fields)
        return self.send(AttemptPrepared(fields.get("key", KEY), self.coordinator))

    def running(self, **fields: Any) -> Step:
        self.placed(**fields)
        self.send(m.ClaimAsked(self.lease.id, ADA))
        self.send(m.ContainerCreated(self.lease.id, BOX, "box", "i", stays=True))
        return self.seen(Condition.RUNNING)

    def seen(self, condition: Condition, exit_code: int | None = None, start_error: str = "") -> Step:
        return self.send(m.ContainerSeen(BOX, condition, exit_code=exit_code, start_error=start_error))

    def freed(self) -> Step:
        """The GPUs show the memory back."""
        self.now += 1.0
        return self.send(m.GpusSampled(self.now + 1.0, frozenset(), {}, frozenset({GPU.id})))

    def restarted(self) -> Node:
        """Before the engine has told what it has."""
        self.state = replace(self.state, engine_surveyed=False)
        return self

    def cancel(self) -> Step:
        return self.send(OrderTaken(CancelPart(KEY, 1, 5, "ada"), self.coordinator))

    @property
    def attempt(self) -> Attempt:
        return self.state.attempts[self.coordinator].records[KEY]

    @property
    def lease(self) -> Lease:
        assert self.attempt.lease is not None
        return self.state.find(self.attempt.lease)

    @property
    def ending(self) -> Ending:
        assert self.attempt.ending is not None
        return self.attempt.ending


def test_an_order_is_written_before_anything_else_is_done() -> None:
    node = Node()
    step = node.place()
    assert step.instructions == (PrepareAttempt(KEY, POOL),)
    assert [(one.state, one.coordinator) for one in step.attempts] == [(AttemptState.PREPARING, POOL)]
    assert isinstance(step.report, Report)
    assert step.report.state is AttemptState.PREPARING
    assert step.changed == ()


@pytest.mark.parametrize(
    ("projects", "counts_to"),
    [
        ((), "ada"),
        ((Project("vision", users=frozenset({"bob"})),), "ada"),
        ((Project("vision"), Project("robots", users=frozenset({"ada"}))), "robots"),
        (
            (Project("robots", users=frozenset({"ada"})), Project("vision", users=frozenset({"ada"}))),
            "vision",
        ),
    ],
    ids=["no project", "a project of others", "another project of the owner", "the same project"],
)
def test_a_project_that_only_the_pool_has_does_not_keep_its_job_from_a_node(
    projects: tuple[Project, ...], counts_to: str
) -> None:
    """The pool has admitted the owner; on the node the lease counts to the account's own project."""
    node = Node().with_projects(*projects)
    node.placed(replace(HALF, project="vision"))
    assert (node.attempt.state, node.lease.project) == (AttemptState.RESERVED, counts_to)


def test_a_project_that_the_node_does_not_have_refuses_its_own_job() -> None:
    node = Node("")
    node.placed(replace(HALF, project="vision"))
    assert (node.attempt.state, node.ending.reason) == (
        AttemptState.REFUSED,
        "there is no project 'vision'",
    )


def test_the_lease_and_the_record_that_tells_of_it_are_written_together() -> None:
    step = Node().placed()
    (lease,), (attempt,) = step.changed, step.attempts
    assert isinstance(lease.state, Reserved)
    assert (attempt.state, attempt.lease) == (AttemptState.RESERVED, lease.id)
    assert (lease.attempt, lease.coordinator) == (KEY, POOL)
    assert LaunchAttempt(KEY, POOL) in step.instructions
    assert TellCoordinator(KEY, POOL) in step.instructions


def test_an_order_that_comes_again_changes_nothing() -> None:
    node = Node()
    first = node.place().report
    again = node.place()
    assert (again.report, again.attempts, again.instructions) == (first, (), ())


def test_of_what_its_answer_tells_the_coordinator_is_not_told_again() -> None:
    assert not any(isinstance(one, TellCoordinator) for one in Node().place().instructions)


REFUSED = {
    "no room": (WHOLE, "GPU"),
    "never": (Request(gpu_count=2, compute_permille=1000, memory_permille=1000), "never fits"),
}


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_had_is_refused_in_words_and_leaves_no_lease(request_: Request, words: str) -> None:
    node = Node()
    node.send(m.RequestSubmitted(HALF, ADA))
    sequence = node.state.next_sequence
    step = node.placed(request_)
    assert node.attempt.state is AttemptState.REFUSED
    assert words in node.ending.reason
    assert "immediate" not in node.ending.hint
    assert (step.changed, node.state.next_sequence) == ((), sequence)
    assert step.attempts == (node.attempt,)


def test_with_wait_it_stands_in_the_queue_until_there_is_room() -> None:
    node = Node()
    other = node.send(m.RequestSubmitted(WHOLE, ADA)).lease
    assert other is not None
    node.placed(wait=True)
    assert (node.attempt.state, type(node.lease.state)) == (AttemptState.WAITING, Queued)
    step = node.send(m.ReleaseAsked(other.id, ADA))
    assert node.attempt.state is AttemptState.RESERVED
    assert LaunchAttempt(KEY, POOL) in step.instructions


def test_an_image_that_cannot_be_had_ends_it() -> None:
    node = Node()
    node.place()
    node.send(AttemptPrepared(KEY, POOL, Ending(EndKind.FAILED, "no such image")))
    assert (node.attempt.state, node.ending.reason) == (AttemptState.ENDED, "no such image")


def test_cancelled_while_it_is_prepared_it_never_asks_for_a_lease() -> None:
    node = Node()
    node.place()
    assert GiveUpAttempt(KEY, POOL) in node.cancel().instructions
    assert node.send(AttemptPrepared(KEY, POOL)).changed == ()
    assert (node.attempt.state, node.ending.kind) == (AttemptState.ENDED, EndKind.CANCELLED)


def test_cancelled_before_its_container_came_it_ends_at_once() -> None:
    node = Node()
    node.placed()
    node.cancel()
    assert isinstance(node.lease.state, Ended)
    assert (node.attempt.state, node.ending.kind) == (AttemptState.ENDED, EndKind.CANCELLED)


GIVEN_BACK: dict[str, tuple[Callable[[Node], object], AttemptState, bool]] = {
    "never seen": (lambda _: None, AttemptState.REFUSED, True),
    "being prepared": (lambda node: node.place(interactive=True), AttemptState.ENDED, True),
    "reserved": (lambda node: node.placed(interactive=True), AttemptState.ENDED, True),
    "claimed": (
        lambda node: (node.placed(interactive=True), node.send(m.ClaimAsked(node.lease.id, ADA))),
        AttemptState.RESERVED,
        False,
    ),
    "reserved, while nobody knows what the engine has": (
        lambda node: node.placed(interactive=True) and node.restarted(),
        AttemptState.RESERVED,
        False,
    ),
    "running": (lambda node: node.running(interactive=True), AttemptState.RUNNING, False),
}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_only_what_has_no_container_is_given_back_when_its_client_is_gone(name: str) -> None:
    to, state, ends = GIVEN_BACK[name]
    node = Node()
    to(node)
    node.send(OrderTaken(GiveBack(KEY, 1), POOL))
    assert isinstance(node.step.report, Report)
    assert node.step.report.state is state
    if ends:
        assert node.ending.kind is EndKind.CANCELLED
    assert not ends or not node.state.leases


def test_cancelled_while_it_runs_it_ends_with_its_container() -> None:
    node = Node()
    node.running()
    assert node.attempt.state is AttemptState.RUNNING
    assert StopContainer(node.lease.id, BOX, 5) in node.cancel().instructions
    assert node.attempt.state is AttemptState.RUNNING
    node.seen(Condition.EXITED, 143)
    node.freed()
    assert (node.attempt.state, node.ending.kind) == (AttemptState.ENDED, EndKind.CANCELLED)


def test_it_ends_as_its_program_does_when_its_memory_is_back() -> None:
    node = Node()
    node.running()
    node.seen(Condition.EXITED, 3)
    assert node.attempt.state is AttemptState.RUNNING
    node.freed()
    assert node.ending == Ending(EndKind.EXITED, exit_code=3)


def test_one_that_was_over_before_it_was_seen_to_run_has_run() -> None:
    node = Node()
    node.placed()
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    node.seen(Condition.EXITED, 0)
    node.freed()
    assert node.attempt.started_at is not None


@pytest.mark.parametrize("how", ["by an event", "by a survey"])
def test_one_that_was_over_before_it_was_seen_to_run_began_when_the_engine_says(how: str) -> None:
    node = Node()
    node.placed()
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    node.now += 5.0
    over = m.ContainerSeen(BOX, Condition.EXITED, exit_code=0, ran_seconds=3.5)
    node.send(over if how == "by an event" else m.EngineSurveyed((over,), node.now))
    began_at = node.now - 3.5
    node.freed()
    assert (node.attempt.state, node.attempt.started_at) == (AttemptState.ENDED, began_at)


def test_while_its_container_is_frozen_it_is_paused() -> None:
    node = Node()
    node.running()
    states = [node.attempt.state]
    for condition in (Condition.PAUSED, Condition.RUNNING):
        node.seen(condition)
        states.append(node.attempt.state)
    assert states == [AttemptState.RUNNING, AttemptState.PAUSED, AttemptState.RUNNING]


def test_a_launch_that_fails_ends_it_with_the_gate_s_words() -> None:
    node = Node()
    node.placed()
    step = node.send(LaunchFailed(KEY, Ending(EndKind.FAILED, "no such path", hint="make it"), POOL))
    assert (node.attempt.state, node.ending) == (
        AttemptState.ENDED,
        Ending(EndKind.FAILED, "no such path", hint="make it"),
    )
    assert DropEdits(node.lease.id, node.lease.device_name) in step.instructions


@pytest.mark.parametrize("first_known", ["by the container", "by the start", "by the container alone"])
def test_a_start_that_fails_is_told_with_the_words_and_the_code(first_known: str) -> None:
    """The engine answers the start and tells of the container; either may come first, or too late."""
    node = Node()
    node.placed()
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    event = LaunchFailed(KEY, Ending(EndKind.FAILED, "no such program", 127), POOL)
    if first_known == "by the start":
        node.send(event)
    node.seen(Condition.EXITED, 127, start_error="no such program")
    if first_known == "by the container":
        node.send(event)
    node.freed()
    node.send(event)
    assert node.ending == Ending(EndKind.FAILED, "no such program", 127)
    assert node.attempt.started_at is None


def test_what_ran_when_the_machine_went_down_is_lost_and_not_failed() -> None:
    node = Node()
    node.running()
    node.state = replace(node.state, boot_id="b2")
    node.seen(Condition.EXITED, 255)
    node.freed()
    assert node.ending.kind is EndKind.LOST


@pytest.mark.parametrize(
    ("code", "kind"), [(143, EndKind.LOST), (1, EndKind.LOST), (0, EndKind.EXITED)], ids=str
)
def test_what_fails_while_the_machine_is_shut_down_is_lost_and_not_failed(code: int, kind: EndKind) -> None:
    """The engine ends all containers then; a program that ends well all the same is done."""
    node = Node()
    node.running()
    node.send(MachineGoesDown())
    node.seen(Condition.EXITED, code)
    node.freed()
    assert (node.ending.kind, node.ending.exit_code) == (kind, code)


@dataclass(frozen=True)
class Sick:
    """What happens to a running attempt, in this order, with the driver's errors of its GPU."""

    exit_before: int | None
    xid: int
    exit_after: int | None
    ending: Ending


OFF_THE_BUS = Ending(
    EndKind.LOST,
    "GPU 0 fell off the bus (XID 79)",
    hint="reset it (`nvidia-smi -r -i 0`) or reboot, then `gpushare undrain 0`",
    passing=True,
)


@pytest.mark.parametrize(
    "case",
    {
        "it ran until it was ended for that": Sick(None, 79, 143, OFF_THE_BUS),
        "its program met the error first": Sick(1, 79, None, replace(OFF_THE_BUS, exit_code=1)),
        "it was done before": Sick(0, 79, None, Ending(EndKind.EXITED, exit_code=0)),
        "the error is of a program": Sick(None, 31, 1, Ending(EndKind.EXITED, exit_code=1)),
    }.items(),
    ids=lambda case: case[0],
)
def test_an_attempt_is_lost_with_its_gpu_and_not_by_its_own_error(case: tuple[str, Sick]) -> None:
    sick = case[1]
    node = Node()
    node.running()
    if sick.exit_before is not None:
        node.seen(Condition.EXITED, sick.exit_before)
    node.send(m.GpusSampled(node.now, frozenset(), {}, frozenset({GPU.id}), xids={GPU.id: (sick.xid,)}))
    if sick.exit_after is not None:
        node.seen(Condition.EXITED, sick.exit_after)
    node.freed()
    assert node.ending == sick.ending


@pytest.mark.parametrize(
    ("ended", "kind"), [(BOX, EndKind.LOST), (ContainerId("other"), EndKind.EXITED)], ids=["it", "another"]
)
def test_what_ended_with_its_engine_is_lost_and_not_failed(ended: ContainerId, kind: EndKind) -> None:
    node = Node()
    node.running()
    node.send(EngineEnded(frozenset({ended})))
    node.seen(Condition.EXITED, 137)
    node.freed()
    assert (node.ending.kind, node.ending.exit_code) == (kind, 137)


def test_what_was_cancelled_before_the_machine_went_down_is_cancelled() -> None:
    node = Node()
    node.running()
    node.cancel()
    node.send(MachineGoesDown())
    node.seen(Condition.EXITED, 143)
    node.freed()
    assert node.ending.kind is EndKind.CANCELLED


def test_what_the_engine_started_again_after_a_boot_counts_as_of_that_boot() -> None:
    node = Node()
    node.running()
    node.state = replace(node.state, boot_id="b2")
    node.seen(Condition.RESTARTING)
    node.seen(Condition.RUNNING)
    node.seen(Condition.EXITED, 1)
    node.freed()
    assert node.ending == Ending(EndKind.EXITED, exit_code=1)


@pytest.mark.parametrize(
    ("why", "passes"),
    [
        ("task 0abc: already exists", True),
        ("write /var/lib/docker/overlay2/4a-init/link: no space left on device", True),
        ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", True),
        ("no such file", False),
        ('exec: "serve": executable file not found in $PATH', False),
    ],
)
def test_a_start_that_fails_by_a_fault_of_the_machine_has_the_job_tried_again(why: str, passes: bool) -> None:
    node = Node()
    node.placed()
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    node.seen(Condition.EXITED, 128, start_error=why)
    node.freed()
    assert node.ending == Ending(EndKind.FAILED, why, 128, passing=passes)


@pytest.mark.parametrize("made", [False, True], ids=["before the create", "before the start"])
@pytest.mark.parametrize("interactive", [False, True])
def test_a_daemon_that_was_away_while_it_made_a_container_has_the_job_tried_again(
    made: bool, interactive: bool
) -> None:
    """An interactive job's container its owner makes, who is gone then."""
    node = Node()
    node.placed(interactive=interactive)
    node.send(m.ClaimAsked(node.lease.id, ADA))
    if made:
        node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    node.now += 10_000.0
    listed = (m.ContainerSeen(BOX, Condition.CREATED, node.lease.device_name),) if made else ()
    node.send(m.EngineSurveyed(listed, node.now))
    node.send(m.Tick())
    node.freed()
    assert (node.ending.kind, node.ending.passing) == (EndKind.FAILED, not interactive)


# --- gangs and interactive ones ------------------------------------------------------------------------


def test_a_gang_is_only_reserved_and_so_long_as_it_says() -> None:
    node = Node()
    step = node.placed(gang=True, reserve_seconds=30)
    assert not any(isinstance(one, LaunchAttempt) for one in step.instructions)
    assert isinstance(node.lease.state, Reserved)
    assert node.lease.state.deadline == node.now + 30
    step = node.send(OrderTaken(Commit(KEY, 1, GANG), POOL))
    assert LaunchAttempt(KEY, POOL) in step.instructions
    assert isinstance(node.lease.state, Reserved)
    assert node.lease.state.deadline == node.now + node.state.rules.claim_seconds
    assert node.attempt.facts == GANG


def test_a_gang_that_was_not_told_to_start_was_refused_and_hears_no_commit_after_it() -> None:
    node = Node()
    node.placed(gang=True, reserve_seconds=30)
    node.now += 30
    node.send(m.Tick())
    assert (node.attempt.state, node.ending.kind) == (AttemptState.REFUSED, EndKind.NO_ROOM)
    step = node.send(OrderTaken(Commit(KEY, 1, GANG), POOL))
    assert (step.instructions, step.attempts) == ((), ())
    assert isinstance(node.lease.state, Ended)
    assert node.lease.state.outcome == NeverClaimed()


def test_parts_of_gangs_and_those_that_must_not_are_never_started_again_by_the_node() -> None:
    gang, other = Node(), Node()
    gang.placed(gang=True)
    other.placed(requeue=False)
    assert (gang.lease.request.requeue, other.lease.request.requeue) == (False, False)


def test_an_interactive_one_waits_for_its_owner_s_container() -> None:
    node = Node()
    step = node.placed(interactive=True, reserve_seconds=45)
    assert not any(isinstance(one, LaunchAttempt) for one in step.instructions)
    assert isinstance(node.lease.state, Reserved)
    assert node.lease.state.deadline == node.now + 45


# --- fences --------------------------------------------------------------------------------------------


def fenced(boot_id: str = "b1", sent_at: float = 100.0, **fields: Any) -> Node:
    node = Node()
    node.send(ContactMade(POOL, boot_id, sent_at, epoch=1))
    node.running(stop_after_seconds=60, **fields)
    return node


@pytest.mark.parametrize(
    ("boot_id", "at", "ends"),
    [("b1", 159.9, False), ("b1", 160.0, True), ("b0", 100.0, True)],
    ids=["in time", "too late", "of another boot nothing is known"],
)
def test_it_is_ended_so_long_after_the_last_contact(boot_id: str, at: float, ends: bool) -> None:
    node = fenced(boot_id)
    step = node.send(FencesLooked("b1", at))
    assert (StopContainer(node.lease.id, BOX, 10) in step.instructions) is ends
    if ends:
        node.seen(Condition.EXITED, 137)
        node.freed()
        assert node.ending.kind is EndKind.FENCED


def test_contact_that_comes_too_late_does_not_save_it() -> None:
    """A machine that slept for long ends what it must not run before it says that it is alive."""
    node = fenced()
    step = node.send(ContactMade(POOL, "b1", 170.0))
    assert StopContainer(node.lease.id, BOX, 10) in step.instructions


def test_contact_moves_the_fence() -> None:
    node = fenced()
    node.send(ContactMade(POOL, "b1", 155.0))
    node.send(ContactMade(POOL, "b1", 110.0))  # an older one that comes late
    assert node.send(FencesLooked("b1", 214.0)).instructions == ()


def test_one_that_ended_by_itself_meanwhile_is_not_said_to_be_fenced() -> None:
    node = fenced()
    node.seen(Condition.EXITED, 0)
    node.send(FencesLooked("b1", 1000.0))
    node.freed()
    assert node.ending == Ending(EndKind.EXITED, exit_code=0)


def test_the_guard_ends_it_a_little_after_the_daemon_would_have() -> None:
    node = fenced()
    assert deadlines(node.state) == {BOX: 160.0 + GUARD_AFTER_SECONDS}
    node.send(ContactMade(POOL, "b1", 155.0))
    assert deadlines(node.state) == {BOX: 215.0 + GUARD_AFTER_SECONDS}
    node.send(FencesLooked("b1", 215.0))
    node.send(ContactMade(POOL, "b1", 200.0))
    assert deadlines(node.state) == {BOX: None}, "what is being ended gets no more time"
    assert deadlines(replace(fenced().state, boot_id="b2")) == {BOX: 0.0}
    own = Node(coordinator="")
    own.running(stop_after_seconds=60)
    assert deadlines(own.state) == {}


@pytest.mark.parametrize("code", [0, 137, 143])
def test_one_that_the_guard_ended_is_fenced_whatever_its_program_made_of_that(code: int) -> None:
    """A program that saves its work at the stop signal and ends with 0 has not done it all."""
    node = fenced()
    node.send(GuardEnded(frozenset({BOX})))
    node.seen(Condition.EXITED, code)
    node.freed()
    assert node.ending.kind is EndKind.FENCED
    assert "the guard of this node ended it" in node.ending.reason


def test_whether_a_guard_watches_is_told_with_each_change_of_it() -> None:
    """Before it has a container it is not started without one, which needs no look."""
    node = Node()
    node.send(ContactMade(POOL, "b1", 100.0, epoch=1))
    node.placed(stop_after_seconds=60)
    node.send(GuardLooked(watches=False))
    assert node.attempt.guarded
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i", stays=True))
    node.seen(Condition.RUNNING)
    for watches in (False, True):
        step = node.send(GuardLooked(watches))
        assert node.attempt.guarded is watches
        assert TellCoordinator(KEY, POOL) in step.instructions
        assert node.send(GuardLooked(watches)).is_to_write is False


def test_one_that_is_still_prepared_is_given_up() -> None:
    node = Node()
    node.place(stop_after_seconds=60)
    step = node.send(FencesLooked("b1", 1.0))
    assert GiveUpAttempt(KEY, POOL) in step.instructions
    assert (node.attempt.state, node.ending.kind) == (AttemptState.ENDED, EndKind.FENCED)


def test_the_node_s_own_jobs_have_no_fence() -> None:
    node = Node(coordinator="")
    node.running(stop_after_seconds=60)
    assert node.send(FencesLooked("b1", 1e9)).instructions == ()


def test_of_a_coordinator_that_counts_anew_only_the_newest_epochs_revision_is_remembered() -> None:
    """Else it would be taken for one that lost its memory at each of its starts from then on."""
    node = Node()
    told = [(1, 90), (1, 100), (2, 3), (1, 95), (2, 4)]
    seen = []
    for at, (epoch, revision) in enumerate(told):
        node.send(ContactMade(POOL, "b1", float(at), epoch=epoch, revision=revision))
        contact = node.state.contacts[POOL]
        seen.append((contact.epoch, contact.revision))
    assert seen == [(1, 90), (1, 100), (2, 3), (2, 3), (2, 4)]


def test_contact_is_written_every_ten_seconds_while_somebody_may_be_fenced() -> None:
    node = fenced()
    written = [at for at in range(101, 131) if node.send(ContactMade(POOL, "b1", float(at))).contacts]
    assert written == [110, 120, 130]


def test_contact_is_written_with_the_order_that_depends_on_it() -> None:
    node = Node()
    node.send(ContactMade(POOL, "b1", 100.0, epoch=1))
    node.send(ContactMade(POOL, "b1", 105.0))
    assert node.place(stop_after_seconds=60).contacts == {POOL: Contact(1, 0, "b1", 105.0)}


def test_without_anybody_to_fence_contact_is_not_written() -> None:
    node = Node()
    node.send(ContactMade(POOL, "b1", 100.0, epoch=1))
    assert not any(node.send(ContactMade(POOL, "b1", 100.0 + at)).contacts for at in range(100))


def test_a_higher_epoch_is_written_at_once_wherever_it_was_heard() -> None:
    node = Node()
    assert node.send(ContactMade(POOL, "b1", 100.0, epoch=3)).contacts[POOL].epoch == 3
    assert node.place().report is not None
    assert node.state.attempts[POOL].records == {}  # of epoch 1
    step = node.send(OrderTaken(Query(KEY, 5), POOL))
    assert step.contacts[POOL].epoch == 5


# --- restarts ------------------------------------------------------------------------------------------


def restarted(node: Node, boot_id: str = "b1") -> NodeState:
    leases = [lease for lease in node.state.leases.values() if not isinstance(lease.state, Ended)]
    records = [one for attempt_log in node.state.attempts.values() for one in attempt_log.records.values()]
    fresh = NodeState(boot_id=boot_id, gpus=node.state.gpus)
    return restore(
        fresh, leases, node.state.next_sequence, records=records, contacts=node.state.contacts_written
    )


def test_what_was_under_way_is_taken_up_again_after_a_restart() -> None:
    preparing, reserved, running, gang = Node(), Node(), Node(), Node()
    preparing.place()
    reserved.placed()
    running.running()
    gang.placed(gang=True)
    found = [under_way(restarted(node)) for node in (preparing, reserved, running, gang)]
    assert found == [(PrepareAttempt(KEY, POOL),), (LaunchAttempt(KEY, POOL),), (), ()]


def rebooted(node: Node) -> Node:
    """After the first event of the daemon's life in the next boot."""
    node.state = restarted(node, "b2")
    assert under_way(node.state) == () or not node.coordinator
    node.send(m.Tick())
    return node


def waiting(coordinator: str) -> Node:
    node = Node(coordinator)
    node.send(m.RequestSubmitted(WHOLE, ADA))
    node.placed(wait=True)
    return node


def preparing(coordinator: str) -> Node:
    node = Node(coordinator)
    node.place()
    return node


def reserved(coordinator: str) -> Node:
    node = Node(coordinator)
    node.placed()
    return node


def created(coordinator: str) -> Node:
    node = reserved(coordinator)
    node.send(m.ClaimAsked(node.lease.id, ADA))
    node.send(m.ContainerCreated(node.lease.id, BOX, "box", "i"))
    return node


def paused(coordinator: str) -> Node:
    node = Node(coordinator)
    node.running()
    node.seen(Condition.PAUSED)
    return node


@pytest.mark.parametrize("before", [preparing, waiting, reserved, created, paused])
def test_what_a_pool_ordered_does_not_begin_after_a_boot(before: Callable[[str], Node]) -> None:
    """While the machine was off somebody may have said so, and the job may run elsewhere."""
    node = rebooted(before(POOL))
    assert node.ending.kind is EndKind.LOST
    if node.attempt.state is not AttemptState.ENDED:
        node.send(m.EngineSurveyed((), node.now + 1.0))
        node.freed()
    assert node.attempt.state is AttemptState.ENDED
    assert not node.state.holders() or before is waiting
    assert TellCoordinator(KEY, POOL) in node.step.instructions


@pytest.mark.parametrize(
    ("before", "after"),
    [(preparing, AttemptState.PREPARING), (waiting, AttemptState.WAITING), (reserved, AttemptState.RESERVED)],
)
def test_the_node_s_own_jobs_begin_after_a_boot_as_they_would_have(
    before: Callable[[str], Node], after: AttemptState
) -> None:
    node = rebooted(before(""))
    assert (node.attempt.state, node.attempt.ending) == (after, None)
    assert (under_way(node.state) == ()) == (before is waiting)


def test_a_restart_of_the_daemon_alone_ends_nothing_that_a_pool_ordered() -> None:
    node = reserved(POOL)
    node.state = restarted(node)
    node.send(m.Tick())
    assert under_way(node.state) == (LaunchAttempt(KEY, POOL),)


def test_what_was_ordered_since_the_boot_begins() -> None:
    node = rebooted(preparing(POOL))
    again = AttemptKey(KEY.job, 2)
    node.placed(key=again)
    node.send(m.Tick())
    assert node.state.attempts[POOL].records[again].state is AttemptState.RESERVED


def test_the_books_are_the_same_after_a_restart() -> None:
    node = fenced()
    node.send(OrderTaken(Query(AttemptKey(JobId("other"), 1), 4), POOL))
    state = restarted(node)
    attempt_log, before = state.attempts[POOL], node.state.attempts[POOL]
    assert (dict(attempt_log.records), dict(attempt_log.live), attempt_log.epoch) == (
        dict(before.records),
        dict(before.live),
        before.epoch,
    )
    assert state.contacts == node.state.contacts_written


def test_old_final_records_are_forgotten_in_memory_and_on_disk() -> None:
    node = Node()
    node.send(OrderTaken(Query(KEY, 1), POOL))
    node.send(m.Tick())
    node.now += FINAL_KEPT_SECONDS + 10
    step = node.send(m.Tick())
    assert node.state.attempts[POOL].get(KEY) is None
    assert step.forgotten_before == node.now - FINAL_KEPT_SECONDS
    assert node.send(m.Tick()).forgotten_before is None


def test_its_time_limit_ends_it_as_expired() -> None:
    node = Node()
    node.running(request=replace(HALF, time_limit_seconds=60))
    node.now += 60
    node.send(m.Tick())
    node.seen(Condition.EXITED, 143)
    node.freed()
    assert isinstance(node.lease.state, Ended)
    assert node.lease.state.outcome == Expired()
    assert node.ending.kind is EndKind.EXPIRED
