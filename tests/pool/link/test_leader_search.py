"""Which coordinator a node dials next, by what the others answered."""

from __future__ import annotations

import pytest

from gpushared.domain.model.coordinator_addresses import CoordinatorAddresses
from gpushared.pool.link import codec
from gpushared.pool.member.leader_search import LeaderSearch

HOLD_SECONDS = 10.0


def search_linked_to(address: str, epoch: int) -> LeaderSearch:
    search = LeaderSearch(CoordinatorAddresses(lambda: ("a", "b", "c")))
    while search.next_address() != address:
        search.failed(may_recover=True)
    search.found(epoch)
    return search


def dialled_after(search: LeaderSearch, epochs: list[int]) -> list[str]:
    """The addresses that are dialled after a lost link: each refuses and names an epoch, or 0."""
    search.failed(may_recover=True)
    dialled = []
    for epoch in epochs:
        dialled.append(search.next_address())
        search.refused(epoch)
        search.failed(may_recover=True)
    return [*dialled, search.next_address()]


@pytest.mark.parametrize(
    ("is_silent", "epochs", "dialled"),
    [
        pytest.param(False, [7, 7], ["b", "c", "a"], id="a leader that closed the link may lead on"),
        pytest.param(True, [7, 7], ["b", "c", "b"], id="a silent leader is passed over"),
        pytest.param(True, [8, 8], ["b", "c", "b"], id="also where it leads with a newer epoch by now"),
        pytest.param(True, [7, 7, 7, 7], ["b", "c", "b", "c", "a"], id="once"),
        pytest.param(True, [7, 9, 9], ["b", "c", "b", "c"], id="all are asked anew for a newer leader"),
    ],
)
def test_the_others_are_asked_first(is_silent: bool, epochs: list[int], dialled: list[str]) -> None:
    search = search_linked_to("a", epoch=7)
    search.lost(is_silent=is_silent)
    assert dialled_after(search, epochs) == dialled


@pytest.mark.parametrize(
    ("epochs", "lost_epoch"),
    [
        pytest.param([7, 7], 7, id="the leader that it was linked to"),
        pytest.param([8, 8], 8, id="the same one with a newer epoch"),
        pytest.param([8, 0], 7, id="a leader that takes over is waited for"),
    ],
)
def test_a_node_tells_a_standby_which_leader_it_does_not_reach(epochs: list[int], lost_epoch: int) -> None:
    search = search_linked_to("a", epoch=7)
    assert search.wait_metadata(HOLD_SECONDS) == ()
    search.lost(is_silent=True)
    dialled_after(search, epochs)
    told = dict(search.wait_metadata(HOLD_SECONDS))
    assert told == {codec.WAIT_METADATA: str(HOLD_SECONDS), codec.LOST_METADATA: str(lost_epoch)}
