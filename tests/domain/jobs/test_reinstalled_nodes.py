"""What becomes of jobs whose node has lost its attempt log, or has an older copy of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_log import AttemptLog
from gpushared.domain.jobs.job import (
    AttemptState,
    Cancelled,
    Ending,
    EndKind,
    JobFailed,
    NodeName,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.protocol import Order, Place, Report
from tests.domain.jobs.pool_world import ADA, START, J, Pool

S = AttemptState
A = NodeName("a")
FORGOTTEN = "its node has no record of it any more"


class Node:
    """A node whose attempt log is the real one, and new."""

    def __init__(self, pool: Pool, name: str) -> None:
        self.pool = pool
        self.name = NodeName(name)
        self.log = AttemptLog()

    def comes_back(self) -> None:
        """It joins anew, and answers what it is asked."""
        self.pool.do(m.NodeEnrolled(self.name))
        self.pool.register(self.name, *attempt_log.reports(self.log))
        self.answers()

    def answers(self) -> None:
        for _, order in self.pool.orders():
            self.pool.do(m.AttemptReported(self.name, self.answer_to(order)))

    def answer_to(self, order: Order) -> Report:
        taken = attempt_log.take(self.log, order, None, None, START)
        self.log = taken.attempt_log
        assert isinstance(taken.report, Report)
        return taken.report


def _reinstalled(**spec: object) -> Node:
    """The only node of a job that ran, with a log that does not know the job."""
    pool = Pool("a")
    pool.submit(**spec)  # type: ignore[arg-type]
    for state in (S.PREPARING, S.RESERVED, S.RUNNING):
        pool.says("a", state)
    pool.is_now(Running)
    pool.do(m.NodeDisconnected(A))
    return Node(pool, "a")


def test_a_job_on_a_reinstalled_node_is_run_again() -> None:
    """Its new log begins to count, so that its answers seem older than those of the lost one."""
    node = _reinstalled()
    node.comes_back()
    assert (node.pool.job().attempts, type(node.pool.job().state)) == (2, Placing)
    assert f"ended ({FORGOTTEN}) on node a; it waits again" in node.pool.told()


def test_a_job_that_must_not_be_run_again_fails_on_a_reinstalled_node() -> None:
    node = _reinstalled(requeue=False)
    node.comes_back()
    assert node.pool.ended() == JobFailed(FORGOTTEN)


@pytest.mark.parametrize("before", [True, False])
def test_a_job_on_a_reinstalled_node_can_be_cancelled(before: bool) -> None:
    """Whether the order to end it came before the node joined again, or the node was just asked."""
    node = _reinstalled()
    if before:
        node.pool.do(m.CancelAsked(J, ADA))
        node.comes_back()
    else:
        node.pool.register("a")
        node.pool.do(m.CancelAsked(J, ADA))
        node.answers()
    assert node.pool.ended() == Cancelled("ada@lab")


def test_a_node_with_an_older_copy_of_its_log_tells_the_end_of_its_job() -> None:
    """The end is the last thing that a log says of an attempt, whatever its revision."""
    node = _reinstalled()
    node.pool.register("a", node.pool.report("a", S.PREPARING, revision=1))
    node.pool.is_now(Running)
    node.pool.says("a", S.ENDED, ending=Ending(EndKind.LOST, "the node went down"), revision=2)
    assert node.pool.job().attempts == 2


def test_an_order_that_comes_after_the_question_whether_it_came_changes_nothing() -> None:
    """So a node that refuses an attempt for ever has not run it, whatever the order of its answers."""
    pool = Pool("a", "b")
    pool.submit()
    (place,) = [order for _, order in pool.orders(Place)]
    pool.begin_anew()
    node = Node(pool, pool.where()[0])
    pool.register(node.name)
    (asked,) = [order for _, order in pool.orders()]
    late = replace(place, epoch=asked.epoch)
    answers = [node.answer_to(order) for order in (asked, late, asked)]
    assert len(set(answers)) == 1
    for answer in reversed(answers):
        pool.do(m.AttemptReported(node.name, answer))
    pool.is_now(Queued)
    assert pool.job().attempts == 1
