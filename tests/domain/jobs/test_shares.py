"""How a limit is shared out among nodes: cases as data."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.limit_shares import LimitUse, NodeLimitUse, shared_out

GPUS = 4000


@dataclass(frozen=True)
class Case:
    """Nodes by name: what each holds, may give, and which leases wait there for more."""

    says: str
    limit: int
    nodes: dict[str, tuple[int, int, tuple[int, ...]]]
    shares: dict[str, int]
    held: int = 0
    kept: int = 0
    pressed: bool = False
    closed: frozenset[str] = field(default_factory=frozenset)


CASES = (
    Case("slices are half of the limit", 2000, {"a": (0, 0, ()), "b": (0, 0, ())}, {"a": 500, "b": 500}),
    Case("build work keeps what is fixed for it", 2000, {"a": (0, 0, ())}, {"a": 500}, kept=1000),
    Case("no slice is more than is left", 2000, {"a": (0, 0, ())}, {"a": 100}, held=1900),
    Case("who wants more gets it", 2000, {"a": (0, 500, (1000,)), "b": (0, 500, ())}, {"a": 1000, "b": 500}),
    Case(
        "where more is wanted than is left the others give back what they do not use",
        2000,
        {"a": (0, 500, (2000,)), "b": (100, 500, ())},
        {"a": 0, "b": 100},
    ),
    Case(
        "the one that holds least goes first",
        1000,
        {"a": (300, 300, (400,)), "b": (200, 200, (400,))},
        {"a": 300, "b": 600},
    ),
    Case(
        "a part of what is wanted does where a lease fits in it", 1000, {"a": (0, 0, (400, 900))}, {"a": 1000}
    ),
    Case("what can never be granted takes nothing from others", 1000, {"a": (0, 0, (2000,))}, {"a": 500}),
    Case("a slice that others need is given back", 1000, {"a": (100, 600, ())}, {"a": 100}, pressed=True),
    Case("much more than a slice is given back", 1000, {"a": (0, 1000, ())}, {"a": 500}),
    Case("a little more than a slice is not worth a word", 1000, {"a": (0, 600, ())}, {"a": 600}),
    Case(
        "a node that cannot be told keeps what it has, and it counts",
        1000,
        {"a": (0, 600, ()), "b": (0, 0, (500,))},
        {"b": 0},
        closed=frozenset("a"),
    ),
    Case("no node has a slice for GPUs that it has not", 20_000, {"a": (0, 0, ())}, {"a": GPUS}),
    Case("a limit below what is held gives nobody more", 500, {"a": (800, 800, (100,))}, {"a": 800}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_limit_is_shared_out_by_demand(case: Case) -> None:
    book = LimitUse(case.limit, case.held, case.kept)
    for name, (held, share, wants) in case.nodes.items():
        least = min(wants, default=0)
        is_open = name not in case.closed
        book.nodes[NodeName(name)] = NodeLimitUse(held, share, least, sum(wants), GPUS, open=is_open)
    assert shared_out(book, pressed=case.pressed) == case.shares
