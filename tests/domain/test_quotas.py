"""Projects that administrators set while the node runs, and what the classes say of requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.explain import waiting
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.leases.project_settings import capacity_of
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import (
    MIB,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.domain.model.lease import Lease, Queued, Reserved
from gpushared.domain.model.request import Caller, Isolation, LeaseClass, Request
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.domain.scheduling.project_accounts import ProjectAccounts
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    Policy,
    PreemptionSetting,
    Project,
    Quota,
    project_of,
)

ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
ROOT = Caller(0, 0, "root", trusted=True)
H100, A100 = "NVIDIA H100", "NVIDIA A100"
GPUS = tuple(
    Gpu(GpuId(f"GPU-{index}"), index, model, 81920 * MIB, 81920 * MIB)
    for index, model in enumerate((H100, H100, A100))
)
HALF = Request(1, 500, None, 500)
QUARTER = Request(1, 250, None, 250)
WHOLE = Request(compute_permille=1000, memory_permille=1000, isolation=Isolation.EXCLUSIVE)
CONFIGURED = Project("vision", 2.0, frozenset({"alice"}), Quota(1000, 2000))


class Node:
    """A node with three GPUs."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.now = 1000.0
        self.state = NodeState(rules=rules or Rules())
        self.send(m.GpusSurveyed(GPUS))

    def send(self, event: m.Event) -> Step:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step

    def ask(self, request: Request = HALF, caller: Caller = ALICE) -> Lease:
        lease = self.send(m.RequestSubmitted(request, caller)).lease
        assert lease is not None
        return self.state.find(lease.id)

    def set(self, name: str = "vision", **said: Any) -> Step:
        event = replace(m.ProjectSet(name, ROOT), **said)
        return self.send(event)

    def project(self, name: str = "vision") -> Project:
        return self.state.policy.projects[name]

    def why(self, lease: Lease) -> tuple[Reason | None, str]:
        found = {one.lease: one for one in decisions(self.state, self.now)}[lease.id]
        return found.reason, found.text


def configured(preemption: PreemptionSetting = PreemptionSetting.AUTO) -> Node:
    return Node(Rules(policy=Policy(projects={"vision": CONFIGURED}), preemption=preemption))


def test_what_is_not_said_stays_as_it_is() -> None:
    node = configured()
    node.set(limit=3000)
    assert node.project() == replace(CONFIGURED, quota=Quota(1000, 3000))
    node.set(weight=5.0)
    node.set(users=("bob",))
    node.set(no_limit=True)
    assert node.project() == Project("vision", 5.0, frozenset({"bob"}), Quota(1000))


def test_what_was_set_is_written_and_wins_over_the_configuration_after_a_restart() -> None:
    node = configured()
    step = node.set(guaranteed=1500)
    assert step.accounts is not None
    assert step.accounts.projects == {"vision": node.project()}
    again = restore(
        NodeState(rules=node.state.rules),
        (),
        1,
        accounts=ProjectAccounts(projects=dict(step.accounts.projects)),
    )
    assert again.policy.projects["vision"].quota.guaranteed == 1500


def test_a_project_that_is_unset_is_as_configured_again() -> None:
    node = configured()
    node.set(guaranteed=1500)
    node.set(unset=True)
    assert node.project() == CONFIGURED
    with pytest.raises(StateConflict, match="as the configuration has it"):
        node.set(unset=True)


def test_a_project_that_nobody_configured_is_gone_when_it_is_unset() -> None:
    node = Node()
    node.set("audio", guaranteed=1000)
    node.set("audio", unset=True)
    assert node.state.policy.projects == {}
    with pytest.raises(NotFound, match="there is no project 'audio'"):
        node.set("audio", unset=True)


def test_a_model_may_have_a_quota_of_its_own_and_lose_it() -> None:
    node = configured()
    node.set(model=H100, fixed=1000)
    assert node.project().models == {H100: Quota(fixed=1000)}
    node.set(model=H100, limit=1500)
    assert node.project().models == {H100: Quota(limit=1500, fixed=1000)}
    node.set(model=H100, unset=True)
    assert node.project() == CONFIGURED


REFUSED: tuple[tuple[str, dict[str, Any], type[GpushareError], str], ...] = (
    (
        "more than there is",
        {"guaranteed": 3500, "no_limit": True},
        StateConflict,
        "3.5 GPUs, but there are 3",
    ),
    (
        "more of a model than there is",
        {"model": H100, "guaranteed": 2500},
        StateConflict,
        "2.5 GPUs of model NVIDIA H100, but there are 2 GPUs",
    ),
    ("a guarantee above the limit", {"guaranteed": 2500}, StateConflict, "more than its limit of 2 GPUs"),
    ("a model that is not there", {"model": "NVIDIA H1O0", "limit": 1000}, NotFound, "no GPU of model"),
    ("a weight of nothing", {"weight": 0.0}, RequestError, "0 is not possible as a weight"),
    ("a weight that is no number", {"weight": float("nan")}, RequestError, "nan is not possible"),
    ("a user with a space", {"users": ("alice smith",)}, RequestError, "is not the name of a user"),
    ("no name", {"project": ""}, RequestError, "cannot be a project's name"),
    ("a name with a slash", {"project": "a/b"}, RequestError, "cannot be a project's name"),
)


@pytest.mark.parametrize(
    ("said", "error", "sentence"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(
    said: dict[str, Any], error: type[GpushareError], sentence: str
) -> None:
    node = configured()
    with pytest.raises(error, match=sentence):
        node.set(**said)
    assert node.state.projects == {}


def test_only_administrators_set_projects() -> None:
    node = configured()
    with pytest.raises(PermissionRefused, match="only administrators may set projects"):
        node.set(caller=ALICE, guaranteed=0)
    assert node.state.projects == {}


def test_less_may_be_promised_although_even_that_cannot_be_kept() -> None:
    """As after a GPU was taken out of the machine."""
    node = configured()
    node.set(guaranteed=2000)
    node.send(m.GpusSurveyed(GPUS[:1]))
    node.set(guaranteed=1500)
    with pytest.raises(StateConflict, match=r"1\.6 GPUs, but there is 1 GPU"):
        node.set(guaranteed=1600)


def test_parts_of_a_gpu_that_mig_splits_count_as_parts() -> None:
    split = replace(GPUS[2], split=True)
    parts = [
        replace(GPUS[2], id=GpuId(f"MIG-{at}"), name=f"{A100} MIG 3g.40gb", parent=split.id, mig=mig)
        for at, mig in enumerate((MigInstance(0, "3g.40gb", 500, 428), MigInstance(1, "3g.40gb", 500, 428)))
    ]
    gpus = {gpu.id: gpu for gpu in (*GPUS[:2], split, *parts)}
    assert capacity_of(gpus) == {H100: 2000, f"{A100} MIG 3g.40gb": 1000}


def test_a_limit_holds_requests_back_until_it_is_lifted() -> None:
    node = Node()
    node.set("vision", limit=500, users=("alice", "bob"))
    first, second = node.ask(HALF), node.ask(QUARTER, BOB)
    assert isinstance(first.state, Reserved)
    assert node.why(second) == (
        Reason.PROJECT_LIMIT,
        "project vision holds 0.5 GPUs; its limit is 0.5 GPUs",
    )
    node.set("vision", limit=750)
    assert isinstance(node.state.find(second.id).state, Reserved)


BEYOND: dict[str, tuple[dict[str, Any], str]] = {
    "of all GPUs": ({"limit": 1750}, "its limit is 1.75 GPUs"),
    "of all GPUs, of which a part is fixed": (
        {"limit": 2500, "fixed": 1000},
        "its limit is 2.5 GPUs, of which 1 GPU is fixed for its build work",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_request_for_more_than_its_projects_limit_is_told_that_it_cannot_start(name: str) -> None:
    """It waits even so: the limit may be raised."""
    settings, limits = BEYOND[name]
    node = Node()
    node.set("vision", users=("alice",), **settings)
    node.ask(QUARTER)
    lease = node.ask(replace(WHOLE, gpu_count=2))
    sentence = (
        f"asks for 2 GPUs, more than project vision may ever hold: {limits}; "
        "ask for less, or have an administrator raise the limit"
    )
    assert node.why(lease) == (Reason.PROJECT_LIMIT, sentence)
    (decision,) = decisions(node.state, node.now)
    assert waiting(decision, node.state, 1, node.now, {}).text == sentence
    node.set("vision", limit=4000, fixed=0)
    assert isinstance(node.state.find(lease.id).state, Reserved)


@pytest.mark.parametrize(
    ("preemption", "projects", "gives_way"),
    [
        (PreemptionSetting.AUTO, False, "those that lose nothing"),
        (PreemptionSetting.AUTO, True, "all"),
        (PreemptionSetting.ON, False, "all"),
        (PreemptionSetting.OFF, True, "none"),
    ],
)
@pytest.mark.parametrize("at_run_time", [False, True])
def test_leases_give_way_where_the_site_wants_it_or_by_itself_where_there_are_projects(
    preemption: PreemptionSetting, projects: bool, gives_way: str, at_run_time: bool
) -> None:
    in_file = {"vision": CONFIGURED} if projects and not at_run_time else {}
    node = Node(Rules(policy=Policy(projects=in_file), preemption=preemption))
    if projects and at_run_time:
        node.set(guaranteed=1000)
    policy = node.state.policy
    never = policy.classes[LeaseClass.TRAIN].min_run_seconds == float("inf")
    some = "those that lose nothing" if policy.lossless_only else "all"
    assert gives_way == ("none" if never else some)


def with_limit(seconds: int) -> Node:
    train = replace(DEFAULT_CLASSES[LeaseClass.TRAIN], time_limit_seconds=seconds)
    return Node(Rules(policy=Policy(classes={**DEFAULT_CLASSES, LeaseClass.TRAIN: train})))


def test_a_request_without_a_time_limit_gets_that_of_its_class_and_its_story_says_so() -> None:
    node = with_limit(7200)
    lease = node.ask()
    assert (lease.request.time_limit_seconds, lease.expires_at) == (7200, 8200.0)
    assert lease.story[0].text == "alice asked for 0.5; it may run for 2h, as class train says"


def test_a_request_keeps_the_time_limit_that_it_names_and_other_classes_have_none() -> None:
    node = with_limit(7200)
    assert node.ask(replace(QUARTER, time_limit_seconds=60)).request.time_limit_seconds == 60
    assert node.ask(replace(QUARTER, lease_class=LeaseClass.BUILD)).request.time_limit_seconds is None


def test_asking_again_for_what_got_its_time_limit_from_its_class_gives_the_same_lease() -> None:
    node = with_limit(7200)
    event = m.RequestSubmitted(HALF, ALICE, "same")
    first, second = node.send(event).lease, node.send(event).lease
    assert first is not None
    assert second is not None
    assert first.id == second.id


def test_a_request_counts_to_the_project_that_it_names() -> None:
    node = Node()
    node.set("vision", users=("alice",))
    node.set("audio", users=("alice",))
    assert node.ask(replace(QUARTER, project="vision")).project == "vision"
    with pytest.raises(PermissionRefused, match="bob is not in project audio"):
        node.ask(replace(QUARTER, project="audio"), BOB)
    with pytest.raises(RequestError, match="there is no project 'video'"):
        node.ask(replace(QUARTER, project="video"))


def test_a_project_with_a_user_s_name_is_that_user_s_unless_they_are_in_another() -> None:
    policy = Policy(projects={"alice": Project("alice"), "vision": CONFIGURED, "bob": Project("bob")})
    assert project_of("bob", "bob", policy) == project_of("bob", "", policy) == "bob"
    with pytest.raises(PermissionRefused):
        project_of("alice", "alice", policy)


def test_a_shorter_half_life_forgets_faster_from_now_on() -> None:
    node = Node()
    lease = node.ask()
    assert isinstance(lease.state, Reserved)
    node.now += 3600.0
    node.send(m.ReleaseAsked(lease.id, ALICE))
    node.now += 24 * 3600.0
    slow = node.state.usage.decayed(node.now)["alice"]
    node.state = node.state.with_rules(Rules(policy=Policy(half_life_seconds=3600.0)))
    assert node.state.usage.decayed(node.now)["alice"] < slow / 1000


def test_who_is_in_several_projects_that_were_set_counts_to_the_first_by_name() -> None:
    """In the order in which the journal gives them back, so that a restart changes nothing."""
    node = Node()
    for name in ("vision", "audio"):
        node.set(name, users=("alice",))
    assert node.ask(QUARTER).project == "audio"


def test_queued_requests_of_a_project_that_is_gone_count_to_it_by_name() -> None:
    node = Node()
    node.set("vision", limit=250, users=("alice",))
    node.ask(QUARTER)
    waits = node.ask(QUARTER)
    assert isinstance(waits.state, Queued)
    node.set("vision", unset=True)
    assert isinstance(node.state.find(waits.id).state, Reserved)
    assert node.state.find(waits.id).payer == "vision"
