"""Nodes that refuse jobs because they keep room for their own users, and nodes that only say so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    NodeName,
    Placing,
)
from gpushared.domain.jobs.member import Holding
from gpushared.domain.model.lease import JobId, LeaseId
from gpushared.jobs.job_views import notices_of
from tests.domain.jobs.pool_world import RULES, Pool, exited

A, B = NodeName("a"), NodeName("b")
FULL = Ending(EndKind.NO_ROOM, "others wait in the queue")


def refuse(pool: Pool, seconds: float = 60.0, **before: Any) -> None:
    """After a while, in which the node says this of itself, it refuses the job that is for it."""
    pool.wait(seconds)
    pool.heartbeat(B)
    pool.heartbeat(A, **before)
    assert isinstance(pool.job().state, Placing)
    pool.says(A, AttemptState.REFUSED, ending=FULL)


def refused(times: int = RULES.refusals_before_rest, **before: Any) -> Pool:
    pool = Pool(A, B)
    pool.submit(target=A)
    for _ in range(times):
        refuse(pool, **before)
    return pool


def where(pool: Pool) -> str:
    """Where another job goes, which may go anywhere, and is over at once."""
    pool.submit("other")
    (node,) = pool.where("other")
    return node


def rest_seconds(pool: Pool) -> float:
    rest = pool.state.resting.get(A)
    return 0.0 if rest is None else max(0.0, rest.until - pool.now)


def test_a_node_that_keeps_room_for_its_own_queue_is_tried_last_as_long_as_it_has_one() -> None:
    pool = refused(times=9, waiting=1)
    assert rest_seconds(pool) == 0
    (notice,) = notices_of(pool.state, pool.now)
    assert notice == (
        "a keeps room for its own queue and refused 9 jobs in a row; while others wait there it is tried last"
    )
    assert where(pool) == B


def test_once_its_own_queue_is_empty_it_is_as_good_as_others_at_once() -> None:
    pool = refused(times=9, waiting=1)
    before = pool.state
    assert where(pool) == B
    pool.state = before
    pool.heartbeat(A, waiting=0)
    assert notices_of(pool.state, pool.now) == []
    assert where(pool) == A


def taken(number: int) -> tuple[Holding, ...]:
    """Something else than before, by a lease that takes no room that matters."""
    return (Holding(LeaseId(f"l-{number}"), (), "eve", "eve"),)


def test_a_node_whose_room_was_taken_meanwhile_rests_no_longer_each_time() -> None:
    pool = refused()
    for number in range(6):
        refuse(pool, holdings=taken(number))
        assert rest_seconds(pool) == RULES.rest_seconds


def test_who_says_only_with_the_refusal_that_others_wait_rests_like_any_other() -> None:
    """Or it would have each job, and say that its queue was empty when it wants the next."""
    pool = refused()
    rests = []
    for _ in range(6):
        pool.wait(60.0)
        pool.heartbeat(B)
        pool.heartbeat(A, waiting=0)
        assert isinstance(pool.job().state, Placing)
        pool.wait(1.0)
        pool.heartbeat(A, waiting=1)
        pool.says(A, AttemptState.REFUSED, ending=FULL)
        rests.append(rest_seconds(pool))
    assert min(rests) >= RULES.rest_seconds


def test_who_refuses_by_policy_rests_longer_each_time_whatever_waits_there() -> None:
    pool = refused(waiting=1)
    rests = []
    for number in range(3):
        pool.wait(60.0)
        pool.heartbeat(B)
        pool.heartbeat(A)
        pool.submit(f"j-{number}", target=A)
        no = Ending(EndKind.FAILED, "not for you")
        pool.says(A, AttemptState.REFUSED, JobId(f"j-{number}"), ending=no)
        rests.append(rest_seconds(pool))
    assert rests == [120.0, 240.0, 480.0]


def answer_orders(pool: Pool, after: dict[str, Any]) -> bool:
    """Let b run what it got; a says something of itself and refuses all. Returns True if it got anything.

    An order that follows from an answer is answered at once, too.
    """
    has_refused = False
    while placed := [job.id for job in pool.state.jobs.values() if isinstance(job.state, Placing)]:
        job = placed[0]
        if pool.where(job) == [B]:
            pool.says(B, AttemptState.RUNNING, job)
            pool.says(B, AttemptState.ENDED, job, ending=exited(0))
            continue
        has_refused = True
        pool.heartbeat(A, **after)
        pool.says(A, AttemptState.REFUSED, job, ending=FULL)
    return has_refused


def wait_hearing_b(pool: Pool, seconds: float) -> None:
    """Let time pass; b is heard of all the time, or a would be asked for want of another node."""
    while seconds > 0:
        step = min(seconds, 1.0)
        pool.wait(step)
        pool.heartbeat(B)
        seconds -= step


WORDS = st.fixed_dictionaries({"waiting": st.integers(0, 1), "holdings": st.integers(0, 2).map(taken)})


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, st.sampled_from([1.0, 20.0, 61.0])), min_size=8, max_size=30))
def test_whatever_a_node_says_of_itself_it_holds_up_a_job_once_a_minute_at_most(
    told: list[tuple[dict[str, Any], dict[str, Any], float]],
) -> None:
    """After three refusals in a row, while another node has room."""
    pool, refused_at = Pool(A, B), list[float]()
    for number, (before, after, seconds) in enumerate(told):
        wait_hearing_b(pool, seconds)
        pool.heartbeat(A, **before)
        if answer_orders(pool, after):
            refused_at.append(pool.now)
        wait_hearing_b(pool, 1.0)
        pool.submit(f"j-{number}")
        if answer_orders(pool, after):
            refused_at.append(pool.now)
    late = refused_at[RULES.refusals_before_rest :]
    assert all(later - earlier >= RULES.rest_seconds for earlier, later in pairwise(late))
