"""What a person is told whose job has no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.domain.jobs import messages as m
from gpushared.domain.jobs.explaining import lack_of_room
from gpushared.domain.jobs.model import NodeName
from gpushared.domain.placement import Reason
from tests.unit.jobs.pool_world import HALF, ROOT, WHOLE, J, Pool, held

TOO_MUCH = replace(WHOLE, gpu_count=9)
A, B = NodeName("a"), NodeName("b")


def _full() -> Pool:
    pool = Pool("a", "b")
    pool.beat("a", holdings=(held("a", 0),))
    pool.beat("b", holdings=(held("b", 0),))
    return pool


def _drained() -> Pool:
    pool = _full()
    pool.do(m.NodeDrainAsked(B, ROOT, "new fan"))
    return pool


def _silent() -> Pool:
    pool = _full()
    pool.now += 120
    pool.beat("a")
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
