"""The states of a lease and the only ways between them."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from gpushared.domain.model.errors import InvalidTransition
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    STORY_KEPT_IN_MEMORY,
    TRANSITIONS,
    Active,
    ContainerId,
    Draining,
    Ended,
    Finished,
    Grant,
    Lease,
    LeaseId,
    LeaseState,
    Paused,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
    state_name,
)
from gpushared.domain.model.request import Request

GRANTS = (Grant(GpuId("GPU-0"), 1 << 30, 250),)
BOX = ContainerId("box")
STATES: tuple[LeaseState, ...] = (
    Queued(1.0),
    Reserved(GRANTS, 1.0, 61.0),
    Starting(GRANTS, BOX, 1.0, 61.0),
    Active(GRANTS, BOX, 1.0),
    Paused(GRANTS, BOX, 1.0),
    Suspending(GRANTS, BOX, 1.0, 61.0, wanted=True),
    Suspended(BOX, 1.0, 7, GRANTS, None, wanted=True),
    Resuming(GRANTS, BOX, 1.0, 61.0),
    Draining(GRANTS, BOX, 1.0, Finished(0), exited=True, retry_at=1.0),
    Requeued(BOX, 1.0, 7, GRANTS),
    Ended(Finished(0), 1.0, GRANTS),
)
WAYS = {
    "queued": "reserved ended",
    "reserved": "reserved starting ended",
    "starting": "starting active draining",
    "active": "starting active paused suspending draining",
    "paused": "starting active draining",
    "suspending": "starting active suspending suspended draining",
    "suspended": "resuming draining ended",
    "resuming": "starting active suspended resuming draining",
    "draining": "starting active draining requeued ended",
    "requeued": "starting draining ended",
    "ended": "",
}
"""The table once more, as a reader would draw it."""


def lease(state: LeaseState) -> Lease:
    asked = Lease(LeaseId("l-test"), 1, Request(), 1000, "alice", 0.0, state, "l-test")
    return asked.note(0.5, "alice asked for 1")


PAIRS = [pytest.param(a, b, id=f"{state_name(a)} to {state_name(b)}") for a, b in product(STATES, STATES)]


def test_every_state_is_tested_here() -> None:
    """A new state needs its row."""
    assert [type(state) for state in STATES] == list(get_args(LeaseState))
    assert [state_name(state) for state in STATES] == list(WAYS)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_lease_moves_only_where_the_table_leads(before: LeaseState, after: LeaseState) -> None:
    """Every other pair is a bug of ours, and raises with the lease's story."""
    allowed = state_name(after) in WAYS[state_name(before)].split()
    assert ((type(before), type(after)) in TRANSITIONS) is allowed
    if allowed:
        moved = lease(before).move(after, 2.0, "because")
        assert moved.state == after
        assert str(moved.story[-1]) == f"2.000 {state_name(after):9} because"
        return
    with pytest.raises(InvalidTransition, match="because") as caught:
        lease(before).move(after, 2.0, "because")
    assert [entry.text for entry in caught.value.story] == ["alice asked for 1"]  # type: ignore[attr-defined]
    assert "alice asked for 1" in str(caught.value)


@pytest.mark.parametrize("state", STATES, ids=state_name)
def test_grants_count_from_reserved_until_draining_is_over(state: LeaseState) -> None:
    """What an ended lease held is history."""
    assert lease(state).grants == (() if isinstance(state, Queued | Suspended | Requeued | Ended) else GRANTS)


@pytest.mark.parametrize("state", STATES, ids=state_name)
def test_a_lease_has_a_container_from_starting_until_draining_is_over(state: LeaseState) -> None:
    """Before that it has only a name for it."""
    assert lease(state).container == (None if isinstance(state, Queued | Reserved | Ended) else BOX)


def test_a_long_story_keeps_its_newest_lines_in_memory() -> None:
    """A container that crashes for weeks must not grow the daemon."""
    noted = lease(STATES[0])
    for number in range(3 * STORY_KEPT_IN_MEMORY):
        noted = noted.note(float(number), f"line {number}")
    assert len(noted.story) == STORY_KEPT_IN_MEMORY
    assert noted.story[-1].text == f"line {3 * STORY_KEPT_IN_MEMORY - 1}"


def test_leases_that_differ_only_in_what_was_told_of_them_are_equal() -> None:
    """The journal gives back a lease without having to give back its story."""
    assert lease(STATES[0]) == lease(STATES[0]).note(9.0, "something else")
