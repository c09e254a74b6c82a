"""What a coordinator does after its start, and after its memory was lost or replaced by an older one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    After,
    AfterKind,
    AttemptState,
    Cancelled,
    Cancelling,
    Ending,
    EndKind,
    JobSpec,
    NodeName,
    Placing,
    Queued,
    Running,
    Succeeded,
)
from gpushared.domain.jobs.liveness import presence
from gpushared.domain.jobs.member import Presence
from gpushared.domain.jobs.protocol import CancelPart, Place, Query, StaleEpoch
from gpushared.domain.model.errors import NotFound, Unavailable
from gpushared.domain.model.lease import JobId
from tests.domain.jobs.pool_world import ADA, BOB, HALF, ROOT, RULES, START, J, Pool, exited

S = AttemptState
A, B = NodeName("a"), NodeName("b")


def test_after_a_start_nothing_old_is_placed_before_all_have_reported() -> None:
    """What is new is: it cannot run anywhere yet."""
    pool = Pool("a", "b")
    pool.submit("old", held=True)
    pool.do(m.JobHoldAsked(JobId("old"), ADA, held=False))
    pool = _with_queued(pool)
    pool.register("a")
    pool.is_now(Queued, "old")
    pool.submit("new")
    pool.is_now(Placing, "new")
    assert pool.state.missing() == ("b",)
    pool.register("b")
    pool.is_now(Placing, "old")


def _with_queued(pool: Pool) -> Pool:
    """A pool that begins anew with a job that waits."""
    waiting = replace(pool.job("old"), state=Queued(pool.now), attempts=0)
    pool.state.jobs = pool.state.jobs.put(waiting.id, waiting)
    pool.begin_anew()
    return pool


def test_a_silent_member_is_waited_for_only_a_minute_where_nothing_was_lost() -> None:
    """The store knows what runs there."""
    pool = Pool("a", "b")
    pool.submit("old", held=True)
    pool = _with_queued(pool)
    pool.do(m.JobHoldAsked(JobId("old"), ADA, held=False))
    pool.register("a")
    pool.wait(RULES.settle_seconds - 1)
    pool.heartbeat("a")
    pool.is_now(Queued, "old")
    pool.wait(1)
    pool.is_now(Placing, "old")


def test_a_job_that_is_cancelled_while_nobody_knows_whether_it_runs_is_not_over_yet() -> None:
    """It is when everybody has told, or its node has ended it."""
    pool = Pool("a", "b")
    pool.submit("old", held=True)
    pool = _with_queued(pool)
    pool.do(m.CancelAsked(JobId("old"), ADA))
    pool.is_now(Cancelling, "old")
    spec = JobSpec(HALF, ADA, image="x")
    pool.register("a", pool.report("a", S.RUNNING, JobId("old"), attempt=3, revision=4, spec=spec))
    assert [(node, str(order.key)) for node, order in pool.orders(CancelPart)] == [("a", "old/3")]
    pool.register("b")
    pool.is_now(Cancelling, "old")
    pool.says("a", S.ENDED, JobId("old"), ending=Ending(EndKind.CANCELLED))
    assert pool.ended("old") == Cancelled("ada@lab")


def test_a_restart_asks_about_an_order_that_was_never_answered() -> None:
    """Instead of saying it again: the node refuses it for ever, or tells."""
    pool = Pool("a", "b")
    pool.submit()
    (node,) = pool.where()
    pool.begin_anew()
    pool.register(node)
    assert [(to, type(order)) for to, order in pool.orders()] == [(node, Query)]
    pool.says(node, S.REFUSED, ending=Ending(EndKind.LOST, "never seen"))
    pool.register("b" if node == "a" else "a")
    assert [str(order.key) for _, order in pool.orders(Place)] == ["j1/2"]


def test_orders_are_said_again_with_the_new_epoch() -> None:
    """The nodes take no others any more."""
    pool = Pool("a")
    pool.running()
    pool.do(m.CancelAsked(J, ADA))
    pool.begin_anew(epoch=9)
    pool.register("a", pool.report("a", S.RUNNING))
    assert [order.epoch for _, order in pool.orders(CancelPart)] == [9]


def test_a_job_that_waits_for_one_that_may_still_be_told_of_is_not_refused_for_good() -> None:
    """Whether that one exists is known once all nodes have told what they have."""
    pool = Pool("a")
    pool.begin_anew(epoch=2)
    after = (After(JobId("other"), AfterKind.OK),)
    with pytest.raises(Unavailable):
        pool.submit("late", after=after)
    pool.register("a")
    with pytest.raises(NotFound):
        pool.submit("late", after=after)


def test_a_job_kept_by_a_node_does_not_wait_for_somebody_elses() -> None:
    """When the coordinator forgot both, the awaited one comes back first; whose it is counts then too."""
    pool = Pool("a", "b")
    pool.running("j1")
    pool.begin_anew(epoch=2)
    pool.submit("j2", after=(After(JobId("j1"), AfterKind.ANY),), owner=BOB, old=True)
    pool.register("a", pool.report("a", S.RUNNING, JobId("j1")))
    pool.register("b")
    pool.wait(1.0)
    assert not pool.job("j2").awaits


def test_a_node_that_has_seen_a_higher_epoch_makes_us_recover_and_go_above_it() -> None:
    """And every node is to hear of it before it counts as having reported."""
    pool = Pool("a", "b")
    step = pool.register("a", seen_epoch=7)
    assert step.epoch == pool.state.epoch == 8
    assert pool.state.recovering_since == pool.now
    assert pool.state.missing() == ("a", "b")
    pool.do(m.AttemptReported(B, StaleEpoch(pool.report("b", S.RUNNING).key, 11)))
    assert pool.state.epoch == 12


def test_a_node_that_was_led_with_our_epoch_by_another_one_makes_us_recover_and_go_above_it() -> None:
    """An old copy counts on from an old epoch; who was led by us may come back as often as it likes."""
    pool = Pool("a", "b")
    assert pool.register("a", seen_epoch=1).epoch is None
    assert pool.state.settled
    pool.begin_anew(epoch=2)
    assert pool.register("b", seen_epoch=1).epoch is None
    assert pool.register("a", seen_epoch=2).epoch == 3
    assert pool.state.recovering_since == pool.now


def test_an_old_copy_places_nothing_old_before_each_member_reported_or_was_waived() -> None:
    """However long that takes; a word for a silent one is enough."""
    pool = Pool("a", "b")
    pool.submit("old", held=True)
    pool = _with_queued(pool)
    pool.begin_anew(from_copy=True, epoch=3)
    pool.do(m.JobHoldAsked(JobId("old"), ADA, held=False))
    pool.register("a")
    pool.wait(1e6)
    pool.register("a")
    pool.is_now(Queued, "old")
    pool.do(m.NodeForgotten(B, ROOT, only_waive=True))
    pool.is_now(Placing, "old")
    assert pool.state.members[B].forgotten_at is None


def test_a_recovery_lasts_a_while_for_members_that_are_not_remembered_either() -> None:
    """They joined after the copy was made, and come by themselves."""
    pool = Pool("a")
    pool.submit("old", held=True)
    pool = _with_queued(pool)
    pool.begin_anew(from_copy=True, epoch=3)
    pool.do(m.JobHoldAsked(JobId("old"), ADA, held=False))
    pool.register("a")
    pool.is_now(Queued, "old")
    pool.wait(RULES.recover_seconds)
    pool.heartbeat("a")
    pool.is_now(Placing, "old")


def test_attempts_that_we_do_not_know_are_taken_over_with_their_jobs() -> None:
    """From what their node tells; its next attempt will have another number."""
    spec = JobSpec(HALF, ADA, image="x")
    pool = Pool("a")
    pool.ask_all()
    pool.register("a", pool.report("a", S.RUNNING, attempt=4, revision=9, spec=spec))
    pool.is_now(Running)
    assert (pool.job().attempts, pool.where(), pool.job().project) == (4, ["a"], "ada")
    assert pool.submit().job == pool.job()
    pool.says("a", S.ENDED, ending=exited(0))
    pool.wait(RULES.recover_seconds)
    assert pool.ended() == Succeeded()


def test_a_job_that_is_over_is_learned_too_and_not_run_again() -> None:
    """When it comes once more out of an outbox."""
    spec = JobSpec(HALF, ADA, image="x")
    pool = Pool("a")
    pool.ask_all()
    pool.register("a", pool.report("a", S.ENDED, revision=9, ending=exited(0), spec=spec))
    pool.wait(RULES.recover_seconds)
    assert pool.ended() == Succeeded()
    assert pool.submit(old=True).job == pool.job()


@pytest.mark.parametrize(("joined_seconds", "asked_seconds"), [(-1000.0, -500.0), (-300.0, -300.0)])
def test_a_job_that_is_learned_keeps_the_times_of_its_node(
    joined_seconds: float, asked_seconds: float
) -> None:
    """On the pool's clock. Nobody knows when it was submitted: not after it began; it is no older for that."""
    spec = JobSpec(HALF, ADA, image="x")
    pool = Pool("a")
    member = pool.state.members[A]
    pool.state.members = pool.state.members.put(A, replace(member, enrolled_at=pool.now + joined_seconds))
    pool.ask_all()
    pool.do(m.PoolDayTimeSet(60.0))
    day = pool.now + 60.0
    report = pool.report("a", S.ENDED, revision=9, ending=exited(0), spec=spec)
    pool.register("a", replace(report, started_at=day - 500.0, ended_at=day - 200.0))
    pool.wait(RULES.recover_seconds)
    (part,) = pool.job().parts
    assert (pool.job().asked_at, part.started_at, part.ended_at) == (
        START + asked_seconds,
        START + asked_seconds,
        START - 200.0,
    )
    assert pool.job().submitted_at == START


def test_a_job_that_comes_again_after_a_loss_of_memory_gets_no_number_that_was_used() -> None:
    """Its node has a tombstone for that one."""
    pool = Pool("a", "b")
    pool.begin_anew(from_copy=True, epoch=3)
    pool.register("a", pool.report("a", S.REFUSED, attempt=6, revision=9, ending=Ending(EndKind.LOST)))
    pool.submit(old=True)
    pool.is_now(Queued)
    pool.register("b")
    pool.wait(RULES.recover_seconds)
    pool.register("a")
    pool.register("b")
    assert pool.job().attempts == 7


def test_a_node_that_was_forgotten_and_registers_is_a_member_again() -> None:
    """It is evidently not off."""
    pool = Pool("a")
    pool.do(m.NodeForgotten(A, ROOT))
    pool.submit()
    pool.is_now(Queued)
    step = pool.register("a")
    assert [one.forgotten_at for one in step.members] == [None]
    pool.is_now(Placing)


def test_what_is_known_of_a_node_is_said_in_a_word() -> None:
    """And nothing is decided by it but where new work goes."""
    pool = Pool("a")
    words = []
    for seconds in (0.0, 16.0, 15.0):
        pool.wait(seconds)
        words.append(presence(pool.state.members[A], pool.state, pool.now))
    pool.submit()
    pool.is_now(Queued)
    pool.heartbeat("a")
    pool.is_now(Placing)
    pool.do(m.NodeDrainAsked(A, ROOT, "fan"))
    words.append(presence(pool.state.members[A], pool.state, pool.now))
    pool.begin_anew()
    words.append(presence(pool.state.members[A], pool.state, pool.now))
    assert words == [
        Presence.READY,
        Presence.SUSPECT,
        Presence.UNKNOWN,
        Presence.DRAINED,
        Presence.NEVER,
    ]
