"""Nodes that say that they have seen more of the pool than its coordinator: when that counts."""

from __future__ import annotations

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
from gpushared.domain.jobs.protocol import CancelPart, StaleEpoch
from gpushared.domain.jobs.staleness_claims import ClaimRefused
from tests.domain.jobs.pool_world import ADA, HALF, ROOT, RULES, Pool

S = AttemptState
A, B = NodeName("a"), NodeName("b")
SPEC = JobSpec(HALF, ADA, image="x")


def _recovered(*nodes: str) -> Pool:
    """A pool that lost its memory, and whose recovery went on without b, by an admin's word."""
    pool = Pool(*nodes, "b")
    pool.begin_anew(from_copy=True, epoch=9)
    pool.state.revision = 50
    for node in nodes:
        pool.register(node, seen_epoch=8, seen_revision=900)
    pool.do(m.NodeForgotten(B, ROOT, only_waive=True))
    pool.wait(RULES.recover_seconds)
    for node in nodes:
        pool.heartbeat(node)
    assert pool.state.recovering_since is None
    return pool


def test_a_node_without_which_a_recovery_went_on_starts_no_other_one_when_it_comes_back() -> None:
    """All that it has seen of the lost memory is known to be lost; what it has is taken."""
    pool = _recovered("a")
    pool.submit("other")
    step = pool.register(
        "b", pool.report("b", S.RUNNING, attempt=3, revision=7, spec=SPEC), seen_epoch=8, seen_revision=900
    )
    assert (pool.state.recovering_since, step.epoch) == (None, None)
    assert (pool.is_now(Running).attempt, pool.where()) == (3, ["b"])
    assert not pool.state.members[B].excused


def test_that_holds_over_a_restart_of_the_coordinator() -> None:
    pool = _recovered("a")
    pool.begin_anew(epoch=10)
    pool.state.revision = 60
    pool.register("a")
    pool.register("b", seen_epoch=8, seen_revision=900)
    assert pool.state.recovering_since is None


def test_it_is_led_again_also_where_it_has_seen_a_higher_epoch() -> None:
    """Which needs a higher one of ours, but nobody else's report."""
    pool = _recovered("a")
    assert pool.register("b", seen_epoch=40).epoch == 41
    assert pool.state.recovering_since is None


def test_what_it_has_of_a_job_that_waits_again_is_taken_over() -> None:
    pool = _recovered("a")
    pool.submit(held=True)
    pool.register("b", pool.report("b", S.RUNNING, attempt=3, revision=7, spec=SPEC), seen_epoch=8)
    assert (pool.is_now(Running).attempt, pool.where()) == (3, ["b"])


def test_what_it_has_of_a_job_that_runs_elsewhere_is_ended_and_its_number_never_used() -> None:
    """Its record of that attempt would be its answer to the order."""
    pool = _recovered("a")
    assert pool.running() == "a"
    pool.register("b", pool.report("b", S.RUNNING, attempt=2, revision=7, spec=SPEC), seen_epoch=8)
    assert [(to, str(order.key)) for to, order in pool.orders(CancelPart)] == [("b", "j1/2")]
    assert (pool.is_now(Running).attempt, pool.where()) == (1, ["a"])
    pool.do(m.NodeDrainAsked(A, ROOT, "fan"))
    pool.says("a", S.ENDED, attempt=1, ending=Ending(EndKind.LOST))
    pool.heartbeat("b")
    assert (pool.is_now(Placing).attempt, pool.where()) == (3, ["b"])


def test_a_number_that_no_old_memory_can_lack_is_not_taken_for_used() -> None:
    """Or a liar could use up those of a job of others."""
    pool = Pool("a", "b")
    there = pool.running()
    pool.says("b" if there == "a" else "a", S.RUNNING, attempt=(1 << 31) - 1, revision=50)
    assert pool.job().attempts == 1


@pytest.mark.parametrize(("epoch", "revision"), [(50, 0), (1, 900)], ids=["a higher epoch", "a later change"])
def test_a_node_makes_the_pool_recover_once_in_a_life_of_its_coordinator(epoch: int, revision: int) -> None:
    """Else whoever has one node could keep all the others waiting for ever."""
    pool = Pool("a", "b")
    pool.state.revision = 50
    pool.register("b", seen_epoch=epoch, seen_revision=revision)
    assert pool.state.recovering_since == pool.now
    pool.register("a")
    pool.register("b")
    pool.wait(RULES.recover_seconds)
    assert pool.state.recovering_since is None
    before = pool.state
    if revision:
        pool.register("b", seen_epoch=pool.state.epoch, seen_revision=1900)
        assert pool.state.members[B].connected
    else:
        with pytest.raises(ClaimRefused, match="node b says again") as refused:
            pool.register("b", seen_epoch=90)
        assert "pool revoke --node b" in refused.value.hint
    assert (pool.state.recovering_since, pool.state.epoch) == (None, before.epoch)


def test_a_node_raises_the_epoch_once_in_a_life_of_its_coordinator() -> None:
    """Each time all the others have to come back."""
    pool = Pool("a", "b")
    key = pool.report("a", S.RUNNING).key
    assert pool.do(m.AttemptReported(B, StaleEpoch(key, 7))).epoch == 8
    assert pool.do(m.AttemptReported(B, StaleEpoch(key, 70))).epoch is None
    assert pool.do(m.AttemptReported(A, StaleEpoch(key, 70))).epoch == 71


def test_no_node_takes_a_job_of_others_that_waits() -> None:
    """Once all have reported nobody can have an attempt that we do not know, whose users' job ever it is."""
    pool = Pool("a", "b")
    pool.do(m.NodeEnrolled(A, realms=("a", "lab")))
    pool.submit(held=True)
    pool.says("b", S.RUNNING, attempt=1, revision=50)
    pool.is_now(Queued)
    assert [to for to, _ in pool.orders(CancelPart)] == ["b"]
    pool.register("a", pool.report("a", S.RUNNING, attempt=2, revision=50, spec=pool.job().spec))
    pool.is_now(Queued)
    assert [to for to, _ in pool.orders(CancelPart)] == ["a"]


def test_in_a_recovery_of_several_that_tell_of_a_job_the_highest_attempt_goes_on() -> None:
    """The others are ended; the story says who told."""
    pool = Pool("a", "b")
    pool.begin_anew(from_copy=True, epoch=9)
    pool.register("a", pool.report("a", S.RUNNING, attempt=1, revision=4, spec=SPEC))
    pool.register("b", pool.report("b", S.RUNNING, attempt=2, revision=4, spec=SPEC))
    assert (pool.is_now(Running).attempt, pool.where()) == (2, ["b"])
    assert [(to, str(order.key)) for to, order in pool.orders(CancelPart)] == [("a", "j1/1")]
    assert (pool.job().told_by, pool.job().spec.target) == (B, B)
    sentences = pool.told()
    assert "node a tells of attempt 1, which is taken over" in sentences
    assert "node b tells of attempt 2, which is taken over" in sentences
