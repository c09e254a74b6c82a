"""What a node of the pool, in the wrong hands, can make of its word on jobs that are not its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
    NodeName,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.protocol import CancelPart, Report
from gpushared.domain.model.errors import StateConflict
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from tests.domain.jobs.pool_world import ADA, BOB, HALF, RULES, J, Pool, exited

A, B = NodeName("a"), NodeName("b")
LOST = Ending(EndKind.LOST, "its node lost it")
FORGED = JobId("forged")
SPEC = JobSpec(HALF, ADA, image="x")


def _tell(
    pool: Pool, node: NodeName, state: AttemptState, revision: int, ending: Ending | None = None
) -> None:
    report = Report(AttemptKey(FORGED, 1), state, revision, LeaseId("l"), ending, SPEC, SPEC.request)
    pool.do(m.AttemptReported(node, report))


def _asking(*nodes: str) -> Pool:
    """A pool that may have lost some of its memory."""
    pool = Pool(*nodes)
    pool.ask_all()
    return pool


def _settle(pool: Pool) -> None:
    """Until what was told of may be placed, with all nodes there to take it."""
    pool.wait(RULES.recover_seconds)
    pool.heartbeat("a")
    pool.heartbeat("b")


def test_a_job_that_a_node_invents_for_a_user_of_others_runs_on_no_other_node() -> None:
    """Or whoever is root on one node could run anything as anybody on all of them."""
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B))
    pool.register("b")
    pool.ask_all()
    _tell(pool, B, AttemptState.RUNNING, 1)
    pool.is_now(Running, FORGED)
    pool.do(m.NodeDrainAsked(B, ADA, "repair"))
    _tell(pool, B, AttemptState.ENDED, 2, LOST)
    _settle(pool)
    pool.is_now(Queued, FORGED)
    pool.do(m.NodeDrainAsked(B, ADA, None))
    pool.heartbeat("b")
    assert pool.where(FORGED) == ["b"]


def test_a_job_that_a_node_tells_of_for_its_own_users_goes_on_where_there_is_room() -> None:
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B, realms=("b", "lab")))
    pool.register("b")
    pool.ask_all()
    _tell(pool, B, AttemptState.RUNNING, 1)
    pool.do(m.NodeDrainAsked(B, ADA, "repair"))
    _tell(pool, B, AttemptState.ENDED, 2, LOST)
    _settle(pool)
    assert pool.where(FORGED) == ["a"]


def test_with_its_owners_own_word_a_job_that_was_only_told_of_may_run_anywhere() -> None:
    """As after a loss of memory: the node through which it came in still has it."""
    pool = _asking("a", "b")
    _tell(pool, B, AttemptState.RUNNING, 1)
    pool.do(m.NodeDrainAsked(B, ADA, "repair"))
    pool.do(m.JobSubmitted(FORGED, SPEC, old=True))
    _tell(pool, B, AttemptState.ENDED, 2, LOST)
    _settle(pool)
    assert pool.where(FORGED) == ["a"]


@pytest.mark.parametrize("when", ["settled", "recovering"])
def test_a_job_of_a_stranger_is_over_when_the_only_node_that_told_of_it_is_forgotten(when: str) -> None:
    """It would wait for that node for ever, and nobody's word is there to run it elsewhere."""
    pool = _asking("a", "b")
    _tell(pool, B, AttemptState.RUNNING, 1)
    if when == "recovering":
        pool.begin_anew(from_copy=True, epoch=9)
        pool.register("a")
        pool.do(m.NodeForgotten(B, ADA))
        assert not pool.state.settled
        pool.wait(RULES.recover_seconds)
        pool.heartbeat("a")
    else:
        _settle(pool)
        pool.do(m.NodeForgotten(B, ADA))
    assert pool.state.settled
    assert "only node b told of it" in pool.ended(FORGED).reason


def test_a_job_with_its_owners_word_waits_for_another_node_when_its_own_is_forgotten() -> None:
    pool = _asking("a", "b")
    _tell(pool, B, AttemptState.RUNNING, 1)
    pool.do(m.JobSubmitted(FORGED, SPEC, old=True))
    _settle(pool)
    pool.do(m.NodeForgotten(B, ADA))
    assert pool.where(FORGED) == ["a"]


@pytest.mark.parametrize("old", [False, True], ids=["new", "resent"])
@pytest.mark.parametrize("ending", [None, LOST, exited(0)], ids=["runs", "waits", "ended"])
def test_the_owner_s_own_word_counts_where_a_stranger_told_of_another_job_by_its_id(
    ending: Ending | None, *, old: bool
) -> None:
    """Who guesses a request id could make the request of somebody else void."""
    pool = _asking("a", "b")
    _tell(pool, B, AttemptState.RUNNING, 1)
    if ending is not None:
        pool.do(m.NodeDrainAsked(B, ADA, "repair"))
        _tell(pool, B, AttemptState.ENDED, 2, ending)
        _settle(pool)
    step = pool.do(m.JobSubmitted(FORGED, replace(SPEC, image="y"), old=old))
    assert (FORGED in pool.state.ended, bool(step.gone)) == (False, ending == exited(0))
    assert [to for to, _ in pool.orders(CancelPart)] == ([B] if ending is None else [])
    pool.do(m.NodeDrainAsked(B, ADA, None))
    _settle(pool)
    assert (pool.is_now(Placing, FORGED).attempt, pool.job(FORGED).spec.image) == (2, "y")
    assert not pool.job(FORGED).told_by


def test_what_a_stranger_tells_of_the_end_of_a_job_is_told_to_no_other_node() -> None:
    """The node through which the job came in would take it for over."""
    pool = _asking("a", "b")
    spec = replace(SPEC, origin=A)
    report = Report(AttemptKey(FORGED, 1), AttemptState.ENDED, 1, LeaseId("l"), exited(0), spec, HALF)
    steps = [pool.do(m.AttemptReported(B, report)), pool.wait(RULES.recover_seconds)]
    assert pool.ended(FORGED)
    assert not [one for step in steps for one in step.instructions if isinstance(one, m.TellOrigin)]


def test_who_guesses_an_id_takes_over_no_job_in_a_recovery() -> None:
    """Only a node that was given a job knows what the job asks for."""
    pool = Pool("a", "b")
    pool.submit(held=True)
    pool.begin_anew(from_copy=True, epoch=9)
    other = pool.report("b", AttemptState.RUNNING, attempt=3, revision=1, spec=replace(SPEC, image="y"))
    pool.register("b", other)
    pool.is_now(Queued)
    same = replace(other, key=AttemptKey(J, 4), spec=pool.job().spec)
    pool.register("b", same)
    assert pool.where() == ["b"]


def test_a_gang_that_only_a_stranger_told_of_ends_instead_of_waiting_for_ever() -> None:
    """Its parts would have to run on nodes that have only another node's word for it."""
    spec = replace(SPEC, nodes=2)
    pool = _asking("a", "b")
    report = Report(AttemptKey(FORGED, 1), AttemptState.REFUSED, 1, None, LOST, spec, HALF)
    pool.do(m.AttemptReported(B, report))
    _settle(pool)
    pool.wait(1)
    assert "only node b told of it" in pool.ended(FORGED).reason


def test_a_new_job_is_not_silently_answered_with_the_end_that_only_a_stranger_told_of() -> None:
    """A node that was given the job once could make the next of the same request disappear."""
    pool = _asking("a", "b")
    pool.register("b", pool.report("b", AttemptState.ENDED, FORGED, revision=1, ending=exited(0), spec=SPEC))
    pool.wait(RULES.recover_seconds)
    with pytest.raises(StateConflict, match="only node b tells that this job, forged, is over"):
        pool.submit(FORGED)


def test_no_node_makes_more_jobs_known_than_a_pool_may_have() -> None:
    """Each of them takes memory, and a place in the store."""
    pool = Pool("a", "b", rules=replace(RULES, max_queued=3))
    pool.ask_all()
    pool.register("b", *_invented(9))
    assert len(pool.state.jobs) == 3


def _invented(count: int, **more: Any) -> list[Report]:
    spec = replace(SPEC, **more)
    return [
        Report(AttemptKey(JobId(f"f{n}"), 1), AttemptState.RUNNING, n, LeaseId("l"), None, spec, spec.request)
        for n in range(1, count + 1)
    ]


def test_a_settled_pool_learns_no_jobs_from_a_node_and_has_them_ended_there() -> None:
    """Whose users' they ever are: each attempt is in the store before its node hears of it."""
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B, realms=("b", "lab")))
    pool.register("b")
    pool.register("b", *_invented(3))
    assert not pool.state.jobs
    assert sorted(str(order.key) for _, order in pool.orders(CancelPart)) == ["f1/1", "f2/1", "f3/1"]


def test_a_node_that_has_just_joined_is_believed_no_more_than_others() -> None:
    """Before a recovery it cannot have been given anything."""
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B))
    pool.register("b", *_invented(1))
    assert not pool.state.jobs


@pytest.mark.parametrize("more", [{}, {"body": "x" * 1000}], ids=["count", "bytes"])
def test_what_a_pool_learns_from_one_node_is_bounded_not_for_the_others(more: dict[str, str]) -> None:
    """Also where what the node told is over meanwhile."""
    rules = replace(RULES, max_reported_jobs_per_node=3, max_reported_bytes_per_node=3500)
    pool = Pool("a", "b", rules=rules)
    pool.ask_all()
    pool.register("b", *_invented(9, **more))
    assert len(pool.state.jobs) == 3
    _tell(pool, A, AttemptState.RUNNING, 1)
    assert FORGED in pool.state.jobs
    for name in list(pool.state.jobs):
        pool.do(m.AttemptReported(B, Report(AttemptKey(name, 1), AttemptState.ENDED, 99, ending=exited(0))))
    pool.register(
        "b", *[replace(one, key=AttemptKey(JobId(f"g{n}"), 1)) for n, one in enumerate(_invented(3))]
    )
    assert not any(name.startswith("g") for name in pool.state.jobs)


def test_the_numbers_that_a_node_tells_of_jobs_that_are_not_known_are_bounded() -> None:
    """They take memory, too, and none is needed once all have reported."""
    pool = Pool("a", "b", rules=replace(RULES, max_numbers_per_node=3))
    over = [replace(one, spec=None, state=AttemptState.ENDED, ending=exited(0)) for one in _invented(9)]
    pool.register("b", *over)
    assert not pool.state.numbers
    pool.ask_all()
    pool.register("b", *over)
    pool.register("b", *over)
    assert len(pool.state.numbers) == 3


def test_a_node_that_comes_back_after_a_loss_of_memory_is_believed_whole() -> None:
    """With all that runs on it, for whomever."""
    pool = _asking("a", "b")
    pool.register("b", *_invented(500, body="{" + 4000 * " " + "}"))
    assert len(pool.state.jobs) == 500
    _settle(pool)
    assert all(isinstance(job.state, Running) for job in pool.state.jobs.values())


def test_a_settled_pool_lets_no_node_use_up_the_numbers_of_others_attempts() -> None:
    pool = Pool("a", "b")
    pool.submit(held=True)
    pool.says("b", AttemptState.RUNNING, attempt=900, revision=50)
    assert pool.job().attempts == 0


@pytest.mark.parametrize("ending", [None, exited(0)], ids=["runs", "ended"])
def test_a_node_cannot_take_over_what_runs_elsewhere(ending: Ending | None) -> None:
    """By telling of a later attempt: none is begun while another one is under way."""
    pool = Pool("a", "b")
    there = pool.running()
    other = "b" if there == "a" else "a"
    state = AttemptState.RUNNING if ending is None else AttemptState.ENDED
    pool.says(other, state, attempt=9, revision=50, ending=ending)
    assert (pool.is_now(Running).attempt, pool.where()) == (1, [there])
    assert [to for to, _ in pool.orders(CancelPart)] == ([other] if ending is None else [])


def test_a_node_cannot_take_a_job_that_is_for_another_one() -> None:
    pool = Pool("a", "b")
    pool.submit(held=True, target=A)
    pool.says("b", AttemptState.RUNNING, attempt=1, revision=1)
    pool.is_now(Queued)
    pool.do(m.JobHoldAsked(J, ADA, held=False))
    pool.is_now(Placing)
    assert pool.where() == ["a"]


def test_whoever_comes_with_the_id_of_somebody_elses_job_is_told() -> None:
    """Not answered as if it were theirs, which would never run."""
    pool = Pool("a")
    pool.submit()
    with pytest.raises(StateConflict, match="somebody else's"):
        pool.submit(owner=BOB)
