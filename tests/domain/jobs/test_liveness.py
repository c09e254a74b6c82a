"""What a coordinator makes of a silent node's fenced job, and of what the node says of it afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    Job,
    JobFailed,
    NodeName,
    Placing,
    Queued,
    Running,
    Succeeded,
)
from gpushared.domain.jobs.protocol import CancelPart, Place, Query
from gpushared.storage.records import from_json, to_json
from tests.domain.jobs.pool_world import J, Pool, exited

SILENT_SECONDS = 120.0
FENCED = Ending(EndKind.FENCED, "its guard ended it")


def guarded(*nodes: str) -> Pool:
    """A fenced job runs on the first node, with a guard."""
    pool = Pool(*nodes)
    pool.submit(stop_after_seconds=40)
    report = pool.report(nodes[0], AttemptState.RUNNING)
    pool.do(m.AttemptReported(NodeName(nodes[0]), replace(report, guarded=True)))
    pool.is_now(Running)
    return pool


def presumed() -> Pool:
    """The only node is silent for so long that the job is presumed over and waits, and is heard again."""
    pool = guarded("a")
    pool.wait(SILENT_SECONDS)
    pool.is_now(Queued)
    pool.heartbeat("a")
    pool.wait(1.0)
    pool.is_now(Queued)
    return pool


def test_what_is_said_of_it_is_what_is_known() -> None:
    pool = guarded("a")
    pool.wait(SILENT_SECONDS)
    assert pool.told()[-2:] == [
        "a was not heard for 2m; the guard there was to end it after 40s",
        "it counts as ended; it waits again",
    ]


def test_a_guard_that_is_told_of_later_counts_from_then_on() -> None:
    """A node that becomes newer while the job runs says so with the revision that is known already."""
    pool = Pool("a")
    pool.submit(stop_after_seconds=40)
    pool.says("a", AttemptState.RUNNING)
    pool.wait(SILENT_SECONDS)
    pool.is_now(Running)
    pool.heartbeat("a")
    same = pool.report("a", AttemptState.RUNNING, revision=1)
    step = pool.do(m.AttemptReported(NodeName("a"), replace(same, guarded=True)))
    assert [job.id for job in step.jobs] == [J], "it is to be known after a restart, too"
    pool.wait(SILENT_SECONDS)
    pool.is_now(Queued)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_an_end_that_is_told_of_late_counts(code: int) -> None:
    pool = presumed()
    pool.says("a", AttemptState.ENDED, revision=9, ending=exited(code))
    if code:
        assert isinstance(pool.ended(), JobFailed)
        assert pool.ended().exit_code == code
    else:
        assert pool.ended() == Succeeded()
    assert pool.job().attempts == 1
    assert pool.job().tries == ()


def test_it_counts_after_a_restart_of_the_coordinator_too() -> None:
    pool = presumed()
    pool.begin_anew()
    pool.register("a", pool.report("a", AttemptState.ENDED, revision=9, ending=exited(0)))
    assert pool.ended() == Succeeded()


@pytest.mark.parametrize("code", [0, 3])
def test_it_counts_while_the_pool_recovers_too(code: int) -> None:
    """Nothing is placed then, so the job is not begun anew before its node is heard."""
    pool = guarded("a", "b")
    pool.begin_anew(from_copy=True)
    pool.register("b")
    for _ in range(4):
        pool.wait(SILENT_SECONDS / 4)
        pool.heartbeat("b")
    assert "the guard there was to end it after 40s" in pool.told()[-1]
    pool.is_now(Running)
    pool.register("a", pool.report("a", AttemptState.ENDED, revision=9, ending=exited(code)))
    pool.wait(SILENT_SECONDS)
    assert isinstance(pool.ended(), JobFailed if code else Succeeded)
    assert (pool.job().attempts, pool.orders(Place)) == (1, [])


def test_it_does_not_count_once_the_job_was_placed_anew() -> None:
    pool = guarded("a", "b")
    for _ in range(4):
        pool.wait(SILENT_SECONDS / 4)
        pool.heartbeat("b")
    pool.wait()
    assert (pool.is_now(Placing).attempt, pool.where()) == (2, ["b"])
    pool.heartbeat("a")
    pool.says("a", AttemptState.ENDED, attempt=1, revision=9, ending=exited(0))
    assert pool.is_now(Placing).attempt == 2


def test_the_job_does_not_go_there_again_before_the_node_has_said_how_it_ended() -> None:
    """It is asked for that, and what still runs is ended."""
    pool = presumed()
    pool.wait(10.0)
    pool.heartbeat("a")
    pool.wait(10.0)
    assert [type(order) for _, order in pool.orders()] == [Query]
    pool.says("a", AttemptState.RUNNING, revision=8)
    assert pool.orders(CancelPart)
    pool.is_now(Queued)
    pool.says("a", AttemptState.ENDED, revision=9, ending=FENCED)
    pool.wait(1.0)
    assert (pool.is_now(Placing).attempt, pool.where()) == (2, ["a"])


def test_a_record_of_an_older_version_says_that_no_guard_watches() -> None:
    pool = guarded("a")
    text = to_json(Job, pool.job()).replace(',"guarded":true', "").replace(',"presumed":null', "")
    old = from_json(Job, text)
    assert not old.parts[0].guarded
    assert old.presumed is None
