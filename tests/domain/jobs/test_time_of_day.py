"""The time of day is set: what was to begin at a time of day follows it, nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    AttemptState,
    Job,
    NodeName,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.liveness import presence
from gpushared.domain.jobs.member import Member, Presence
from gpushared.domain.model.lease import JobId
from gpushared.jobs.job_views import JobViews, nodes_of
from tests.domain.jobs.pool_world import HALF, START, WHOLE, J, Pool, exited

HOUR = 3600.0
LATER = replace(HALF, begin_at=START + HOUR)


def member(pool: Pool) -> Member:
    return pool.state.members[NodeName("a")]


def views(pool: Pool) -> JobViews:
    return JobViews(lambda: pool.state, lambda: pool.now)


def set_day(pool: Pool, ahead_seconds: float) -> None:
    """It is so far ahead from now on."""
    pool.do(m.PoolDayTimeSet(ahead_seconds))


def job_of(pool: Pool) -> Job:
    return pool.job(J)


def test_a_job_begins_when_the_clock_is_set_to_its_time() -> None:
    pool = Pool("a")
    pool.submit(request=LATER)
    set_day(pool, HOUR - 1)
    pool.is_now(Queued)
    assert pool.orders() == []
    set_day(pool, HOUR)
    assert [node for node, _ in pool.orders()] == ["a"]


def test_one_whose_time_has_come_waits_again_when_the_clock_is_set_back() -> None:
    """It found no room in the meantime."""
    pool = Pool("a")
    pool.running("other", request=WHOLE)
    pool.submit(request=LATER)
    pool.wait(HOUR)
    set_day(pool, -HOUR)
    reason = views(pool).why(job_of(pool))
    assert reason is not None
    assert reason.code == "begin_time"
    pool.says("a", AttemptState.ENDED, JobId("other"), ending=exited(0))
    pool.is_now(Queued)
    pool.wait(HOUR)
    pool.register("a")
    pool.is_now(Placing)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_no_node_looks_silent_by_it_and_none_that_is_silent_looks_well(ahead: float) -> None:
    pool = Pool("a")
    pool.running(stop_after_seconds=600)
    set_day(pool, ahead)
    pool.wait(1.0)
    assert presence(member(pool), pool.state, pool.now) is Presence.READY
    pool.is_now(Running)
    pool.wait(120.0)
    assert presence(member(pool), pool.state, pool.now) is Presence.UNKNOWN


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_all_times_are_shown_by_the_clock_as_it_is_now(ahead: float) -> None:
    pool = Pool("a")
    pool.submit()
    pool.wait(10.0)
    pool.says("a", AttemptState.RUNNING)
    set_day(pool, ahead)
    shown = views(pool).job(job_of(pool))
    assert (shown.submitted_at, shown.started_at) == (START + ahead, START + 10.0 + ahead)
    assert views(pool).story(job_of(pool))[0].at == START + ahead
    (node,) = nodes_of(pool.state, pool.now)
    assert (node.enrolled_at, node.heard_at) == (START + ahead, START + ahead)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_what_nodes_say_of_the_time_of_day_is_shown_as_they_say_it(ahead: float) -> None:
    """Their clocks are right, and so is the coordinator's, since it was set."""
    pool = Pool("a")
    pool.submit()
    set_day(pool, ahead)
    pool.wait(100.0)
    began = replace(pool.report("a", AttemptState.RUNNING), started_at=START + ahead + 40.0)
    pool.do(m.AttemptReported(NodeName("a"), began))
    assert views(pool).job(job_of(pool)).started_at == START + ahead + 40.0


def test_a_coordinator_that_starts_again_knows_how_far_the_clock_is_ahead() -> None:
    pool = Pool("a")
    pool.submit(request=LATER)
    set_day(pool, -HOUR)
    pool.begin_anew(ahead_seconds=-HOUR)
    for hours in (0, 1):
        pool.now = START + hours * HOUR + 100.0
        pool.register("a")
        pool.is_now(Queued)
    pool.wait(HOUR)
    pool.register("a")
    pool.is_now(Placing)
