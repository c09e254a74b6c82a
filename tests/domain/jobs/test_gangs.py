"""Jobs on several nodes at once: all of their parts start, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs import orders
from gpushared.domain.jobs.job import (
    AttemptState,
    Cancelled,
    Cancelling,
    Ending,
    EndKind,
    JobFailed,
    JobSpec,
    NodeName,
    Placing,
    Queued,
    Running,
    Succeeded,
    Then,
)
from gpushared.domain.jobs.job_commands import MAX_NODES
from gpushared.domain.jobs.protocol import CancelPart, Commit, Place
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Isolation, Request
from tests.domain.jobs.pool_world import ADA, RULES, WHOLE, J, Pool, exited

S = AttemptState
LOST = Ending(EndKind.LOST, "the node went down")


def _reserved(**spec: Any) -> Pool:
    pool = Pool("a", "b", "c")
    pool.submit(request=WHOLE, nodes=2, **spec)
    for node in pool.where():
        pool.says(node, S.RESERVED)
    return pool


def _running(**spec: Any) -> Pool:
    pool = _reserved(**spec)
    for node in pool.where():
        pool.says(node, S.RUNNING)
    pool.is_now(Running)
    return pool


def test_a_gang_is_reserved_on_different_nodes_in_the_order_of_their_names() -> None:
    """So that two gangs that want the same nodes meet on the first."""
    pool = Pool("c", "a", "b")
    pool.submit(request=WHOLE, nodes=3)
    orders = pool.orders(Place)
    assert [node for node, _ in orders] == ["a", "b", "c"]
    assert all(isinstance(order, Place) and order.gang for _, order in orders)
    assert [part.rank for part in pool.job().parts] == [0, 1, 2]


def _refuse_for_good(pool: Pool) -> None:
    """Its first node does so, and the others end their parts."""
    first, *others = pool.where()
    pool.says(first, S.REFUSED, ending=Ending(EndKind.FAILED, "no account"))
    for node in others:
        pool.says(node, S.REFUSED, ending=Ending(EndKind.CANCELLED))


@pytest.mark.parametrize("models", [(), ("A100",)])
def test_a_job_over_several_nodes_fails_once_those_left_have_too_few_gpus(models: tuple[str, ...]) -> None:
    """With as many as it asks for it goes to them; GPUs of other models do not count."""
    pool = Pool()
    for node in ("a", "b", "c", "d"):
        pool.do(m.NodeEnrolled(NodeName(node)))
        pool.register(node, model="A100")
    if models:
        pool.do(m.NodeEnrolled(NodeName("e")))
        pool.register("e", gpus=8)
    pool.submit(request=replace(WHOLE, gpu_count=3, models=models), span=True)
    _refuse_for_good(pool)
    pool.wait(60.0)
    for node in pool.state.members:
        pool.heartbeat(node)
    pool.is_now(Placing)
    _refuse_for_good(pool)
    assert pool.ended() == JobFailed(
        "node a will not have it: no account; node b will not have it: no account"
    )


def test_a_gang_starts_when_all_are_reserved_and_that_was_written() -> None:
    """Each is told of all the others."""
    pool = _reserved()
    (written,) = pool.step.jobs
    assert isinstance(written.state, Placing)
    assert written.state.committed
    orders = [order for _, order in pool.orders(Commit)]
    assert all(isinstance(order, Commit) for order in orders)
    gangs = [order.gang for order in orders if isinstance(order, Commit)]
    assert [gang.rank for gang in gangs] == [0, 1]
    assert {gang.hosts for gang in gangs} == {tuple(f"{node}.lab" for node in pool.where())}
    assert len({gang.port for gang in gangs}) == 1
    assert gangs[0].gpus == (1, 1)


def test_a_commit_is_said_again_until_its_node_says_that_it_runs() -> None:
    """To that one only."""
    pool = _reserved()
    first, second = pool.where()
    pool.says(first, S.RUNNING)
    pool.wait(RULES.resend_seconds)
    assert [node for node, _ in pool.orders()] == [second]
    pool.says(second, S.RUNNING)
    pool.is_now(Running)
    pool.wait(RULES.resend_seconds)
    assert pool.orders() == []


def test_a_gang_of_which_one_is_refused_is_taken_down_and_tried_again_later() -> None:
    """After all of its nodes have let go of it."""
    pool = Pool("a", "b")
    pool.submit(request=WHOLE, nodes=2)
    pool.says("a", S.RESERVED)
    pool.says("b", S.REFUSED, ending=Ending(EndKind.NO_ROOM, "all is taken"))
    assert [node for node, _ in pool.orders(CancelPart)] == ["a"]
    assert pool.is_now(Cancelling).then is Then.REQUEUE
    pool.says("a", S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.is_now(Queued).not_before > pool.now
    pool.wait(5.0)
    assert {str(order.key) for _, order in pool.orders(Place)} == {"j1/2"}


WONT = Ending(EndKind.FAILED, "ada@lab has no account on this node", hint="the node's admin names one")


def test_a_gang_that_one_node_will_not_have_goes_to_others() -> None:
    """Where there are enough."""
    pool = Pool("a", "b", "c")
    pool.submit(request=WHOLE, nodes=2)
    pool.says("a", S.REFUSED, ending=WONT)
    pool.says("b", S.ENDED, ending=Ending(EndKind.CANCELLED))
    pool.wait(5.0)
    assert pool.where() == ["b", "c"]


@pytest.mark.parametrize("retries", [0, 3])
def test_a_gang_that_too_few_nodes_will_have_fails_with_the_reason(retries: int) -> None:
    """Trying again would not help."""
    pool = Pool("a", "b")
    pool.submit(request=WHOLE, nodes=2, retries=retries)
    pool.says("a", S.REFUSED, ending=WONT)
    pool.says("b", S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.ended() == JobFailed(WONT.reason, hint=WONT.hint)


def test_gangs_that_meet_on_one_node_do_so_at_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """However their names fall: each begins to look at the same one here."""
    monkeypatch.setattr(orders, "crc32", lambda _: len(orders.PORTS) - 1)
    pool = Pool()
    for node in "ab":
        pool.do(m.NodeEnrolled(NodeName(node)))
        pool.register(node, gpus=2)
    for name in ("first", "second"):
        pool.submit(name, request=WHOLE, nodes=2)
    assert [pool.job(name).parts[0].node for name in ("first", "second")] == ["a", "a"]
    assert [pool.job(name).parts[0].port for name in ("first", "second")] == [
        orders.PORTS[-1],
        orders.PORTS[0],
    ]


def test_another_attempt_of_a_gang_meets_at_another_port() -> None:
    """Lest it meet whatever was there again."""
    pool = _running()
    before = pool.job().parts[0].port
    for node in pool.where():
        pool.says(node, S.ENDED, ending=LOST)
    assert pool.job().parts[0].port not in {0, before}


def test_a_reservation_that_ran_out_before_its_commit_came_takes_the_gang_down() -> None:
    """Also those that run already."""
    pool = _reserved()
    first, second = pool.where()
    pool.says(first, S.RUNNING)
    pool.says(second, S.ENDED, ending=Ending(EndKind.NO_ROOM, "its reservation ran out"))
    assert [node for node, _ in pool.orders(CancelPart)] == [first]
    pool.says(first, S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert not isinstance(pool.job().state, Cancelling)
    assert pool.job().failures == 0


ENDS: dict[str, tuple[dict[str, Any], Ending, object]] = {
    "one failed: it failed": ({}, exited(2), JobFailed("exit code 2", 2)),
    "one was lost, and it is not to be run again: it failed": (
        {"requeue": False},
        LOST,
        JobFailed("the node went down"),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_one_part_is_the_end_of_all_where(name: str) -> None:
    """The others are ended, and the reason is that of the first."""
    spec, ending, outcome = ENDS[name]
    pool = _running(**spec)
    first, second = pool.where()
    pool.says(second, S.ENDED, ending=ending)
    assert [node for node, _ in pool.orders(CancelPart)] == [first]
    pool.says(first, S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.ended() == outcome


def test_a_gang_that_lost_a_node_is_begun_anew_as_a_whole() -> None:
    """When the others have confirmed their end, not before."""
    pool = _running()
    first, second = pool.where()
    pool.says(first, S.ENDED, ending=LOST)
    assert pool.orders(Place) == []
    pool.says(second, S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert {str(order.key) for _, order in pool.orders(Place)} == {"j1/2"}


def test_a_gang_succeeded_when_all_of_it_did() -> None:
    """One that is ready before the others waits for them."""
    pool = _running()
    first, second = pool.where()
    pool.says(first, S.ENDED, ending=exited(0))
    pool.is_now(Running)
    pool.says(second, S.ENDED, ending=exited(0))
    assert pool.ended() == Succeeded()


def test_a_cancelled_gang_is_over_when_all_of_its_nodes_have_said_so() -> None:
    pool = _running()
    first, second = pool.where()
    pool.do(m.CancelAsked(J, ADA))
    pool.says(first, S.ENDED, ending=Ending(EndKind.CANCELLED))
    pool.is_now(Cancelling)
    pool.says(second, S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.ended() == Cancelled("ada@lab")


def test_a_gang_of_which_a_node_stopped_a_part_is_ended_for_that_reason() -> None:
    pool = _running()
    first, second = pool.where()
    pool.says(first, S.ENDED, ending=Ending(EndKind.STOPPED, "stopped by root"))
    pool.says(second, S.ENDED, ending=Ending(EndKind.CANCELLED))
    assert pool.ended() == Cancelled(reason="stopped by root")


def test_a_gang_waits_until_enough_nodes_have_room_at_once() -> None:
    """And takes nothing before."""
    pool = Pool("a", "b")
    pool.running("j0", request=WHOLE)
    pool.submit(request=WHOLE, nodes=2)
    pool.is_now(Queued)
    (node,) = pool.where("j0")
    pool.says(node, S.ENDED, JobId("j0"), ending=exited(0))
    assert pool.where() == ["a", "b"]


def test_a_gang_that_waits_long_has_nodes_kept_for_it() -> None:
    """Else small jobs would take each GPU as it becomes free."""
    pool = Pool("a", "b", rules=replace(RULES, gang_patience_seconds=60.0))
    pool.running("j0", request=WHOLE)
    (busy,) = pool.where("j0")
    pool.submit(request=WHOLE, nodes=2)
    for _ in range(5):
        pool.wait(20.0)
        pool.heartbeat("a")
        pool.heartbeat("b")
    pool.submit("small", request=WHOLE)
    pool.is_now(Queued, "small")
    pool.says(busy, S.ENDED, JobId("j0"), ending=exited(0))
    pool.is_now(Placing)
    pool.is_now(Queued, "small")


SPREADS = [
    ("one node has all: there", {"a": 4, "b": 8}, 8, [("b", 8)]),
    ("two have it together", {"a": 4, "b": 8}, 12, [("a", 4), ("b", 8)]),
    ("the rest goes where it fits best", {"a": 8, "b": 4, "c": 2}, 10, [("a", 8), ("c", 2)]),
    ("as few as possible", {"a": 2, "b": 2, "c": 4}, 6, [("a", 2), ("c", 4)]),
    ("all together have too few: it waits", {"a": 2, "b": 2}, 6, []),
]


@pytest.mark.parametrize(("name", "nodes", "count", "shares"), SPREADS, ids=[one[0] for one in SPREADS])
def test_the_gpus_of_one_request_are_spread_over_as_few_nodes_as_possible(
    name: str, nodes: dict[str, int], count: int, shares: list[tuple[str, int]]
) -> None:
    """Each part asks for what its node gives."""
    pool = Pool()
    for node, gpus in nodes.items():
        pool.do(m.NodeEnrolled(NodeName(node)))
        pool.register(node, gpus=gpus)
    request = Request(gpu_count=count, compute_permille=1000, isolation=Isolation.EXCLUSIVE)
    pool.submit(request=request, span=True)
    assert [(part.node, part.request.gpu_count) for part in pool.job().parts] == shares, name


def test_a_gang_asks_for_a_fixed_number_of_gpus() -> None:
    """Each part is told how many the others have."""
    pool = Pool("a", "b")
    with pytest.raises(RequestError, match="fixed number"):
        pool.submit(request=replace(WHOLE, max_gpu_count=2), nodes=2)


def test_who_asks_for_more_nodes_than_a_record_holds_hears_how_many_fit() -> None:
    """And that many are taken."""
    pool = Pool("a", "b")
    asked: dict[str, Any] = {"request": WHOLE, "body": "x" * 2_000}
    with pytest.raises(RequestError, match="ask for at most 107 nodes"):
        pool.submit(**asked, nodes=MAX_NODES)
    pool.submit(**asked, nodes=107)
    assert pool.is_now(Queued)


def test_who_spreads_more_gpus_than_a_record_holds_parts_hears_how_many_fit() -> None:
    """Each of them may come to lie on a node of its own."""
    pool = Pool("a", "b")
    request = replace(WHOLE, gpu_count=200)
    with pytest.raises(RequestError, match=f"ask for at most {MAX_NODES} GPUs"):
        pool.submit(request=request, span=True)
    pool.submit(request=replace(request, gpu_count=MAX_NODES), span=True)
    assert pool.is_now(Queued)


@pytest.mark.parametrize("told", [False, True], ids=["none of them was told", "one of them was told"])
def test_a_gang_whose_ranks_were_forgotten_is_begun_anew(told: bool) -> None:
    """The parts that were told could wait at one meeting place, and the others at another."""
    pool = Pool("a", "b")
    pool.ask_all()
    spec = JobSpec(WHOLE, ADA, nodes=2)
    for node, committed in (("b", told), ("a", False)):
        report = pool.report(node, S.RESERVED, J, revision=1, spec=spec)
        pool.do(m.AttemptReported(NodeName(node), replace(report, committed=committed)))
        assert pool.orders(Commit) == []
    pool.wait(RULES.recover_seconds)
    if told:
        pool.says("b", S.RUNNING)
        pool.register("a")
        assert pool.orders(Commit) == []
        pool.says("a", S.REFUSED, ending=Ending(EndKind.NO_ROOM, "its reservation ran out"))
    assert pool.orders(Commit) == []
    assert pool.is_now(Cancelling).then is Then.REQUEUE
