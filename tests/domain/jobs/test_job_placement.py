"""Where a pool's jobs go, whose turn it is, and that a pass looks at no more than it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
    NodeName,
    Owner,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import CancelPart, Place
from gpushared.domain.model.lease import JobId, LeaseId
from gpushared.domain.scheduling.pass_records import WaitReason
from gpushared.domain.scheduling.projects import Policy, Project, Quota
from tests.domain.jobs.pool_world import ADA, BOB, HALF, RULES, WHOLE, J, Pool, exited, gpus_of, held

S = AttemptState


def _project(name: str, user: str, **quota: Any) -> Project:
    return Project(name, users=frozenset({user}), quota=Quota(**quota))


WITH_PROJECTS = replace(
    RULES,
    policy=Policy(
        projects={
            "lab": _project("lab", "ada", guaranteed=1000),
            "guests": _project("guests", "bob", limit=2000),
        },
    ),
)


def test_what_local_users_hold_is_not_given_away() -> None:
    """It counts wherever it came from, as their node tells."""
    pool = Pool("a", "b")
    pool.heartbeat("a", holdings=(held("a", 0),))
    pool.submit("j1")
    pool.submit("j2")
    pool.submit("j3")
    assert (pool.where("j1"), pool.where("j2"), pool.where("j3")) == (["b"], ["b"], [])
    pool.heartbeat("a", holdings=())
    assert pool.where("j3") == ["a"]


def test_what_was_placed_counts_before_its_node_tells_of_it_and_once_when_it_does() -> None:
    """So that nothing is placed twice on the same part of a GPU, nor left empty."""
    pool = Pool("a")
    pool.submit("j1")
    holding = replace(held("a", 0, permille=500), attempt=pool.report("a", S.RUNNING, JobId("j1")).key)
    pool.says("a", S.RUNNING, JobId("j1"))
    pool.heartbeat("a", holdings=(holding,))
    pool.submit("j2")
    pool.is_now(Placing, "j2")
    pool.submit("j3")
    pool.is_now(Queued, "j3")
    pool.says("a", S.ENDED, JobId("j1"), ending=exited(0))
    pool.is_now(Placing, "j3")


def test_a_job_for_one_node_waits_for_that_one() -> None:
    """Whatever is free elsewhere."""
    pool = Pool("a", "b")
    pool.running("j0", request=WHOLE, target=NodeName("b"))
    pool.submit(target=NodeName("b"))
    pool.is_now(Queued)
    pool.says("b", S.ENDED, JobId("j0"), ending=exited(0))
    assert pool.where() == ["b"]


@pytest.mark.parametrize("shape", [{}, {"nodes": 2}, {"span": True}], ids=["one node", "several", "span"])
def test_people_name_a_gpus_model_by_any_part_of_its_name(shape: dict[str, Any]) -> None:
    """Also where nodes with such GPUs come only while the job waits."""
    pool = Pool("a", "b")
    count = 2 if "span" in shape else 1
    pool.submit(request=replace(WHOLE, models=("rtx4090", "t4"), gpu_count=count), **shape)
    pool.is_now(Queued)
    for node in ("c", "d"):
        pool.do(m.NodeEnrolled(NodeName(node)))
        pool.register(node, model="NVIDIA GeForce RTX 4090")
    pool.wait(1.0)
    assert pool.where() == (["c", "d"] if shape else [pool.where()[0]])
    assert set(pool.where()) <= {"c", "d"}
    for part in pool.job().parts:
        assert part.request.models == ("NVIDIA GeForce RTX 4090",), "a node knows no others than its own"


def test_a_job_may_be_near_another_one() -> None:
    """On its node, where that has room."""
    pool = Pool("a", "b", gpus=2)
    for node in ("a", "b"):
        pool.register(node, gpus=2)
    node = pool.running("j0", request=WHOLE)
    other = "b" if node == "a" else "a"
    pool.submit("j1", request=replace(HALF, near=("j0",)))
    ((_, order),) = pool.orders(Place)
    assert isinstance(order, Place)
    assert order.request == HALF, "its node knows nothing of other jobs"
    pool.submit("j2", request=replace(WHOLE, gpu_count=2))
    assert (pool.where("j1"), pool.where("j2")) == ([node], [other])


def test_who_used_less_goes_first() -> None:
    """Among people as among projects."""
    pool = Pool("a")
    pool.running("j0", request=WHOLE)
    pool.submit("j1", WHOLE)
    pool.submit("j2", WHOLE, owner=BOB)
    pool.now += 3600
    pool.says("a", S.ENDED, JobId("j0"), ending=exited(0))
    pool.wait()
    pool.heartbeat("a")
    pool.is_now(Placing, "j2")
    assert pool.state.usage.total("ada") == 3600


def test_nobody_gets_more_than_their_projects_limit() -> None:
    """And the reason is known for all who ask for the same."""
    pool = Pool("a", rules=WITH_PROJECTS)
    pool.register("a", gpus=4)
    for at in range(4):
        pool.submit(f"j{at}", WHOLE, owner=BOB)
    assert [bool(pool.where(f"j{at}")) for at in range(4)] == [True, True, False, False]
    kind = pool.state.waiting.where[JobId("j3")][1]
    assert pool.state.decisions[kind].reason is WaitReason.PROJECT_LIMIT


def test_jobs_give_way_to_what_a_project_is_guaranteed() -> None:
    """They are ended, wait again, and the winner has their place and nobody else."""
    pool = Pool("a", rules=WITH_PROJECTS)
    pool.running("guest", request=WHOLE, owner=BOB)
    pool.now += 3600
    pool.heartbeat("a")
    pool.submit("mine", WHOLE)
    assert not pool.orders()  # the guest would lose an hour's work, so the job waits for a quarter of an hour
    pool.now += 1000
    pool.heartbeat("a")
    ((_, order),) = pool.orders()
    assert isinstance(order, CancelPart)
    assert order.key.job == "guest"
    pool.submit("late", WHOLE, owner=BOB)
    pool.says("a", S.ENDED, JobId("guest"), ending=Ending(EndKind.CANCELLED))
    pool.wait()
    pool.is_now(Placing, "mine")
    pool.is_now(Queued, "guest")
    pool.is_now(Queued, "late")
    assert any("gives way to job mine" in text for text in pool.told("guest"))


def test_a_pass_places_no_more_than_so_many_and_goes_on_soon() -> None:
    """So that no step grows without bound."""
    rules = replace(RULES, placed_at_once=10, looked_at=30, looked_at_alike=12, plan_seconds=0.05)
    pool = Pool(rules=rules)
    for at in range(100):
        pool.submit(f"j{at}", WHOLE)
    pool.do(m.NodeEnrolled(NodeName("a")))
    pool.wait(1.0)
    pool.register("a", gpus=64)
    sizes = [len(pool.orders())]
    while pool.step.look_again_at <= pool.now + 0.05:
        pool.wait(0.05)
        sizes.append(len(pool.orders()))
    assert max(sizes) == 10
    assert sum(sizes) == 64


def test_a_job_behind_others_that_ask_for_the_same_and_wait_needs_no_pass() -> None:
    """However many of them come."""
    pool = Pool("a")
    pool.running("j0", request=WHOLE)
    pool.submit("j1", WHOLE)
    at = pool.state.planned_at
    pool.now += 1
    pool.submit("j2", WHOLE)
    assert pool.state.planned_at == at
    pool.submit("j3", HALF)
    assert pool.state.planned_at == pool.now


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_picture_of_the_pool_is_as_one_that_is_drawn_anew(seed: int) -> None:
    """After whatever happened, and also after passes whose steps were dropped."""
    pool = Pool("a", "b", "c", gpus=2)
    kept = pool.snapshot
    for at in range(40):
        _something(pool, seed * 1000 + at)
        now = pool.now
        mine = kept.refresh(pool.state, pool.state.policy, now)
        anew = ClusterSnapshot().refresh(pool.state, pool.state.policy, now)
        assert mine.capacities() == anew.capacities()
        assert {one.lease.id for one in kept.holder_index.holders()} == _ids(pool)


def _ids(pool: Pool) -> set[str]:
    snapshot = ClusterSnapshot()
    snapshot.refresh(pool.state, pool.state.policy, pool.now)
    return {one.lease.id for one in snapshot.holder_index.holders()}


def _something(pool: Pool, number: int) -> None:
    """Something that happens, by number."""
    node = "abc"[number % 3]
    live = sorted(pool.state.jobs)
    job = live[number // 7 % len(live)] if live else J
    part = next(iter(pool.where(job)), None) if live else None
    match number // 3 % 7:
        case 0 | 1:
            before = pool.state
            pool.submit(f"j{number}", WHOLE if number % 2 else HALF)
            if number % 5 == 0:
                pool.state = before
        case 2:
            pool.heartbeat(node, holdings=(held(node, 0, permille=250),) if number % 2 else ())
        case 3:
            pool.do(m.NodeDrainAsked(NodeName(node), ADA, "x" if number % 2 else None))
        case 4 if part is not None:
            pool.says(part, S.RUNNING, job)
        case 5 if part is not None:
            pool.says(part, S.ENDED, job, ending=exited(0))
        case 6:
            free = HeartbeatReport(stray_bytes=((held(node, 1).grants[0].gpu, number % 3 << 30),))
            pool.register(node, gpus=2, free=free)


def test_time_alone_lets_somebody_start_when_the_last_pass_said_so() -> None:
    """A job gives way only after it has run for a while; what a later pass says takes the place of that."""
    pool = Pool("a", rules=WITH_PROJECTS)
    pool.running("guest", request=WHOLE, owner=BOB)
    pool.submit("mine", WHOLE)
    pool.is_now(Queued, "mine")
    due = pool.state.plan_again_at
    assert pool.now < due < pool.now + 3600
    pool.now = due - 1
    pool.heartbeat("a")
    assert pool.orders() == []
    assert pool.step.look_again_at == due
    pool.wait(1)
    assert [order.key.job for _, order in pool.orders(CancelPart)] == ["guest"]


def test_a_job_that_runs_is_held_against_its_project_from_when_it_was_granted() -> None:
    """By that time the policy knows a project's turn again, which others must leave it."""
    pool = Pool("a")
    pool.submit()
    granted_at = pool.now
    pool.wait(50.0)
    pool.says("a", AttemptState.RUNNING)
    snapshot = ClusterSnapshot()
    snapshot.refresh(pool.state, pool.state.policy, pool.now)
    (holder,) = snapshot.holder_index.holders()
    assert holder.started_at == granted_at
    assert pool.is_now(Running).since == pool.now


# --- what nodes tell of their own users, and whose quota it counts to ------------------------------------

TABLE = replace(
    RULES,
    policy=Policy(projects={"vision": _project("vision", "ada", limit=1000)}),
    principals={"ada": ("ada@a", "ada@lab")},
)


def _of_vision(node: str, owner: str = "ada") -> tuple[Holding, ...]:
    return (replace(held(node, 0, owner=owner), project="vision"),)


def _held_by_vision(pool: Pool) -> int:
    """What counts as the project's, in the pass over a job that waits because it is too large."""
    gpus = 5 + len(pool.state.jobs)
    pool.submit(f"needs-{gpus}-gpus", replace(WHOLE, gpu_count=gpus), owner=BOB)
    return int(pool.snapshot.holder_index.all("vision"))


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"request": replace(WHOLE, gpu_count=2)}, "2 GPUs"),
        ({"request": WHOLE, "nodes": 3}, "3 GPUs"),
        ({"request": replace(WHOLE, gpu_count=4), "span": True}, "4 GPUs"),
    ],
    ids=["on one node", "on several nodes", "spanning nodes"],
)
def test_a_job_for_more_than_its_projects_limit_is_told_that_it_cannot_start(
    spec: dict[str, Any], asked: str
) -> None:
    pool = Pool("a", "b", "c", gpus=4, rules=TABLE)
    pool.submit(**spec)
    assert pool.state.decisions[LeaseId(J)].text.startswith(
        f"asks for {asked}, more than project vision may ever hold: its limit is 1 GPU; ask for less"
    )


def test_what_somebody_holds_counts_to_a_project_that_they_may_use_and_to_no_limit() -> None:
    """The limit of a pool counts the pool's jobs, whatever nodes give their own users."""
    pool = Pool("a", "b", rules=TABLE)
    pool.heartbeat("a", holdings=_of_vision("a"))
    assert _held_by_vision(pool) == 1000
    pool.submit(request=WHOLE)
    assert pool.where() == ["b"]
    pool.submit("j2")
    assert pool.state.decisions[LeaseId("j2")].text == "project vision holds 1 GPU; its limit is 1 GPU"


def test_jobs_on_nodes_that_have_not_reported_count_to_a_limit() -> None:
    """A coordinator that starts anew knows that they run there, and not what they hold."""
    pool = Pool("a", "b", rules=TABLE)
    node = pool.running(request=WHOLE)
    pool.begin_anew()
    pool.register("b" if node == "a" else "a")
    pool.wait(RULES.settle_seconds)
    pool.submit("j2")
    assert pool.state.decisions[LeaseId("j2")].reason is WaitReason.PROJECT_LIMIT
    pool.register(node, pool.report(node, S.ENDED, ending=exited(0)))
    pool.wait()
    pool.is_now(Placing, "j2")


@pytest.mark.parametrize(("node", "owner"), [("b", "ada"), ("a", "eve")], ids=["another realm", "not in it"])
def test_what_a_node_tells_of_others_takes_its_gpus_and_nobodys_quota(node: str, owner: str) -> None:
    pool = Pool("a", "b", rules=TABLE)
    pool.heartbeat(node, holdings=_of_vision(node, owner))
    pool.submit(request=WHOLE)
    assert pool.where() == ["a" if node == "b" else "b"]


def test_when_a_node_may_speak_for_another_realm_what_it_tells_counts_anew() -> None:
    """Without another word of it; so where the table of users changes."""
    pool = Pool("a", "b", rules=TABLE)
    pool.heartbeat("b", holdings=_of_vision("b"))
    assert _held_by_vision(pool) == 0
    pool.do(m.NodeEnrolled(NodeName("b"), realms=("b", "lab")))
    assert _held_by_vision(pool) == 1000
    pool.state.rules = replace(TABLE, principals={"ada": ("ada@a",)})
    assert _held_by_vision(pool) == 0


def test_a_node_holds_no_gpus_but_its_own_and_a_job_none_but_what_it_asked_for() -> None:
    pool = Pool("a", "b", rules=TABLE)
    pool.register("a", gpus=4)
    pool.heartbeat("b", holdings=(replace(held("b", 0), grants=held("b", 0).grants + held("a", 0).grants),))
    assert pool.running(request=WHOLE) == "a"
    key = pool.report("a", S.RUNNING).key
    grants = tuple(held("a", at % 4).grants[0] for at in range(100))
    pool.heartbeat("a", holdings=(replace(held("a", 0), grants=grants, attempt=key),))
    assert _held_by_vision(pool) == 1000


def test_a_gpu_that_two_nodes_name_is_that_of_the_first_that_joined() -> None:
    """What is for one node could go to another one."""
    pool = Pool("b")
    pool.now += 1
    pool.do(m.NodeEnrolled(NodeName("z")))
    pool.do(m.NodeRegistered(NodeName("z"), Inventory(gpus_of("b", 1)), HeartbeatReport()))
    pool.submit(target=NodeName("b"))
    assert pool.where() == ["b"]
    pool.submit("j2", target=NodeName("z"))
    assert pool.where("j2") == []


def test_jobs_that_a_stranger_tells_of_count_to_nobodys_quota_before_their_owner_asks_for_them() -> None:
    """Nor to what was used."""
    pool = Pool("a", "b", rules=TABLE)
    pool.ask_all()
    spec = JobSpec(WHOLE, Owner("ada@a", "ada"), image="x")
    reported = [pool.report("b", S.RUNNING, JobId(f"t{n}"), revision=5, spec=spec) for n in range(3)]
    pool.register("b", *reported)
    assert pool.job("t0").project == "vision"
    pool.submit("j1", WHOLE)
    assert pool.where("j1") == ["a"]
    pool.says("a", S.ENDED, JobId("j1"), ending=exited(0))
    pool.do(m.JobSubmitted(JobId("t0"), spec, old=True))
    pool.submit("j2", WHOLE)
    assert pool.where("j2") == []
    pool.now += 3600
    pool.says("b", S.ENDED, JobId("t1"), ending=exited(0))
    pool.wait(RULES.recover_seconds)
    assert pool.state.usage.total("vision") == 0
