"""Arrays of which only so many jobs run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    HERE,
    AttemptState,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.lease import JobId
from gpushared.jobs.job_reasons import why
from tests.domain.jobs.pool_world import ADA, HALF, RULES, Pool, exited

ARRAY = JobId("array")
HERE_RULES = PoolRules(here=True)
WORLDS = pytest.mark.parametrize(
    "pool",
    [
        pytest.param(lambda: Pool("a", "b", gpus=8), id="in a pool"),
        pytest.param(lambda: Pool(HERE, gpus=8, rules=HERE_RULES), id="on a node's own jobs"),
    ],
)


def name_of(index: int) -> JobId:
    return JobId(f"{ARRAY}_{index}")


def submit_array(pool: Pool, jobs: int, limit: int, **spec: Any) -> None:
    for index in range(jobs):
        pool.submit(name_of(index), HALF, array=ARRAY, index=index, array_limit=limit, **spec)
    pool.wait()


def begun(pool: Pool) -> list[int]:
    """The indexes of the jobs that were sent to a node and are not over."""
    active = (job for job in pool.state.jobs.values() if isinstance(job.state, Placing | Running))
    return sorted(job.spec.index or 0 for job in active)


def runs(pool: Pool, index: int) -> None:
    (part,) = pool.job(name_of(index)).parts
    pool.says(part.node, AttemptState.RUNNING, name_of(index))


def ends(pool: Pool, index: int, code: int = 0) -> None:
    (part,) = pool.job(name_of(index)).parts
    pool.says(part.node, AttemptState.ENDED, name_of(index), ending=exited(code))
    pool.wait(1)


@WORLDS
def test_so_many_of_an_array_run_at_once_and_the_next_one_begins_when_one_is_over(
    pool: Callable[[], Pool],
) -> None:
    world = pool()
    submit_array(world, 6, limit=2)
    assert begun(world) == [0, 1]
    runs(world, 0)
    world.wait(10)
    assert begun(world) == [0, 1]
    ends(world, 0)
    assert begun(world) == [1, 2]
    for index in range(1, 6):
        ends(world, index)
    assert (begun(world), len(world.state.ended), dict(world.state.throttles)) == ([], 6, {})


@WORLDS
def test_who_waits_for_the_array_is_told_so(pool: Callable[[], Pool]) -> None:
    world = pool()
    submit_array(world, 3, limit=2)
    reason = why(world.job(name_of(2)), world.state, world.now)
    assert reason is not None
    assert (reason.code, reason.sentence) == ("array_limit", "its array runs 2 at a time")


@WORLDS
def test_of_the_jobs_that_wait_for_the_array_the_one_with_the_highest_priority_begins_next(
    pool: Callable[[], Pool],
) -> None:
    world = pool()
    submit_array(world, 6, limit=1)
    runs(world, 0)
    for index, priority in ((4, 90), (5, 50), (3, 70), (4, 60)):
        world.do(m.JobPriorityAsked(name_of(index), ADA, priority))
    order = []
    for _ in range(6):
        (index,) = begun(world)
        order.append(index)
        ends(world, index)
    assert (order, dict(world.state.throttles)) == ([0, 3, 4, 5, 1, 2], {})


@WORLDS
def test_priorities_within_an_array_count_after_a_restart(pool: Callable[[], Pool]) -> None:
    world = pool()
    submit_array(world, 3, limit=1)
    runs(world, 0)
    world.do(m.JobPriorityAsked(name_of(2), ADA, 90))
    (part,) = world.job(name_of(0)).parts
    told = world.report(part.node, AttemptState.RUNNING, name_of(0))
    nodes = [*(world.state.members or (HERE,))]
    world.begin_anew()
    for node in nodes:
        world.register(node, *([told] if node == part.node else []), gpus=8)
    world.wait(1)
    ends(world, 0)
    assert begun(world) == [2]


def test_an_array_of_which_nothing_runs_begins_with_the_highest_priority_after_a_restart() -> None:
    pool = Pool("a")
    for index in range(3):
        pool.submit(name_of(index), HALF, array=ARRAY, index=index, array_limit=1, held=True)
    pool.do(m.JobPriorityAsked(name_of(2), ADA, 90))
    pool.begin_anew()
    for index in range(3):
        pool.do(m.JobHoldAsked(name_of(index), ADA, held=False))
    pool.register("a")
    pool.wait(1)
    assert begun(pool) == [2]


@WORLDS
def test_the_limit_holds_after_a_restart_for_what_ran_before(pool: Callable[[], Pool]) -> None:
    world = pool()
    submit_array(world, 5, limit=2)
    for index in (0, 1):
        runs(world, index)
    reports: dict[str, list[Report]] = {node: [] for node in world.state.members or (HERE,)}
    for index in (0, 1):
        (part,) = world.job(name_of(index)).parts
        reports[part.node].append(world.report(part.node, AttemptState.RUNNING, name_of(index)))
    world.begin_anew()
    for node, told in reports.items():
        world.register(node, *told, gpus=8)
    world.wait(1)
    assert begun(world) == [0, 1]
    ends(world, 1)
    assert begun(world) == [0, 2]


def test_others_are_not_held_up_by_an_array_that_may_not_start() -> None:
    pool = Pool("a", gpus=8)
    submit_array(pool, 100, limit=1)
    pool.submit("other")
    pool.wait()
    assert isinstance(pool.job("other").state, Placing)
    assert begun(pool) == [0, 0]


@pytest.mark.parametrize("how", ["held", "cancelled"])
def test_a_job_that_waits_for_its_place_and_is_taken_out_lets_the_next_one_in(how: str) -> None:
    pool = Pool(rules=RULES)
    submit_array(pool, 3, limit=1)
    if how == "held":
        pool.do(m.JobHoldAsked(name_of(0), ADA, held=True))
    else:
        pool.do(m.CancelAsked(name_of(0), ADA, 0))
    assert name_of(1) in pool.state.waiting.where
    assert name_of(2) not in pool.state.waiting.where


def test_a_job_that_is_tried_again_later_lets_the_next_one_in_and_waits_for_its_turn() -> None:
    pool = Pool("a", gpus=8)
    submit_array(pool, 3, limit=1, retries=1)
    runs(pool, 0)
    ends(pool, 0, code=3)
    assert begun(pool) == [1]
    pool.wait(6)
    assert isinstance(pool.job(name_of(0)).state, Queued)
    ends(pool, 1)
    assert begun(pool) == [0]
