"""When the attempts at a job ran, and where: kept for its output, and for what people see of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_history import TRIES_KEPT, TRY_PARTS_KEPT
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    Job,
    NodeName,
)
from gpushared.domain.model.errors import RequestError, StateConflict
from gpushared.domain.model.lease import AttemptKey
from gpushared.jobs.job_logs import output_of, place_of
from gpushared.jobs.job_views import JobViews
from tests.domain.jobs.pool_world import RULES, START, J, Pool, exited

S = AttemptState


def shown(pool: Pool, job: Job | None = None) -> jobs_pb2.Job:
    return JobViews(lambda: pool.state, lambda: pool.now).job(job or pool.state.find(J))


def test_what_is_over_shows_when_it_began_and_ended_by_its_nodes_word() -> None:
    """Also where nobody heard of its end for a long time, because the node was cut off."""
    pool = Pool("a")
    pool.submit()
    pool.wait(100.0)
    began = replace(pool.report("a", S.RUNNING), started_at=START + 40.0)
    pool.do(m.AttemptReported(NodeName("a"), began))
    assert shown(pool).started_at == START + 40.0
    pool.wait(3600.0)
    over = replace(pool.report("a", S.ENDED, ending=exited(0)), ended_at=START + 110.0)
    pool.do(m.AttemptReported(NodeName("a"), over))
    assert (shown(pool).started_at, shown(pool).ended_at) == (START + 40.0, START + 110.0)


@pytest.mark.parametrize("wrong", [-1e300, 0.0, START + 1e9, 1e300])
def test_a_nodes_clock_puts_nothing_before_the_job_came_or_after_it_was_heard(wrong: float) -> None:
    pool = Pool("a")
    pool.submit()
    pool.wait(10.0)
    over = replace(pool.report("a", S.ENDED, ending=exited(0)), started_at=wrong, ended_at=wrong)
    pool.do(m.AttemptReported(NodeName("a"), over))
    assert START <= shown(pool).started_at <= shown(pool).ended_at <= pool.now


def test_what_never_ran_shows_no_start() -> None:
    pool = Pool("a")
    pool.submit()
    pool.says("a", S.ENDED, ending=Ending(EndKind.FAILED, "no such image"))
    assert shown(pool).state == "failed"
    assert (shown(pool).started_at, list(shown(pool).tries)) == (0.0, [])


def failed_once() -> Pool:
    """Its first attempt ran on a node, and failed; the second waits."""
    pool = Pool("a")
    pool.running(retries=5)
    pool.wait(7.0)
    pool.says("a", S.ENDED, ending=exited(3))
    return pool


def test_while_it_waits_for_another_attempt_the_one_before_is_told_and_found() -> None:
    pool = failed_once()
    view = shown(pool)
    assert (view.state, view.started_at) == ("queued", 0.0)
    (one,) = view.tries
    assert (one.attempt, one.ended_at - one.started_at) == (1, 7.0)
    assert [(part.node, part.lease_id, part.exit_code) for part in one.parts] == [("a", "l-7", 3)]
    assert output_of(pool.state.find(J), 0) == ("a", AttemptKey(J, 1))


def test_the_newest_output_is_that_of_the_attempt_that_ran_last() -> None:
    """One that has its place, and no container yet, has none to show; a tunnel leads to it all the same."""
    pool = failed_once()
    pool.wait(5.0)
    pool.says("a", S.RESERVED)
    job = pool.state.find(J)
    assert (output_of(job, 0).key.number, place_of(job, 0).key.number) == (1, 2)
    pool.says("a", S.RUNNING)
    job = pool.state.find(J)
    assert [output_of(job, 0, number).key.number for number in (0, 1, 2)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("rank", "attempt", "kind", "words"),
    [
        (0, 7, StateConflict, "no attempt 7 that ran"),
        (0, -1, StateConflict, "no attempt -1 that ran"),
        (4, 1, RequestError, "has 1 parts, counted from 0"),
        (4, 0, RequestError, "has 1 parts, counted from 0"),
    ],
)
def test_what_there_is_no_output_of_is_refused(
    rank: int, attempt: int, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        output_of(failed_once().state.find(J), rank, attempt)


def test_an_attempt_that_no_container_began_in_is_no_try() -> None:
    pool = Pool("a", "b")
    pool.submit()
    node = pool.where()[0]
    pool.says(node, S.REFUSED, ending=Ending(EndKind.NO_ROOM, "full"))
    assert not pool.state.find(J).tries


def test_the_output_of_an_attempt_that_found_no_room_is_refused_with_the_reason() -> None:
    pool = Pool("a")
    pool.submit()
    pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM, "full"))
    pool.wait(5.0)
    pool.says("a", S.RUNNING)
    job = pool.state.find(J)
    assert output_of(job, 0).key.number == 2
    with pytest.raises(StateConflict, match="no attempt 1 that ran") as refused:
        output_of(job, 0, 1)
    assert "such as for lack of room" in refused.value.hint


def test_only_the_newest_tries_are_kept() -> None:
    """However often its node loses it."""
    pool = Pool("a")
    pool.running()
    for _ in range(TRIES_KEPT + 5):
        pool.says("a", S.ENDED, ending=Ending(EndKind.LOST))
        pool.wait(1.0)
        pool.says("a", S.RUNNING)
    numbers = [one.number for one in pool.state.find(J).tries]
    assert numbers == list(range(6, TRIES_KEPT + 6))


def test_tries_of_large_gangs_are_kept_as_far_as_a_record_may_grow() -> None:
    nodes = [f"n{number:02}" for number in range(60)]
    pool = Pool(*nodes, rules=RULES)
    pool.submit(nodes=60)
    for _ in range(4):
        for state in (S.RESERVED, S.RUNNING):
            for node in nodes:
                pool.says(node, state)
        pool.says(nodes[0], S.ENDED, ending=Ending(EndKind.LOST))
        for node in nodes[1:]:
            pool.says(node, S.ENDED, ending=Ending(EndKind.CANCELLED))
        pool.wait(1.0)
    tries = pool.state.find(J).tries
    assert [len(one.parts) for one in tries] == [60] * (TRY_PARTS_KEPT // 60)
    assert tries[-1].number == 4
