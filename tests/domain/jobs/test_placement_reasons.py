"""What a person is told whose job has no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    NodeName,
    Queued,
)
from gpushared.domain.jobs.placement_reasons import lack_of_room
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.jobs.job_reasons import JobReason, why
from tests.domain.jobs.pool_world import HALF, ROOT, WHOLE, J, Pool, held

TOO_MUCH = replace(WHOLE, gpu_count=9)
A, B = NodeName("a"), NodeName("b")


def _full() -> Pool:
    pool = Pool("a", "b")
    pool.heartbeat("a", holdings=(held("a", 0),))
    pool.heartbeat("b", holdings=(held("b", 0),))
    return pool


def _half_full() -> Pool:
    pool = Pool("a", "b")
    pool.heartbeat("a", holdings=(held("a", 0),))
    return pool


def _drained() -> Pool:
    pool = _full()
    pool.do(m.NodeDrainAsked(B, ROOT, "new fan"))
    return pool


def _silent() -> Pool:
    pool = _full()
    pool.now += 120
    pool.heartbeat("a")
    return pool


def _all_silent() -> Pool:
    pool = Pool("a", "b")
    pool.now += 120
    return pool


def _small_and_silent_large() -> Pool:
    """Two nodes, of which the one with two GPUs is not heard of."""
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B))
    pool.register("b", gpus=2)
    pool.now += 120
    pool.heartbeat("a")
    return pool


CASES: dict[str, tuple[Pool, dict[str, Any], Reason, str, str]] = {
    "all is taken": (
        _full(),
        {},
        Reason.SHARING_MODE,
        "needs 0.5; of 2 GPUs are 2 shared by others, or not to be shared",
        "",
    ),
    "a node is drained": (
        _drained(),
        {},
        Reason.SHARING_MODE,
        "1 out of use (node b is drained by root@lab: 'new fan')",
        "gpushare undrain b",
    ),
    "a node is silent": (
        _silent(),
        {},
        Reason.SHARING_MODE,
        "(node b has been silent for 2m)",
        "if it is off for good: gpushare node forget b --is-off",
    ),
    "the only node that will do is silent": (
        _silent(),
        {"target": B},
        Reason.GPU_UNHEALTHY,
        "only node b will do, and it has been silent for 2m",
        "if it is off for good: gpushare node forget b --is-off",
    ),
    "the only node that has so many GPUs is silent": (
        _small_and_silent_large(),
        {"request": replace(WHOLE, gpu_count=2)},
        Reason.GPU_UNHEALTHY,
        "only node b could take 2, and it has been silent for 2m",
        "if it is off for good: gpushare node forget b --is-off",
    ),
    "all nodes of the model that was asked for are silent": (
        _all_silent(),
        {"request": replace(WHOLE, models=("h-100",))},
        Reason.GPU_UNHEALTHY,
        "could take it are there: node a has been silent for 2m; node b has been silent for 2m",
        "if it is off for good: gpushare node forget a --is-off",
    ),
    "too few nodes for a gang are heard of": (
        _silent(),
        {"request": WHOLE, "nodes": 2},
        Reason.GPU_UNHEALTHY,
        "1 on each of 2 nodes at once; too few of the nodes that could take it are there: node b has been",
        "if it is off for good: gpushare node forget b --is-off",
    ),
    "a model is named by a part of its name, and all of that model are taken": (
        _full(),
        {"request": replace(WHOLE, models=("h-100",))},
        Reason.SHARING_MODE,
        "needs 1 of model 'h-100'; of 2 GPUs are 2 shared by others, or not to be shared",
        "",
    ),
    "nobody could ever take it": (
        _full(),
        {"request": TOO_MUCH},
        Reason.NEVER_FITS,
        "no node of the pool could take 9, not even when it is empty",
        "there are H100",
    ),
    "a gang": (
        _full(),
        {"request": WHOLE, "nodes": 2},
        Reason.SHARING_MODE,
        "needs 1 on each of 2 nodes at once",
        "",
    ),
    "a gang has room behind another one, for which GPUs are kept": (
        Pool("a", "b"),
        {"request": WHOLE, "nodes": 2, "held": True},
        Reason.QUEUE_ORDER,
        "there is room for 1 on each of 2 nodes at once; it is not its turn",
        "",
    ),
    "a job spans nodes that are full": (
        _full(),
        {"request": replace(WHOLE, gpu_count=2), "span": True},
        Reason.SHARING_MODE,
        "needs 2 on few nodes at once; of 2 GPUs are 2 shared by others, or not to be shared",
        "",
    ),
    "a job spans nodes of which one is full": (
        _half_full(),
        {"request": replace(WHOLE, gpu_count=2), "span": True},
        Reason.SHARING_MODE,
        "needs 2 on few nodes at once; of 2 GPUs are 1 shared by others, or not to be shared",
        "",
    ),
    "a job spans nodes of which one is silent": (
        _silent(),
        {"request": replace(WHOLE, gpu_count=2), "span": True},
        Reason.GPU_UNHEALTHY,
        "needs 2 on few nodes at once; too few of the nodes that could take it are there: node b has been",
        "if it is off for good: gpushare node forget b --is-off",
    ),
    "all nodes together have too few GPUs for a job that spans them": (
        _full(),
        {"request": replace(WHOLE, gpu_count=3), "span": True},
        Reason.NEVER_FITS,
        "all nodes of the pool together could not take 3, not even when they are empty",
        "ask for at most 2 GPUs",
    ),
    "the pool has too few nodes": (
        _full(),
        {"request": WHOLE, "nodes": 4},
        Reason.NEVER_FITS,
        "the pool has no 4 nodes that could take 1, not even when they are empty",
        "ask for at most 2 nodes",
    ),
    "nobody is there": (
        Pool(),
        {},
        Reason.RESOURCES,
        "the pool has no nodes",
        "a node joins with what `gpushare pool token` says",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_waits_for_room_is_told_what_stands_against_it(name: str) -> None:
    """In a sentence, with a code for programs, and with what helps."""
    pool, spec, reason, sentence, hint = CASES[name]
    pool.submit(**{"request": HALF, **spec})
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert sentence in lack.sentence
    assert (lack.reason, lack.hint) == (reason, hint)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"request": replace(WHOLE, gpu_count=3), "span": True}, "together could not take 3"),
        ({"request": WHOLE, "nodes": 4}, "the pool has no 4 nodes that could take 1"),
    ],
)
def test_why_says_of_a_gang_that_is_too_large_that_it_never_fits(spec: dict[str, Any], text: str) -> None:
    pool = _full()
    pool.submit(**spec)
    reason = why(pool.job(J), pool.state, pool.now)
    assert reason is not None
    assert reason.code == Reason.NEVER_FITS
    assert text in reason.sentence


def _with_j0_on_a_and_j9_on_b() -> Pool:
    pool = Pool("a", "b", "c", gpus=2)
    for name, node in (("j0", A), ("j9", B)):
        pool.submit(name, request=HALF, target=node)
    pool.heartbeat("a", holdings=(held("a", 1), held("a", 0, permille=500)))
    return pool


NEIGHBOURS: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "the node of the job that it is to be near is full": (
        {"near": ("j0",)},
        Reason.SHARING_MODE,
        "needs 1 on the node of j0; of 2 GPUs are 2 shared by others, or not to be shared",
    ),
    "there is room on the node of the job that it is to be near": (
        {"near": ("j9",)},
        Reason.QUEUE_ORDER,
        "there is room for 1 on the node of j9; it is not its turn",
    ),
    "the job that it was to be near is over": (
        {"near": ("j8",)},
        Reason.QUEUE_ORDER,
        "there is room for 1; it is not its turn",
    ),
    "the jobs that it is to be near are on two nodes": (
        {"near": ("j0", "j9")},
        Reason.RESOURCES,
        "needs one node with all that it is to be near: j0 on a, j9 on b",
    ),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_job_that_is_to_be_near_others_is_told_of_their_node(name: str) -> None:
    fields, reason, sentence = NEIGHBOURS[name]
    pool = _with_j0_on_a_and_j9_on_b()
    pool.submit(request=replace(WHOLE, **fields), held=True)
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert (lack.reason, lack.sentence) == (reason, sentence)


def test_a_job_that_keeps_away_from_others_is_told_of_their_gpus() -> None:
    pool = Pool("a")
    pool.submit("j0", request=HALF)
    pool.submit(request=replace(HALF, away_from=("j0",)))
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert lack.sentence == "needs 0.5; of 1 GPU are 1 held by what it keeps away from"
    assert lack.reason is Reason.AWAY_FROM


NO_ACCOUNT = Ending(EndKind.FAILED, "'ada@lab' has no account here", hint="add one under [pool.accounts]")


def _refused_by_b(**spec: Any) -> Pool:
    """A pool of one large and one small node, of which the large one will not have the job."""
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B))
    pool.register("b", gpus=2)
    pool.submit(request=replace(WHOLE, gpu_count=2), **spec)
    pool.says("b", AttemptState.REFUSED, ending=NO_ACCOUNT)
    pool.wait(1.0)
    return pool


def test_who_waits_because_of_refusals_is_told_them_and_how_to_mend_them() -> None:
    """And not that the job is too large, which it is not."""
    pool = _refused_by_b()
    pool.is_now(Queued)
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert "node b will not have it: 'ada@lab' has no account here" in lack.sentence
    assert "not even when it is empty" not in lack.sentence
    assert lack.hint == "add one under [pool.accounts]"
    reason = why(pool.job(J), pool.state, pool.now)
    assert reason is not None
    assert (reason.code, reason.sentence) == (JobReason.REFUSED, lack.sentence)


def test_who_waits_for_other_nodes_is_told_who_refused_too() -> None:
    pool = Pool("a", "b")
    pool.heartbeat("b", holdings=(held("b", 0),))
    pool.submit(request=WHOLE)
    pool.says("a", AttemptState.REFUSED, ending=NO_ACCOUNT)
    pool.wait(1.0)
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert "of 1 GPU" in lack.sentence
    assert lack.sentence.endswith("node a will not have it: 'ada@lab' has no account here")


@pytest.mark.parametrize("how", ["interactive", "immediate"])
def test_who_sits_before_it_does_not_wait_for_what_cannot_come(how: str) -> None:
    pool = _refused_by_b(**{how: True})
    assert "node b will not have it: 'ada@lab' has no account here" in pool.ended().reason
    assert pool.ended().hint == "add one under [pool.accounts]"


def test_a_model_that_the_pool_does_not_have_is_said_to_be_what_is_lacking() -> None:
    pool = Pool("a")
    pool.submit(request=replace(WHOLE, models=("b200", "gb300")))
    lack = lack_of_room(pool.job(J), pool.state, pool.now)
    assert "could take 1 of model 'b200' or 'gb300', not even when" in lack.sentence
    assert lack.hint == "there are H100"


def test_an_interactive_job_that_is_too_large_for_all_nodes_fails_at_once() -> None:
    pool = Pool("a", "b")
    pool.submit(request=TOO_MUCH, interactive=True)
    pool.wait(1.0)
    assert "could take 9, not even when it is empty" in pool.ended().reason


def test_an_interactive_job_waits_while_nobody_knows_what_a_node_has() -> None:
    pool = Pool("a")
    pool.do(m.NodeEnrolled(B))
    pool.submit(request=replace(WHOLE, gpu_count=2), interactive=True)
    pool.wait(1.0)
    pool.is_now(Queued)


@pytest.mark.parametrize("models", [(), ("h-100",)])
def test_an_interactive_job_waits_for_those_who_have_the_room_now(models: tuple[str, ...]) -> None:
    pool = _full()
    pool.submit(request=replace(HALF, models=models), interactive=True)
    pool.wait(1.0)
    pool.is_now(Queued)


def test_an_immediate_job_fails_where_there_is_no_room_at_once() -> None:
    pool = _full()
    pool.submit(immediate=True)
    pool.wait(1.0)
    assert "of 2 GPUs are 2 shared by others" in pool.ended().reason
