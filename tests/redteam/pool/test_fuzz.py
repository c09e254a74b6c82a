"""Any message, of anybody, at any time: a coordinator goes on as if there were none of them.

Attackers are members with valid certificates, a user and an administrator with tokens, and nobody. Beside
them an honest node runs a job, and an honest user asks for answers. Three oracles tell whether the attackers
came through: the honest ones are answered, the coordinator's memory is bounded, and its log has no traceback.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gate.fuzz.rig import fuzzed
from tests.redteam.pool.fuzzed_pool import FuzzedPool
from tests.redteam.pool.hostile import CONNECT, METHODS, Call, calls, noises


@pytest.fixture(scope="module")
def pool() -> Iterator[FuzzedPool]:
    with FuzzedPool() as made:
        yield made
        made.check_log()


def often(few: int, many: int) -> pytest.MarkDecorator:
    """The number of examples: few each time, and many with `-m slow`."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


@often(12, 500)
@pytest.mark.parametrize("path", [path for path in METHODS if path != CONNECT])
def test_no_request_harms_others(pool: FuzzedPool, path: str, examples: int) -> None:
    _attack(pool, st.lists(calls(path), min_size=1, max_size=6), examples)


@often(80, 5000)
def test_no_stream_of_a_member_harms_others(pool: FuzzedPool, examples: int) -> None:
    _attack(pool, st.lists(calls(CONNECT), min_size=1, max_size=4), examples)


@often(40, 5000)
def test_nothing_that_comes_together_harms_others(pool: FuzzedPool, examples: int) -> None:
    one = st.one_of(noises(), *map(calls, METHODS), *[calls(CONNECT)] * 6)
    _attack(pool, st.lists(one, min_size=1, max_size=12), examples)


def _attack(pool: FuzzedPool, batches: st.SearchStrategy[list[Call]], examples: int) -> None:
    @fuzzed(examples)
    @given(batches)
    def attack(batch: list[Call]) -> None:
        pool.attack(batch)

    attack()
