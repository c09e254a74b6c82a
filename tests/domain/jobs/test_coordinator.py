"""What becomes of a job: from its submission to its end, over retries, refusals, cancels and lost nodes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    HERE,
    After,
    AfterKind,
    AttemptState,
    Cancelled,
    Cancelling,
    Ending,
    EndKind,
    JobFailed,
    NodeName,
    Owner,
    Placing,
    Queued,
    Running,
    Succeeded,
)
from gpushared.domain.jobs.protocol import CancelPart, GiveBack, Place
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.jobs.job_reasons import why
from gpushared.jobs.job_views import notices_of
from tests.domain.jobs.pool_world import ADA, BOB, HALF, ROOT, RULES, WHOLE, J, Pool, exited, held

S = AttemptState


def test_a_job_is_placed_at_once_where_there_is_room_and_written_before_it_is_said() -> None:
    """The step that says it holds the attempt that is to be written."""
    pool = Pool("a")
    pool.submit()
    ((node, order),) = pool.orders()
    assert (node, type(order), str(order.key)) == ("a", Place, "j1/1")
    (written,) = pool.step.jobs
    assert isinstance(written.state, Placing)
    assert pool.told() == ["submitted by ada@lab", "attempt 1 goes to node a"]


def test_what_its_node_says_again_anyhow_is_shown_and_not_written() -> None:
    """Only its begin and its end are."""
    pool = Pool("a")
    pool.submit()
    for state, written in [(S.PREPARING, False), (S.RESERVED, False), (S.RUNNING, True), (S.PAUSED, False)]:
        step = pool.says("a", state)
        assert bool(step.jobs) == written
        assert bool(step.shown) != written
    pool.is_now(Running)


ENDS: dict[str, tuple[dict[str, Any], Ending, object]] = {
    "it exits with 0: it succeeded": ({}, exited(0), Succeeded()),
    "it exits with 3: it failed, with that code": ({}, exited(3), JobFailed("exit code 3", 3)),
    "it could not be created: it failed, with the reason and what helps": (
        {},
        Ending(EndKind.FAILED, "no such path /data", hint="make it"),
        JobFailed("no such path /data", None, "make it"),
    ),
    "its time is over: it failed": (
        {"retries": 0},
        Ending(EndKind.EXPIRED),
        JobFailed("its time limit was reached"),
    ),
    "somebody stopped it on its node: it was cancelled": (
        {"retries": 5},
        Ending(EndKind.STOPPED, "root stopped it"),
        Cancelled(reason="root stopped it"),
    ),
    "its node went down, and it is not to be run again: it failed": (
        {"requeue": False},
        Ending(EndKind.LOST, "the node went down"),
        JobFailed("the node went down"),
    ),
    "its node went down, and somebody was attached to it: it failed": (
        {"interactive": True, "image": ""},
        Ending(EndKind.LOST, "the node went down"),
        JobFailed("the node went down"),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_attempt_that_ends_is_the_end_of_its_job_where(name: str) -> None:
    """And that is written, with the part that its logs are found by."""
    spec, ending, outcome = ENDS[name]
    pool = Pool("a")
    pool.running(**spec)
    pool.says("a", S.ENDED, ending=ending)
    assert pool.ended() == outcome
    assert pool.where() == ["a"]
    assert J not in pool.state.jobs


def test_what_its_node_ended_reads_of_the_cause_and_not_of_a_person() -> None:
    pool = Pool("a")
    pool.running()
    pool.says("a", S.ENDED, ending=Ending(EndKind.STOPPED, "it did nothing on its GPUs for 25s"))
    over = why(pool.job(), pool.state, pool.now)
    assert over is not None
    assert over.sentence == "ended: it did nothing on its GPUs for 25s"


AGAIN: dict[str, tuple[dict[str, Any], Ending, int, float]] = {
    "it failed and may be retried: later, and that counts": ({"retries": 2}, exited(1), 1, 5.0),
    "its node went down: at once, and that does not count": ({}, Ending(EndKind.LOST), 0, 0.0),
    "its GPU failed: at once, and the first time does not count": (
        {},
        Ending(EndKind.LOST, "GPU 0 fell off the bus", passing=True),
        0,
        0.0,
    ),
    "it gave way: at once": ({}, Ending(EndKind.PREEMPTED), 0, 0.0),
    "its node heard nothing for too long: at once": ({}, Ending(EndKind.FENCED), 0, 0.0),
}


@pytest.mark.parametrize("name", AGAIN)
def test_an_attempt_that_ends_is_followed_by_another_where(name: str) -> None:
    """With a new number, which is never used for another one."""
    spec, ending, failures, wait = AGAIN[name]
    pool = Pool("a")
    pool.running(**spec)
    pool.says("a", S.ENDED, ending=ending)
    if wait:
        assert pool.is_now(Queued).not_before == pool.now + wait
        assert pool.step.look_again_at == pool.now + wait
        pool.wait(wait)
    ((_, order),) = pool.orders(Place)
    assert str(order.key) == "j1/2"
    assert pool.job().failures == failures


def test_a_job_is_retried_later_each_time_and_not_for_ever() -> None:
    """The limit is what it was submitted with."""
    pool = Pool("a")
    pool.running(retries=2)
    for wait in (5.0, 10.0):
        pool.says("a", S.ENDED, ending=exited(1))
        assert pool.is_now(Queued).not_before == pool.now + wait
        pool.wait(wait)
        pool.says("a", S.RUNNING)
    pool.says("a", S.ENDED, ending=exited(1))
    assert pool.ended() == JobFailed("exit code 1", 1)


def test_a_job_under_which_a_second_gpu_fails_has_failed() -> None:
    """Its program may be the cause, and would put one GPU after the other out of use."""
    pool = Pool("a")
    pool.running()
    fell = Ending(EndKind.LOST, "GPU 0 fell off the bus", hint="reset it", passing=True)
    pool.says("a", S.ENDED, ending=fell)
    pool.says("a", S.RUNNING)
    pool.says("a", S.ENDED, ending=fell)
    assert pool.ended() == JobFailed(
        "GPU 0 fell off the bus; another GPU had failed under the job before", hint="reset it"
    )


# --- what comes late -----------------------------------------------------------------------------------


def test_reports_count_only_for_their_attempt_their_node_and_when_they_are_newer() -> None:
    """Whatever the network does with them."""
    pool = Pool("a", "b")
    pool.running()
    old = [
        ("b", pool.report("b", S.ENDED, ending=exited(0))),
        ("a", pool.report("a", S.ENDED, ending=exited(0), attempt=7)),
        ("a", pool.report("a", S.RESERVED, revision=1)),
    ]
    before = pool.job()
    for node, report in old[:1] + old[2:]:
        pool.do(m.AttemptReported(NodeName(node), report))
        assert pool.job() == before


def test_an_attempt_that_is_not_its_jobs_any_more_is_ended() -> None:
    """Where its node comes back with it after somebody said that it was off."""
    pool = Pool("a", "b")
    node = pool.running()
    other = "b" if node == "a" else "a"
    pool.do(m.NodeForgotten(NodeName(node), ROOT))
    assert pool.where() == [other]
    stray = pool.report(node, S.RUNNING, attempt=1, revision=2)
    pool.register(node, stray)
    ((told, order),) = pool.orders(CancelPart)
    assert (told, str(order.key)) == (node, "j1/1")
    assert pool.where() == [other]


def test_what_a_node_says_before_its_registration_is_not_heard() -> None:
    """It will say it again."""
    pool = Pool("a")
    pool.submit()
    pool.do(m.NodeDisconnected(NodeName("a")))
    pool.says("a", S.RUNNING)
    pool.is_now(Placing)
    pool.register("a", pool.report("a", S.RUNNING))
    pool.is_now(Running)


def test_an_order_without_an_answer_is_said_again() -> None:
    """To a node that is there; one that is not hears it when it is back."""
    pool = Pool("a")
    pool.submit()
    (first,) = pool.orders()
    pool.wait(RULES.resend_seconds)
    assert pool.orders() == [first]
    pool.do(m.NodeDisconnected(NodeName("a")))
    pool.wait(RULES.resend_seconds)
    assert pool.orders() == []
    pool.register("a")
    assert pool.orders() == [first]
    pool.says("a", S.PREPARING)
    pool.wait(RULES.resend_seconds)
    assert pool.orders() == []


@pytest.mark.parametrize(
    ("kept_seconds", "asked_before"), [(0.2, 0.0), (90.0, 90.0), (1000.0, 600.0), (1e11, 600.0)]
)
def test_a_job_that_its_node_kept_was_asked_for_then_and_is_no_older_for_it(
    kept_seconds: float, asked_before: float
) -> None:
    """A node tells of no time before it joined; places in the queue go by when jobs came here."""
    pool = Pool("a")
    pool.wait(600.0)
    pool.submit("first", WHOLE)
    pool.submit("kept", WHOLE, BOB, origin=NodeName("a"), kept_seconds=kept_seconds)
    job = pool.job("kept")
    assert (job.asked_at, job.submitted_at) == (pool.now - asked_before, pool.now)
    assert job.sequence > pool.job("first").sequence
    assert pool.is_now(Queued, "kept").since == pool.now
    story = [(entry.at, entry.text) for entry in job.story]
    kept = [(pool.now, "node a had kept it until now")] if asked_before else []
    assert story == [(job.asked_at, "submitted by bob@lab through node a"), *kept]


# --- refusals ------------------------------------------------------------------------------------------


def test_a_node_without_room_is_asked_again_later_and_later() -> None:
    """And the job keeps its place in the queue."""
    pool = Pool("a")
    pool.submit()
    waits = []
    for _ in range(4):
        pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM, "all is taken"))
        waits.append(pool.is_now(Queued).not_before - pool.now)
        pool.wait(waits[-1])
        pool.is_now(Placing)
    assert all(0.5 * 2**at * 0.5 <= wait <= 0.5 * 2**at * 1.5 for at, wait in enumerate(waits))


def test_a_node_that_refuses_three_times_in_a_row_is_tried_last_for_a_while() -> None:
    """Until it takes one, or a minute is over."""
    pool = Pool("a", "b")
    pool.submit(target=NodeName("a"))
    for _ in range(3):
        pool.wait(5.0)
        pool.heartbeat("a")
        pool.heartbeat("b")
        pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM))
    pool.submit("j2")
    assert pool.where("j2") == ["b"]
    pool.submit("j3", WHOLE)
    assert pool.where("j3") == ["a"]
    pool.says("a", S.RUNNING, JobId("j3"))
    pool.says("a", S.ENDED, JobId("j3"), ending=exited(0))
    assert not pool.state.resting


def test_a_node_that_goes_on_refusing_is_tried_last_for_longer_and_longer_and_that_is_said() -> None:
    """It says that there is room, and nobody else knows; but others' jobs go elsewhere."""
    pool = Pool("a", "b")
    pool.submit(target=NodeName("a"))
    rests = []
    for _ in range(9):
        pool.wait(60.0)
        pool.heartbeat("a")
        pool.heartbeat("b")
        pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM))
        rest = pool.state.resting.get(NodeName("a"))
        rests.append(0 if rest is None else round(rest.until - pool.now))
    assert rests == [0, 0, 60, 120, 240, 480, 960, 960, 960]
    (notice,) = notices_of(pool.state, pool.now)
    assert notice == "a refused 9 jobs in a row that it was said to have room for; for 16m it is tried last"
    assert notices_of(pool.state, pool.now + 960) == []


def test_two_names_of_one_person_share_what_one_may_have_in_the_queue() -> None:
    pool = Pool("a", rules=replace(RULES, max_queued_per_person=2))
    pool.submit("1", held=True)
    pool.submit("2", held=True, owner=Owner("adal@ws3", "ada"))
    with pytest.raises(LimitReached, match="2 jobs of ada wait already"):
        pool.submit("3", held=True, owner=Owner("adal@ws3", "ada"))
    pool.submit("4", held=True, owner=BOB)


def test_what_one_persons_waiting_jobs_take_is_bounded_and_counted_off_when_they_go() -> None:
    pool = Pool("a", rules=replace(RULES, max_queued_bytes_per_person=1002))
    pool.submit("1", held=True, body="x" * 600)
    with pytest.raises(LimitReached, match="jobs of ada that wait take"):
        pool.submit("2", held=True, body="x" * 401)
    with pytest.raises(LimitReached, match="jobs of ada that wait take"):
        pool.submit("2", held=True, request=replace(HALF, models=("H100" * 50,) * 3))
    pool.submit("2", held=True, body="x" * 400)
    pool.submit("3", held=True, owner=BOB, body="x" * 1000)
    pool.do(m.CancelAsked(JobId("1"), ADA))
    pool.submit("4", held=True, body="x" * 600)


def test_what_the_users_of_a_realm_have_is_bounded_however_many_they_are_and_with_what_runs() -> None:
    """Who speaks for a realm can invent them."""
    pool = Pool("a", rules=replace(RULES, max_queued_per_realm=2, max_queued_bytes_per_realm=1000))
    pool.submit("1", owner=Owner("x1@eve", "x1@eve"))
    pool.says("a", AttemptState.RUNNING, JobId("1"))
    pool.submit("2", held=True, owner=Owner("x2@eve", "x2@eve"), body="x" * 700)
    with pytest.raises(LimitReached, match="2 jobs of users of eve wait or run already"):
        pool.submit("3", owner=Owner("x3@eve", "x3@eve"))
    pool.submit("3", owner=ADA)
    pool.says("a", AttemptState.ENDED, JobId("1"), ending=exited(0))
    with pytest.raises(LimitReached, match="the jobs of users of eve take"):
        pool.submit("4", owner=Owner("x3@eve", "x3@eve"), body="x" * 300)
    pool.begin_anew()
    with pytest.raises(LimitReached, match="the jobs of users of eve take"):
        pool.submit("4", owner=Owner("x3@eve", "x3@eve"), body="x" * 300)
    assert pool.state.spec_bytes == sum(job.spec.size_bytes for job in pool.state.jobs.values())


def test_of_the_jobs_that_are_over_so_much_is_remembered_and_no_more() -> None:
    """Who submits and cancels without end fills no memory."""
    pool = Pool(rules=replace(RULES, ended_bytes_kept=1000))
    for number in range(9):
        pool.submit(f"{number}", body="x" * 300)
        pool.do(m.CancelAsked(JobId(f"{number}"), ADA))
    assert sorted(pool.state.ended) == ["6", "7", "8"]
    pool.begin_anew()
    assert sorted(pool.state.ended) == ["6", "7", "8"]
    pool.submit("9", body="x" * 300)
    pool.do(m.CancelAsked(JobId("9"), ADA))
    assert sorted(pool.state.ended) == ["7", "8", "9"]


@pytest.mark.parametrize("full", ["count", "bytes"])
def test_as_full_as_a_pool_may_be_a_realm_that_has_little_in_it_is_let_in(full: str) -> None:
    rules = replace(RULES, max_queued=400) if full == "count" else replace(RULES, max_queued_bytes=2000)
    pool = Pool(rules=rules)
    body = "x" * 6 if full == "bytes" else ""
    for number in range(400 if full == "count" else 285):
        pool.submit(f"e{number}", owner=Owner("x@eve", "x@eve"), body=body)
    with pytest.raises(LimitReached, match="wait or run"):
        pool.submit("no", owner=Owner("x@eve", "x@eve"), body=body)
    pool.submit("1", body=body)
    if full == "count":
        pool.submit("2")
    with pytest.raises(LimitReached, match="wait or run"):
        pool.submit("3", body=body)


def test_a_node_that_will_not_have_a_job_is_not_asked_again_for_it() -> None:
    """Another one is; when none is left that was it, with what each said."""
    pool = Pool("a", "b")
    pool.submit()
    (first,) = pool.where()
    pool.says(first, S.REFUSED, ending=Ending(EndKind.FAILED, f"no account on {first}", hint="make one"))
    (second,) = pool.where()
    assert second != first
    pool.says(second, S.REFUSED, ending=Ending(EndKind.FAILED, "no account", hint="make one"))
    sentences = (
        f"node {first} will not have it: no account on {first}; node {second} will not have it: no account"
    )
    assert pool.ended() == JobFailed(sentences, hint="make one")


def test_a_job_that_will_not_wait_ends_when_there_is_no_room_after_all() -> None:
    """With what its node said."""
    pool = Pool("a")
    pool.submit(immediate=True)
    pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM, "all is taken"))
    assert "no room for it at once: all is taken" in pool.ended().reason


# --- cancels -------------------------------------------------------------------------------------------


def test_a_cancelled_job_that_waits_is_over_at_once() -> None:
    """Nobody need be asked."""
    pool = Pool()
    pool.submit()
    pool.do(m.CancelAsked(J, ADA))
    assert pool.ended() == Cancelled("ada@lab")


@pytest.mark.parametrize("state", [None, S.PREPARING, S.RESERVED, S.RUNNING, S.PAUSED])
def test_a_cancelled_attempt_is_over_when_its_node_says_so(state: AttemptState | None) -> None:
    """Not before: it might run on."""
    pool = Pool("a")
    pool.submit()
    if state is not None:
        pool.says("a", state)
    pool.do(m.CancelAsked(J, ADA, grace_seconds=3))
    ((_, order),) = pool.orders()
    assert isinstance(order, CancelPart)
    assert (order.grace_seconds, order.by) == (3, "ada@lab")
    pool.is_now(Cancelling)
    pool.says("a", S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.ended() == Cancelled("ada@lab")


@pytest.mark.parametrize(("here", "words"), [(True, "somebody else's job"), (False, "")])
def test_names_are_taken_where_containers_would_meet(here: bool, words: str) -> None:
    """On one node for everybody; in a pool, where few meet on a node, for each person."""
    pool = Pool(rules=replace(RULES, here=here))
    pool.submit("j1", name="x")
    with pytest.raises(StateConflict, match="job j1"):
        pool.submit("j2", name="x")
    if words:
        with pytest.raises(StateConflict, match=words):
            pool.submit("j3", name="x", owner=BOB)
    else:
        pool.submit("j3", name="x", owner=BOB)


def test_an_interactive_job_may_have_a_name_that_is_taken_which_its_engine_judges() -> None:
    pool = Pool()
    pool.submit("j1", name="x", interactive=True)
    pool.submit("j2", name="x", interactive=True)
    with pytest.raises(StateConflict, match="job j"):
        pool.submit("j3", name="x")


def test_a_name_is_taken_also_after_a_restart_and_free_once_its_job_is_over() -> None:
    pool = Pool()
    pool.submit("j1", name="x")
    pool.begin_anew()
    with pytest.raises(StateConflict, match="job j1"):
        pool.submit("j2", name="x")
    pool.do(m.CancelAsked(JobId("j1"), ADA))
    pool.wait(1000.0)
    pool.submit("j2", name="x")


def test_what_was_taken_once_is_not_refused_for_its_name_by_a_coordinator_that_forgot_it() -> None:
    """It may run; and jobs of the version before may have one name."""
    pool = Pool()
    for job in ("j1", "j2"):
        pool.submit(job, name="x", old=True)
    assert {"j1", "j2"} <= set(pool.state.jobs)


def test_an_interactive_job_whose_client_is_gone_leaves_the_queue() -> None:
    pool = Pool()
    pool.submit(interactive=True)
    pool.do(m.ClientGone(J, ADA))
    assert pool.ended() == Cancelled("the end of its client")


@pytest.mark.parametrize("state", [None, S.PREPARING, S.RESERVED, S.RUNNING, S.PAUSED])
def test_the_place_of_a_client_that_is_gone_is_given_back_where_no_container_is_known(
    state: AttemptState | None,
) -> None:
    """Its node decides, because it alone knows whether the container came first."""
    pool = Pool("a")
    pool.submit(interactive=True)
    if state is not None:
        pool.says("a", state)
    for _ in range(2):
        pool.do(m.ClientGone(J, ADA))
        expected = [("a", GiveBack(AttemptKey(J, 1), 1))] if state not in {S.RUNNING, S.PAUSED} else []
        assert pool.orders() == expected
    if expected:
        pool.says("a", S.ENDED, ending=Ending(EndKind.CANCELLED, "it was given back"))
        assert isinstance(pool.ended(), Cancelled)


def test_a_place_that_was_given_back_before_its_node_saw_it_is_given_back_once_more() -> None:
    """The order to take it was lost, so that its node refuses it; the end of the client is said again."""
    pool = Pool("a")
    pool.submit(interactive=True)
    pool.do(m.ClientGone(J, ADA))
    pool.says("a", S.REFUSED, ending=Ending(EndKind.CANCELLED, "it was cancelled before the node saw it"))
    pool.says("a", S.RESERVED)
    pool.do(m.ClientGone(J, ADA))
    assert pool.orders() == [("a", GiveBack(AttemptKey(J, 2), 1))]


def test_nobodys_client_is_called_gone_by_others_nor_that_of_a_job_that_needs_none() -> None:
    pool = Pool()
    pool.submit(interactive=True)
    with pytest.raises(NotFound):
        pool.do(m.ClientGone(J, BOB))
    pool.submit("j2")
    pool.do(m.ClientGone(JobId("j2"), ADA))
    pool.is_now(Queued, "j2")


def test_an_interactive_job_has_no_place_while_the_node_of_its_client_is_silent() -> None:
    """Nobody could use it before its minute is over."""
    pool = Pool("a", "b")
    pool.heartbeat("a", holdings=(held("a", 0),))
    pool.heartbeat("b", holdings=(held("b", 0),))
    pool.submit(interactive=True, origin=NodeName("b"))
    pool.now += 120
    pool.heartbeat("a", holdings=())
    pool.is_now(Queued)
    reason = why(pool.job(), pool.state, pool.now)
    assert reason is not None
    assert "its client waits on node b" in reason.sentence
    pool.heartbeat("b")
    pool.wait(1.0)
    pool.is_now(Placing)


def test_a_job_that_was_done_before_its_cancel_came_succeeded() -> None:
    """What happened counts."""
    pool = Pool("a")
    pool.running()
    pool.do(m.CancelAsked(J, ADA))
    pool.says("a", S.ENDED, ending=exited(0))
    assert pool.ended() == Succeeded()


def test_only_its_owner_and_administrators_may_change_a_job() -> None:
    """For others there is no such job; nothing tells whose it is."""
    pool = Pool()
    pool.submit()
    asks: list[m.CancelAsked | m.JobHoldAsked | m.JobPriorityAsked] = [
        m.CancelAsked(J, BOB),
        m.JobHoldAsked(J, BOB, held=True),
        m.JobPriorityAsked(J, BOB, 5),
    ]
    for event in asks:
        with pytest.raises(NotFound) as foreign:
            pool.do(event)
        with pytest.raises(NotFound) as none:
            pool.do(replace(event, job=JobId("j7")))
        assert str(foreign.value) == str(none.value).replace("j7", str(J))
    pool.do(m.CancelAsked(J, ROOT))
    assert pool.ended() == Cancelled("root@lab")


def test_a_cancelled_job_is_cancelled_once() -> None:
    """Whoever asks again is told how it stands."""
    pool = Pool()
    pool.submit()
    pool.do(m.CancelAsked(J, ADA))
    over = pool.job()
    assert pool.do(m.CancelAsked(J, ADA)).job == over


# --- asking --------------------------------------------------------------------------------------------


def test_asking_twice_makes_one_job() -> None:
    pool = Pool()
    pool.submit("j1")
    assert pool.submit("j1").job == pool.job("j1")
    assert set(pool.state.jobs) == {"j1"}


WRONG: dict[str, tuple[dict[str, Any], type[GpushareError]]] = {
    "an unknown node": ({"target": NodeName("zoo")}, NotFound),
    "an unknown job to wait for": ({"after": (After(JobId("nope")),)}, NotFound),
    "a gang on one node": ({"nodes": 2, "target": NodeName("a")}, RequestError),
    "no nodes at all": ({"nodes": 0}, RequestError),
    "an interactive gang": ({"nodes": 2, "interactive": True}, RequestError),
    "a project that is not there": ({"request": replace(HALF, project="nope")}, RequestError),
    "a priority beyond all": ({"priority": 1000}, RequestError),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_never_be_is_refused_with_words_for(name: str) -> None:
    """And changes nothing."""
    pool = Pool("a")
    spec, error = WRONG[name]
    before = pool.state
    with pytest.raises(error) as refused:
        pool.submit(**spec)
    assert refused.value.message
    assert pool.state is before
    assert not pool.state.jobs


def test_nobody_fills_the_queue_alone() -> None:
    """There is a bound for each person, and one for all."""
    pool = Pool(rules=replace(RULES, max_queued_per_person=2, max_queued=3))
    pool.submit("j1")
    pool.submit("j2")
    with pytest.raises(LimitReached, match="of ada"):
        pool.submit("j3")
    pool.submit("j3", owner=BOB)
    with pytest.raises(LimitReached, match="3 jobs"):
        pool.submit("j4", owner=BOB)


def test_a_held_job_waits_until_it_is_let_go() -> None:
    """By its owner, or before it was even taken."""
    pool = Pool("a")
    pool.submit(held=True)
    pool.is_now(Queued)
    pool.do(m.JobHoldAsked(J, ADA, held=False))
    pool.is_now(Placing)
    assert "let go by ada@lab" in pool.told()


def test_a_job_that_has_left_the_queue_for_a_node_is_not_held_and_it_is_said_where_it_is() -> None:
    pool = Pool("a")
    pool.submit()
    for ask in (m.JobHoldAsked(J, ADA, held=True), m.JobPriorityAsked(J, ADA, 5)):
        with pytest.raises(StateConflict, match="job j1 has left the queue for node a") as refused:
            pool.do(ask)
        assert "gpushare cancel j1, and gpushare submit --hold" in refused.value.hint


def test_the_higher_priority_goes_first_in_a_project() -> None:
    """Set when it is submitted, or later."""
    pool = Pool("a")
    pool.running("j0", request=WHOLE)
    pool.submit("j1", WHOLE)
    pool.submit("j2", WHOLE, priority=5)
    pool.submit("j3", WHOLE)
    pool.do(m.JobPriorityAsked(JobId("j3"), ADA, 9))
    order = []
    for name in ("j0", "j3", "j2"):
        pool.says("a", S.RUNNING, JobId(name))
        pool.says("a", S.ENDED, JobId(name), ending=exited(0))
        order += [one for one in ("j1", "j2", "j3") if isinstance(pool.job(one).state, Placing)]
    assert order == ["j3", "j2", "j1"]


# --- dependencies --------------------------------------------------------------------------------------


DEPENDENCIES = [
    ("any end will do, and it failed", AfterKind.ANY, exited(1), Placing),
    ("it must succeed, and it did", AfterKind.OK, exited(0), Placing),
]


@pytest.mark.parametrize(("name", "kind", "ending", "state"), DEPENDENCIES, ids=[d[0] for d in DEPENDENCIES])
def test_a_job_waits_for_others(name: str, kind: AfterKind, ending: Ending, state: type[Placing]) -> None:
    """Until all of them are over."""
    pool = Pool("a")
    pool.running("j1")
    pool.submit("j2", after=(After(JobId("j1"), kind),))
    pool.is_now(Queued, "j2")
    pool.says("a", S.ENDED, JobId("j1"), ending=ending)
    pool.wait()
    assert isinstance(pool.job("j2").state, state), name


AWAITED = 60


def _waiting_for_many() -> Pool:
    """One job of many that ``last`` waits for is over."""
    pool = Pool("a", gpus=AWAITED)
    names = [JobId(f"part{at}") for at in range(AWAITED)]
    for name in names:
        pool.running(name)
    pool.submit("last", after=tuple(After(name, AfterKind.OK) for name in names))
    _ends(pool, 0)
    return pool


def _ends(pool: Pool, at: int) -> int:
    """Let one of the awaited jobs end; return how often ``last`` was written."""
    steps = pool.says("a", S.ENDED, JobId(f"part{at}"), ending=exited(0)), pool.wait(0.1)
    return sum(job.id == "last" for step in steps for job in step.jobs)


def test_the_story_of_a_job_that_waits_for_many_has_one_line_of_their_ends() -> None:
    """The store is written to once too, and ``why`` says how many are left."""
    pool = _waiting_for_many()
    reason = why(pool.job("last"), pool.state, pool.now)
    assert reason is not None
    assert f"it waits for {AWAITED - 1} jobs" in reason.sentence
    writes = [_ends(pool, at) for at in range(1, AWAITED)]
    assert sum(writes[:-1]) == 0
    assert pool.told("last")[:2] == ["submitted by ada@lab", "what it waited for is over"]
    pool.is_now(Placing, "last")


def test_a_restart_finds_out_which_of_the_awaited_jobs_were_over() -> None:
    """The store does not have that."""
    pool = _waiting_for_many()
    written = tuple(After(JobId(f"part{at}"), AfterKind.OK) for at in range(AWAITED))
    last = replace(pool.job("last"), awaits=written)
    pool.state.jobs = pool.state.jobs.put(last.id, last)
    running = [pool.report("a", S.RUNNING, JobId(f"part{at}")) for at in range(1, AWAITED)]
    pool.begin_anew()
    pool.register("a", *running, gpus=AWAITED)
    pool.wait(1.0)
    assert len(pool.job("last").awaits) == AWAITED - 1
    for at in range(1, AWAITED):
        _ends(pool, at)
    pool.is_now(Placing, "last")


def test_a_job_whose_dependency_failed_fails_and_so_do_those_behind_it() -> None:
    """With a reason that names the job."""
    pool = Pool("a")
    pool.running("j1")
    pool.submit("j2", after=(After(JobId("j1"), AfterKind.OK),))
    pool.submit("j3", after=(After(JobId("j2"), AfterKind.OK),))
    pool.submit("j4", after=(After(JobId("j3"), AfterKind.ANY),))
    pool.says("a", S.ENDED, JobId("j1"), ending=exited(1))
    pool.wait(1.0)
    assert "job j1, which had to succeed before it, failed" in pool.ended("j2").reason
    assert "job j2, which had to succeed before it, failed" in pool.ended("j3").reason
    pool.is_now(Placing, "j4")


def test_a_job_of_somebody_else_is_waited_for_by_nobody() -> None:
    """Neither its existence nor its end is told, whether it is under way, over, or in the archive."""
    pool = Pool("a")
    pool.running("j1")
    after = (After(JobId("j1"), AfterKind.OK),)
    for past in ((), (pool.job("j1"),)):
        with pytest.raises(NotFound, match="there is no job"):
            pool.submit("j2", after=after, owner=BOB, past=past)
    pool.says("a", S.ENDED, JobId("j1"), ending=exited(1))
    with pytest.raises(NotFound, match="there is no job"):
        pool.submit("j2", after=after, owner=BOB)
    pool.submit("j3", after=after, owner=ROOT)
    assert "j1, which had to succeed" in pool.ended("j3").reason


def test_hundreds_of_jobs_that_waited_for_one_are_looked_at_a_part_at_a_time() -> None:
    """So that no step grows without bound."""
    pool = Pool("a")
    pool.running("j0")
    for at in range(250):
        pool.submit(f"d{at}", after=(After(JobId("j0"), AfterKind.OK),))
    pool.says("a", S.ENDED, JobId("j0"), ending=exited(1))
    assert len(pool.step.jobs) <= 101
    while pool.step.look_again_at <= pool.now + 1.0:
        pool.wait(0.01)
        assert len(pool.step.jobs) <= 100
    assert not pool.state.jobs


# --- nodes ---------------------------------------------------------------------------------------------


def test_a_silent_node_keeps_its_jobs_until_somebody_says_that_it_is_off() -> None:
    """Silence is no death; an administrator's word is."""
    pool = Pool("a", "b")
    node = pool.running()
    pool.do(m.NodeDisconnected(NodeName(node)))
    pool.wait(1e7)
    assert pool.where() == [node]
    pool.heartbeat("a")
    pool.heartbeat("b")
    pool.do(m.NodeForgotten(NodeName(node), ROOT))
    assert pool.where() != [node]
    assert f"root@lab said that node {node} is off" in pool.told()


def test_a_drained_node_gets_nothing_new_and_keeps_what_it_has() -> None:
    """Until it is undrained."""
    pool = Pool("a")
    pool.running("j1")
    pool.do(m.NodeDrainAsked(NodeName("a"), ROOT, "new fan"))
    pool.submit("j2")
    pool.is_now(Running, "j1")
    pool.is_now(Queued, "j2")
    pool.do(m.NodeDrainAsked(NodeName("a"), ROOT, None))
    pool.is_now(Placing, "j2")


def test_an_unknown_node_cannot_be_drained() -> None:
    with pytest.raises(NotFound, match="no node 'zoo'"):
        Pool().do(m.NodeDrainAsked(NodeName("zoo"), ROOT, "x"))


def test_beats_write_nothing() -> None:
    """However many there are."""
    pool = Pool("a")
    step = pool.heartbeat("a")
    assert (step.jobs, step.members, step.accounts, step.instructions) == ((), (), None, ())


def test_the_node_through_which_a_job_came_is_told_of_each_change_of_it() -> None:
    """So that its outbox can let go of it."""
    pool = Pool("a")
    pool.submit(origin=NodeName("a"))
    pool.says("a", S.RUNNING)
    pool.says("a", S.ENDED, ending=exited(0))
    assert m.TellOrigin(J) in pool.step.instructions


# --- a node's own jobs ---------------------------------------------------------------------------------


def test_in_a_nodes_own_job_store_everything_goes_into_the_nodes_queue_at_once() -> None:
    """Where it waits with everybody else, unless it is not to wait."""
    pool = Pool(rules=replace(RULES, here=True))
    pool.register("")
    pool.submit("j1", WHOLE)
    ((node, order),) = pool.orders()
    assert isinstance(order, Place)
    assert (node, order.wait, order.spec.request) == (HERE, True, WHOLE)
    pool.submit("j2", WHOLE, immediate=True)
    ((_, order),) = pool.orders()
    assert isinstance(order, Place)
    assert not order.wait
    pool.says("", S.REFUSED, JobId("j2"), ending=Ending(EndKind.FAILED, "no image"))
    assert pool.ended("j2") == JobFailed("no image")


@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSED])
def test_a_nodes_own_job_that_waits_again_gets_another_priority_and_one_that_runs_does_not(state: S) -> None:
    pool = Pool(rules=replace(RULES, here=True))
    pool.register("")
    pool.submit()
    pool.says("", S.RUNNING)
    pool.says("", state)
    with nullcontext() if state is S.PAUSED else pytest.raises(StateConflict, match="has left the queue"):
        pool.do(m.JobPriorityAsked(J, ADA, 5))
    assert pool.job().priority == (5 if state is S.PAUSED else 0)


def test_ownership_goes_by_person_and_not_by_principal() -> None:
    """Who comes through another node is still the same."""
    pool = Pool()
    pool.submit()
    pool.do(m.CancelAsked(J, Owner("ada@elsewhere", "ada")))
    assert pool.ended() == Cancelled("ada@elsewhere")
