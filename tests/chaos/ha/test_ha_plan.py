"""The rounds against several coordinators: a seed gives one plan, in which everybody is hit in every way."""

from __future__ import annotations

import pytest

from tests.chaos.ha.plan import WAYS, Role, make_round
from tests.chaos.ha.watch import Claim, false_claims
from tests.chaos.plan import FaultKind

ROUNDS = [make_round(1, number) for number in range(1000)]


def test_the_same_seed_makes_the_same_round_and_another_one_another() -> None:
    assert make_round(1, 17) == ROUNDS[17]
    assert any(make_round(2, number) != ROUNDS[number] for number in range(3))


@pytest.mark.parametrize("role", Role)
def test_everybody_is_hit_in_every_way(role: Role) -> None:
    blows = [blow for one in ROUNDS for blow in one.blows if blow.role is role]
    kinds = {FaultKind.KILL, FaultKind.FREEZE, FaultKind.CUT, FaultKind.SLOW}
    assert {blow.kind for blow in blows} == kinds
    assert {blow.way for blow in blows} == {None, *WAYS[role]}


def test_a_round_hits_nobody_twice() -> None:
    for one in ROUNDS:
        roles = [blow.role for blow in one.blows]
        assert len(roles) == len(set(roles))


CLAIMS: dict[str, tuple[list[Claim], list[str]]] = {
    "one after the other": ([Claim("h1", 1, 10.0, 10.1), Claim("h2", 2, 20.0, 20.1)], []),
    "an answer that was under way": ([Claim("h2", 2, 20.0, 20.1), Claim("h1", 1, 20.2, 21.0)], []),
    "one that leads no more": ([Claim("h2", 2, 20.0, 20.1), Claim("h1", 1, 23.0, 23.1)], ["two leaders"]),
    "one that leads again": (
        [Claim("h1", 1, 1.0, 1.1), Claim("h2", 2, 5.0, 5.1), Claim("h1", 3, 9.0, 9.1)],
        [],
    ),
}


@pytest.mark.parametrize(("claims", "found"), CLAIMS.values(), ids=CLAIMS.keys())
def test_who_says_that_it_leads_although_another_one_does_is_found(
    claims: list[Claim], found: list[str]
) -> None:
    assert [one.rule for one in false_claims(claims)] == found
