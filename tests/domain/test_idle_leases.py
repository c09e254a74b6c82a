"""Leases that do nothing on their GPUs: told, lowered, suspended or ended; and what ends their idle time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.idle_leases import idle_since, notice_text
from gpushared.domain.leases.instructions import NotifyContainer
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import (
    IdleAction,
    IdlePolicy,
    IdleRules,
    Rules,
)
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.leases.requeue import can_give_way
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Draining,
    Ended,
    Idle,
    Idleness,
    Lease,
    LeaseId,
    NoticeKind,
    state_name,
)
from gpushared.domain.model.request import (
    Caller,
    Isolation,
    LeaseClass,
    Request,
)
from gpushared.domain.scheduling.projects import Policy, PreemptionSetting, Project

ALICE = Caller(1000, 1000, "alice")
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
HALF = Request(1, 500, None, 500, lease_class=LeaseClass.BUILD)
MINUTE, HOUR = 60.0, 3600.0
SUSPEND = IdlePolicy(1800, 3600, IdleAction.SUSPEND, 7200)
STOP = replace(SUSPEND, action=IdleAction.STOP)
CHECKPOINTS = m.Means(no_checkpoint="", checkpoint_with_mps=True)
IDLE, WORK, NEITHER = "idle", "work", "neither"


class Node:
    """A node with one GPU and one running lease."""

    def __init__(
        self,
        policy: IdlePolicy | None = None,
        *,
        quiet: Mapping[LeaseClass, IdlePolicy] | None = None,
        request: Request = HALF,
        means: m.Means = CHECKPOINTS,
        rules: Rules | None = None,
    ) -> None:
        self.now = 1_000_000.0
        if rules is None:
            rules = Rules() if policy is None else Rules(idle=dict.fromkeys(LeaseClass, policy))
            rules = replace(rules, quiet_idle=quiet or {})
        self.state = NodeState(rules=rules)
        self.send(m.GpusSurveyed((GPU,)))
        self.send(m.MeansKnown(means))
        self.id = self.run(request)

    def run(self, request: Request) -> LeaseId:
        lease = self.send(m.RequestSubmitted(request, ALICE)).lease
        assert lease is not None
        box = ContainerId(f"box-{lease.id}")
        self.send(m.ClaimAsked(lease.id, ALICE))
        self.send(m.ContainerCreated(lease.id, box, "box", "image"))
        self.send(m.ContainerSeen(box, m.Condition.RUNNING))
        return lease.id

    def send(self, event: m.Event) -> Step:
        self.step = handle(self.state, event, self.now)
        self.state = self.step.state
        return self.step

    def look(self, shows: str = IDLE) -> Step:
        """A sample of the GPU."""
        mine = frozenset({self.id})
        return self.send(
            m.GpusSampled(
                self.now,
                mine,
                {},
                frozenset({GPU.id}),
                idle=mine if shows == IDLE else frozenset(),
                active=mine if shows == WORK else frozenset(),
            )
        )

    def passes(self, seconds: float, shows: str = IDLE) -> Step:
        self.now += seconds
        return self.look(shows)

    @property
    def lease(self) -> Lease:
        return self.state.find(self.id)

    @property
    def told(self) -> tuple[float, bool] | None:
        """What its notice says: in how many seconds, and whether it ends then."""
        notice = self.lease.notice
        if notice is None or notice.kind is not NoticeKind.IDLE:
            return None
        return (notice.until - self.now if notice.until else 0.0, notice.ends)

    def story(self, word: str) -> list[str]:
        return [entry.text for entry in self.lease.story if word in entry.text]


# --- what an idle lease meets, step by step -----------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """After these times, each with what the look then shows: what is true of the lease."""

    policy: IdlePolicy | None
    looks: tuple[tuple[float, str], ...]
    state: str
    told: bool
    lowered: bool
    means: m.Means = CHECKPOINTS


START = (0.0, IDLE)
CASES = {
    "nothing is said before the time is up": Case(None, (START, (1799, IDLE)), "active", False, False),
    "it is told after half an hour by default": Case(None, (START, (1800, IDLE)), "active", True, False),
    "it is lowered after an hour by default": Case(None, (START, (3600, IDLE)), "active", True, True),
    "and nothing is done to it by default": Case(None, (START, (24 * HOUR, IDLE)), "active", True, True),
    "work takes all back": Case(None, (START, (3600, IDLE), (1, WORK)), "active", False, False),
    "idle time counts anew after work": Case(
        None, (START, (1799, IDLE), (1, WORK), (1, IDLE), (1799, IDLE)), "active", False, False
    ),
    "work before counts as the start": Case(
        None, (START, (1000, WORK), (5000, IDLE)), "active", False, False
    ),
    "a look that tells nothing changes nothing": Case(
        None, (START, (900, NEITHER), (899, NEITHER), (1, IDLE)), "active", True, False
    ),
    "and does nothing": Case(STOP, (START, (1800, IDLE), (9000, NEITHER)), "active", True, False),
    "it is suspended where that works": Case(
        SUSPEND, (START, (1800, IDLE), (5400, IDLE)), "suspending", True, True
    ),
    "not a second sooner": Case(SUSPEND, (START, (1800, IDLE), (5399, IDLE)), "active", True, True),
    "it is ended where it cannot be suspended": Case(
        SUSPEND, (START, (1800, IDLE), (5400, IDLE)), "draining", True, True, m.Means()
    ),
    "it is ended where the site wants so": Case(
        STOP, (START, (1800, IDLE), (5400, IDLE)), "draining", True, True
    ),
    "nobody is ended without having been told so a minute before": Case(
        STOP, (START, (9000, IDLE), (59, IDLE)), "active", True, True
    ),
    "and then is": Case(STOP, (START, (9000, IDLE), (60, IDLE)), "draining", True, True),
    "0 is never: neither told nor lowered": Case(
        IdlePolicy(0, 0), (START, (24 * HOUR, IDLE)), "active", False, False
    ),
    "an action without a warning time is told of a minute before": Case(
        IdlePolicy(0, 0, IdleAction.STOP, 600), (START, (600, IDLE)), "active", True, False
    ),
    "an action may come before a warning": Case(
        IdlePolicy(1800, 3600, IdleAction.STOP, 600),
        (START, (600, IDLE), (60, IDLE)),
        "draining",
        True,
        False,
    ),
    "a clock that was set back starts it anew": Case(
        None, (START, (-4000, IDLE), (1799, IDLE)), "active", False, False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    node = Node(case.policy, means=case.means)
    for seconds, shows in case.looks:
        node.passes(seconds, shows)
    lease = node.lease
    found = (state_name(lease.state), node.told is not None, lease.idleness.is_preemptible)
    assert found == (case.state, case.told, case.lowered)


# --- being told ----------------------------------------------------------------------------------------


def test_it_is_told_once_with_what_will_happen() -> None:
    node = Node(SUSPEND)
    node.look()
    step = node.passes(1800)
    assert NotifyContainer(node.id) in step.instructions
    assert node.told == (5400, False)
    (line,) = node.story("told")
    assert line == (
        "told: no work on its GPUs for 30m; in 1h30m it is taken off them until somebody resumes it"
    )
    for _ in range(3):
        assert node.passes(1).instructions == ()
    assert node.story("told") == [line]


def test_a_notice_is_shown_with_the_time_that_is_left_now() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.passes(5000)
    notice = node.lease.notice
    assert notice is not None
    assert notice_text(node.lease, notice, node.state, node.now) == (
        "no work on its GPUs for 1h53m; in 6m40s it is taken off them until somebody resumes it"
    )


@pytest.mark.parametrize(
    ("rules", "means"),
    [(Rules(preemption=PreemptionSetting.OFF), CHECKPOINTS), (Rules(), m.Means())],
    ids=["without preemption", "where its work would be lost"],
)
def test_who_gives_way_to_nobody_is_not_told_to_give_way_when_idle(rules: Rules, means: m.Means) -> None:
    node = Node(rules=rules, means=means)
    node.look()
    node.passes(1800)
    node.passes(1800)
    assert node.story("told") == ["told: no work on its GPUs for 30m"]
    assert node.story("gives way") == []
    assert not can_give_way(node.lease, node.state)


def test_most_looks_write_nothing_down() -> None:
    node = Node()
    node.look()
    assert [node.passes(100).changed for _ in range(17)] == [()] * 17


def test_where_nothing_will_be_done_it_is_told_of_no_end() -> None:
    node = Node()
    node.look()
    node.passes(1800)
    assert node.told == (0.0, False)
    assert node.story("told") == ["told: no work on its GPUs for 30m; after 1h it gives way to others"]


def test_work_takes_back_what_it_was_told_and_says_how_long_it_was_idle() -> None:
    node = Node()
    node.look()
    node.passes(3600)
    step = node.passes(1, WORK)
    assert NotifyContainer(node.id) in step.instructions
    assert (node.lease.notice, node.lease.idleness) == (None, Idleness())
    assert node.story("again") == ["uses its GPUs again after 1h"]
    assert node.passes(1, WORK).changed == ()


def test_whoever_cannot_be_suspended_any_more_is_told_that_it_will_end_and_given_time() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.now += 5400
    node.send(m.MeansKnown(m.Means(no_checkpoint="the driver is too old")))
    node.look()
    assert (state_name(node.lease.state), node.told) == ("active", (60, True))
    node.passes(60)
    assert isinstance(node.lease.state, Draining)


def test_it_is_told_at_once_when_it_could_only_be_ended_now() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.send(m.MeansKnown(m.Means(no_checkpoint="the driver is too old")))
    node.passes(1)
    assert node.told == (5399, True)


def test_a_suspension_that_fails_leads_to_a_notice_and_the_end() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.passes(5400)
    node.send(m.SuspendFailed(node.id, "no host memory"))
    assert isinstance(node.lease.state, Active)
    node.look()
    assert node.told == (60, True)
    node.passes(60)
    assert isinstance(node.lease.state, Draining)


def test_its_outcome_says_for_how_long_it_was_idle() -> None:
    node = Node(STOP)
    node.look()
    node.passes(1800)
    node.passes(5400)
    node.send(m.ContainerSeen(ContainerId(f"box-{node.id}"), m.Condition.EXITED, exit_code=143))
    node.now += 1
    node.send(m.GpusSampled(node.now, frozenset(), {}, frozenset({GPU.id})))
    assert node.lease.state == Ended(Idle(7200.0), node.now, node.lease.state.grants)  # type: ignore[union-attr]


# --- beside other notices and states -------------------------------------------------------------------


def test_a_time_limit_that_is_near_is_told_though_it_was_told_that_it_is_idle() -> None:
    node = Node(request=replace(HALF, time_limit_seconds=3600))
    node.look()
    node.passes(1800)
    node.now += 1500
    node.send(m.Tick())
    assert node.lease.notice is not None
    assert node.lease.notice.kind is NoticeKind.EXPIRES
    node.look()
    assert node.lease.notice.kind is NoticeKind.EXPIRES
    node.send(m.ExtendAsked(node.id, ALICE, 36000))
    node.passes(1)
    assert node.told == (0.0, False)


def test_more_time_does_not_take_back_that_it_is_idle() -> None:
    node = Node(request=replace(HALF, time_limit_seconds=7200))
    node.look()
    node.passes(1800)
    node.send(m.ExtendAsked(node.id, ALICE, 3600))
    assert node.told == (0.0, False)


def test_one_that_gives_way_is_told_of_that_only() -> None:
    node = Node(STOP, means=m.Means())
    node.look()
    node.passes(1800)
    node.send(m.PreemptAsked(node.id, Caller(0, 0, "root", trusted=True)))
    assert node.lease.notice is not None
    assert node.lease.notice.kind is NoticeKind.PREEMPTED
    node.passes(30)
    assert node.lease.notice.kind is NoticeKind.PREEMPTED


@pytest.mark.parametrize("asked", [True, False])
def test_a_container_that_starts_again_has_its_whole_time(asked: bool) -> None:
    node = Node()
    box = ContainerId(f"box-{node.id}")
    node.look()
    node.passes(3600)
    if asked:
        node.send(m.RestartAsked(node.id, 1))
        node.send(m.RestartDone(node.id))
    else:
        node.send(m.ContainerSeen(box, m.Condition.RESTARTING))
    node.send(m.ContainerSeen(box, m.Condition.RUNNING))
    assert (node.lease.notice, idle_since(node.lease, node.state)) == (None, None)
    assert not node.lease.idleness.is_preemptible
    node.look()
    node.passes(1799)
    assert node.told is None


def test_a_suspended_one_comes_back_on_demand_as_new() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.passes(5400)
    node.send(m.ContainerSuspended(node.id))
    assert (state_name(node.lease.state), node.lease.notice) == ("suspended", None)
    assert not node.lease.idleness.is_preemptible
    node.send(m.ResumeAsked(node.id, ALICE))
    node.send(m.ContainerResumed(node.id))
    node.look()
    node.passes(1799)
    assert (state_name(node.lease.state), node.told) == ("active", None)


def test_one_that_worked_while_it_was_to_be_suspended_begins_anew_where_that_failed() -> None:
    node = Node(SUSPEND)
    node.look()
    node.passes(1800)
    node.passes(5400)
    node.passes(1, WORK)
    assert state_name(node.lease.state) == "suspending"
    node.send(m.SuspendFailed(node.id, "no memory"))
    assert (node.lease.notice, node.lease.idleness) == (None, Idleness())
    node.look()
    node.passes(1799)
    assert node.told is None


def test_a_paused_container_rests_too_and_can_only_be_ended() -> None:
    node = Node(SUSPEND)
    node.send(m.ContainerSeen(ContainerId(f"box-{node.id}"), m.Condition.PAUSED))
    node.look()
    node.passes(1800)
    assert node.told == (5400, True)
    node.passes(5400)
    assert isinstance(node.lease.state, Draining)


def test_idle_time_is_shown_from_the_first_look_on() -> None:
    node = Node()
    assert idle_since(node.lease, node.state) is None
    node.look()
    assert idle_since(node.lease, node.state) == node.now
    node.passes(5, WORK)
    assert idle_since(node.lease, node.state) is None


# --- giving way ----------------------------------------------------------------------------------------

WHOLE = Request(1, 1000, None, 1000, isolation=Isolation.EXCLUSIVE)


@pytest.mark.parametrize(
    ("preemption", "state"),
    [(PreemptionSetting.AUTO, "suspending"), (PreemptionSetting.OFF, "active")],
)
def test_a_lowered_lease_gives_way_to_whoever_waits_where_leases_give_way_at_all(
    preemption: PreemptionSetting, state: str
) -> None:
    node = Node()
    node.state = replace(node.state, rules=replace(node.state.rules, preemption=preemption))
    node.look()
    node.passes(3599)
    node.send(m.RequestSubmitted(WHOLE, Caller(1001, 1001, "bob")))
    assert state_name(node.lease.state) == "active"
    node.passes(1)
    assert node.lease.idleness.is_preemptible
    assert state_name(node.lease.state) == state


# --- over restarts, reloads and quiet times ------------------------------------------------------------


def restarted(node: Node) -> None:
    empty = NodeState(rules=node.state.rules, means=node.state.means)
    node.state = restore(empty, node.state.leases.values(), node.state.next_sequence)
    node.send(m.GpusSurveyed((GPU,)))


def test_what_it_was_told_is_kept_over_a_restart() -> None:
    node = Node()
    node.look()
    node.passes(1800)
    restarted(node)
    node.passes(1800)
    assert node.lease.idleness.is_preemptible


def test_the_first_look_after_a_restart_does_nothing_to_one_whose_time_was_up_meanwhile() -> None:
    node = Node(STOP)
    node.look()
    node.passes(1800)
    restarted(node)
    node.passes(9000)
    assert (state_name(node.lease.state), node.told) == ("active", (60, True))
    node.passes(60)
    assert isinstance(node.lease.state, Draining)


def test_work_that_is_seen_after_a_restart_takes_it_back() -> None:
    node = Node(STOP)
    node.look()
    node.passes(1800)
    restarted(node)
    node.passes(9000, WORK)
    assert (node.told, node.lease.idleness.since) == (None, None)


def test_new_rules_hold_from_the_next_look_on() -> None:
    node = Node()
    node.look()
    node.passes(1800)
    node.state = replace(node.state, rules=Rules(idle=dict.fromkeys(LeaseClass, STOP)))
    node.passes(1)
    assert node.told == (5399, True)
    node.state = replace(
        node.state, rules=Rules(idle=dict.fromkeys(LeaseClass, replace(STOP, warn_seconds=3000)))
    )
    node.passes(1)
    assert (node.told, node.story("longer")) == (None, ["may be idle for longer now"])


def test_an_action_that_comes_sooner_or_later_by_new_rules_is_told_again() -> None:
    node = Node(STOP)
    node.look()
    node.passes(1800)
    for action_seconds, left in ((3600, 1799), (1000, 60), (9000, 7197)):
        policy = replace(STOP, action_seconds=action_seconds)
        node.state = replace(node.state, rules=Rules(idle=dict.fromkeys(LeaseClass, policy)))
        node.passes(1)
        assert node.told == (left, True)


QUIET = {LeaseClass.BUILD: IdlePolicy(600, 900, IdleAction.SUSPEND, 900)}


def test_in_quiet_times_other_rules_hold_for_the_classes_named() -> None:
    build, train = Node(quiet=QUIET), Node(quiet=QUIET, request=replace(HALF, lease_class=LeaseClass.TRAIN))
    for node in (build, train):
        node.send(m.QuietTimeChanged(quiet=True))
        node.look()
        node.passes(600)
        node.passes(300)
    assert state_name(build.lease.state) == "suspending"
    assert (state_name(train.lease.state), train.told) == ("active", None)


SOONER = dict.fromkeys(LeaseClass, replace(STOP, warn_seconds=600, action_seconds=900))
OWN = {"paid": IdleRules(SOONER, QUIET), "calm": IdleRules({})}


@pytest.mark.parametrize(
    ("project", "quiet", "after", "state", "told"),
    [
        pytest.param("paid", False, 900, "draining", True, id="its own times and action hold"),
        pytest.param("paid", True, 900, "suspending", True, id="in quiet times its own for those"),
        pytest.param("calm", False, 24 * HOUR, "active", False, id="nothing is done where it says nothing"),
        pytest.param("calm", True, 24 * HOUR, "active", False, id="nor in times that are quiet for others"),
        pytest.param("other", False, 900, "active", False, id="other projects are as all"),
        pytest.param("", True, 900, "suspending", True, id="a user in no project is as all"),
    ],
)
def test_a_project_s_own_rules_hold_for_its_leases(
    project: str, quiet: bool, after: float, state: str, told: bool
) -> None:
    policy = Policy(projects={name: Project(name, users=frozenset({"alice"})) for name in (*OWN, "other")})
    node = Node(
        request=replace(HALF, project=project or "alice"),
        rules=Rules(policy=policy if project else Policy(), project_idle=OWN, quiet_idle=QUIET),
    )
    node.send(m.QuietTimeChanged(quiet=quiet))
    node.look()
    node.passes(after - 60)
    node.passes(60)
    assert (state_name(node.lease.state), node.lease.notice is not None) == (state, told)


def test_a_user_s_own_project_may_have_rules_too() -> None:
    node = Node(rules=Rules(project_idle={"alice": IdleRules(SOONER)}))
    node.look()
    node.passes(600)
    assert node.told == (300, True)


def test_one_that_was_idle_when_the_quiet_time_began_is_told_first() -> None:
    node = Node(quiet=QUIET)
    node.look()
    node.passes(5 * HOUR)
    node.send(m.QuietTimeChanged(quiet=True))
    node.passes(1)
    assert node.told == (60, False)
    node.passes(60)
    assert state_name(node.lease.state) == "suspending"


def test_the_end_of_the_quiet_time_takes_back_what_was_announced() -> None:
    node = Node(quiet=QUIET)
    node.send(m.QuietTimeChanged(quiet=True))
    node.look()
    node.passes(600)
    assert node.told == (300, False)
    node.send(m.QuietTimeChanged(quiet=False))
    node.passes(1)
    assert node.told is None
