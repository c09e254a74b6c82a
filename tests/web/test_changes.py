"""The difference between two answers of a call, and what a page makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.web.changes import change_of
from tests.web.page_changes import applied

SCALARS = st.sampled_from([True, 0, "", "text", 1.5])
ITEMS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, id=st.sampled_from("abcdef"), state=st.sampled_from(["queued", "active"])
)
ODD = st.lists(st.one_of(ITEMS, SCALARS, st.just({"id": ""})), max_size=4)
LISTS = st.one_of(st.lists(ITEMS, max_size=6, unique_by=lambda item: item["id"]), ODD)
ANSWERS = st.dictionaries(st.sampled_from(["leases", "gpus", "more"]), st.one_of(LISTS, SCALARS, ITEMS))


def through_json(change: dict[str, Any]) -> Any:
    return json.loads(json.dumps(change))


@given(ANSWERS, ANSWERS)
def test_the_change_applied_to_the_old_answer_gives_the_new_answer_exactly(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert applied(old, through_json(change_of(old, new))) == new


@given(ANSWERS)
def test_equal_answers_have_no_change(answer: dict[str, Any]) -> None:
    assert change_of(answer, through_json(answer)) == {}


A, B, C = ({"id": name, "state": "queued"} for name in "abc")
B2 = {"id": "b", "state": "active"}


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        pytest.param([A, B], [A, B2], {"key": "id", "set": [B2]}, id="an item that changed comes alone"),
        pytest.param(
            [A, B],
            [A, B, C],
            {"key": "id", "set": [C], "order": ["a", "b", "c"]},
            id="a new item has a place",
        ),
        pytest.param(
            [A, B, C],
            [A, C],
            {"key": "id", "set": [], "order": ["a", "c"]},
            id="an item that went is in no order",
        ),
        pytest.param(
            [A, B], [B, A], {"key": "id", "set": [], "order": ["b", "a"]}, id="a new order has no items"
        ),
    ],
)
def test_of_a_list_with_keys_only_the_items_that_differ_are_told(
    old: list[Any], new: list[Any], change: dict[str, Any]
) -> None:
    assert change_of({"leases": old}, {"leases": new}) == {"lists": {"leases": change}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param([A], [A, A], id="two items of one key"),
        pytest.param([{"pid": 7}], [{"pid": 8}], id="items without a key"),
        pytest.param([{"id": ""}], [{"id": "a"}], id="an empty key"),
        pytest.param(["a"], ["b"], id="texts"),
        pytest.param([], [A], id="nothing before"),
        pytest.param([A], [], id="nothing after"),
    ],
)
def test_a_list_whose_items_have_no_unique_key_is_told_whole(old: list[Any], new: list[Any]) -> None:
    assert change_of({"list": old}, {"list": new}) == {"set": {"list": new}}


def test_a_field_that_is_gone_is_told_as_null() -> None:
    assert change_of({"kept": {}, "more": "0"}, {"more": "0"}) == {"set": {"kept": None}}
