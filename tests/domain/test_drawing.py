"""What a node does with what its pool lets it give by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.jobs.member import AllowanceNeed
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.leases.events import (
    AllowanceKnown,
    Event,
    RequestSubmitted,
    ResizeAsked,
)
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import NewSize
from gpushared.domain.scheduling.allowance import Allowance, Share, ShareNeed
from gpushared.node.pool.allowance_file import StoredAllowance
from gpushared.pool.member.node_ports import free_of
from tests.domain.jobs.pool_world import gpus_of
from tests.property.allowance_world import POOL, PROJECT, Node, part

ADA, EVE = Caller(1000, 1000, "ada"), Caller(1001, 1001, "eve")
HALF_A_GPU = Allowance(POOL, 1, (Share(PROJECT, "", 500),), {"ada": (PROJECT,)})
NOW = 1_000_000.0


def after(*events: Event, allowance: Allowance | None = HALF_A_GPU) -> NodeState:
    state = NodeState(gpus={gpu.id: gpu for gpu in gpus_of("a", 2)}, allowance=allowance)
    for event in events:
        state = handle(state, event, NOW).state
    return state


def asks(permille: int, caller: Caller = ADA, **fields: object) -> RequestSubmitted:
    return RequestSubmitted(replace(part(permille), **fields), caller)  # type: ignore[arg-type]


def holding(state: NodeState) -> list[str]:
    return [lease.owner_name for lease in state.holders()]


def test_leases_that_are_granted_at_once_stay_within_the_share_together() -> None:
    waiting = after(
        asks(400), asks(400), asks(100), allowance=replace(HALF_A_GPU, shares=(Share(PROJECT, "", 0),))
    )
    assert holding(waiting) == []
    more = handle(waiting, AllowanceKnown(replace(HALF_A_GPU, revision=2)), NOW).state
    assert [lease.request.compute_permille for lease in more.holders()] == [400, 100]


def test_who_is_in_no_project_with_a_limit_has_no_bound() -> None:
    assert holding(after(asks(1000, EVE), asks(1000, EVE))) == ["eve", "eve"]


def test_a_share_of_a_model_bounds_that_model_only() -> None:
    bound = Allowance(POOL, 1, (Share(PROJECT, "H100", 0),), {"ada": (PROJECT,)})
    assert holding(after(asks(100), allowance=bound)) == []
    other = Allowance(POOL, 1, (Share(PROJECT, "A100", 0),), {"ada": (PROJECT,)})
    assert holding(after(asks(100), allowance=other)) == ["ada"]


def test_an_older_word_of_the_pool_that_comes_late_counts_for_nothing() -> None:
    older = replace(HALF_A_GPU, revision=0, shares=(Share(PROJECT, "", 2000),))
    assert after(AllowanceKnown(older)).allowance == HALF_A_GPU
    assert after(AllowanceKnown(None)).allowance is None


def test_a_lease_does_not_grow_beyond_the_share() -> None:
    state = after(asks(400))
    (lease,) = state.holders()
    size = NewSize(gpu_count=1, compute_permille=600, memory_permille=600)
    with pytest.raises(LimitReached, match=r"lets this node give 0\.5 GPUs to project vision by itself"):
        handle(state, ResizeAsked(lease.id, ADA, size), NOW)


def test_the_pool_is_told_what_waits_for_a_larger_share_and_has_room() -> None:
    node = Node(name="a", state=after(asks(800), asks(900), asks(600, EVE)))  # type: ignore[arg-type]
    allowed = node.free().allowed
    assert allowed is not None
    assert [want for want in allowed.wants if not want.model] == [ShareNeed(PROJECT, "", 800, 1700)]
    full = Node(name="a", state=after(asks(900, EVE), asks(900, EVE), asks(800)))  # type: ignore[arg-type]
    assert [full.free().allowed] == [AllowanceNeed(1)]


@pytest.mark.parametrize(
    ("caller", "asked", "told"),
    [(ADA, "", PROJECT), (EVE, "", "eve")],
    ids=["its user is in the pool's project", "its user is in none"],
)
def test_the_pool_is_told_to_which_of_its_projects_a_lease_counts(
    caller: Caller, asked: str, told: str
) -> None:
    state = after(asks(100, caller, project=asked))
    assert [one.project for one in free_of(state, POOL).holdings] == [told]


def test_what_is_allowed_for_a_while_ends_without_contact() -> None:
    """By a clock that counts sleep; of another boot nothing is known."""
    kept = StoredAllowance(POOL, 1, valid_seconds=300.0)
    heard = Contact(boot_id="now", at=1000.0)
    assert not kept.has_ended(heard, "now", 1300.0)
    assert kept.has_ended(heard, "now", 1300.1)
    assert kept.has_ended(heard, "another", 1000.0)
    assert not replace(kept, valid_seconds=0.0).has_ended(heard, "another", 9000.0)


@pytest.mark.parametrize(
    ("how", "words"),
    [({}, "is asked for more"), ({"away": True}, "is away"), ({"ended": True}, "away for too long")],
)
def test_the_sentence_says_whether_more_can_be_had(how: dict[str, bool], words: str) -> None:
    request = RequestSubmitted(Request(compute_permille=600, memory_permille=600), ADA, immediate=True)
    with pytest.raises(LimitReached, match=words):
        after(request, allowance=replace(HALF_A_GPU, **how))  # type: ignore[arg-type]
