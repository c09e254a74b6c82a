"""Whatever the domain is made of can be written as JSON and read again."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import Job
from gpushared.domain.jobs.member import Member
from gpushared.domain.jobs.protocol import Order, Query, Report, StaleEpoch
from gpushared.storage.records import RecordError, from_json, to_json

PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
}


@dataclass(frozen=True, slots=True)
class Sample:
    pairs: tuple[tuple[str, int], ...]
    named: Mapping[str, float]


KINDS = {
    "orders": Order,
    "answers": Report | StaleEpoch,
    "jobs": Job,
    "attempts": Attempt,
    "members": Member,
    "pairs and mappings": Sample,
}


@cache
def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type as the domain uses types."""
    if isinstance(kind, NewType):
        return anything_of(kind.__supertype__)
    if isinstance(kind, type) and is_dataclass(kind):
        return st.deferred(lambda: _object(kind))
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        if rest == [Ellipsis]:
            return st.lists(anything_of(first), max_size=2).map(tuple)
        return st.tuples(*map(anything_of, get_args(kind)))
    if get_origin(kind) is Mapping:
        return st.dictionaries(st.text(max_size=3), anything_of(get_args(kind)[1]), max_size=2)
    if get_origin(kind) in (UnionType, Union):
        return st.one_of([anything_of(member) for member in get_args(kind)])
    if kind is NoneType:
        return st.none()
    return st.sampled_from(list(kind)) if issubclass(kind, StrEnum) else PLAIN[kind]


def _object(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    recorded = [field.name for field in fields(kind) if field.metadata.get("recorded", True)]
    return st.builds(kind, **{name: anything_of(hints[name]) for name in recorded})


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(data=st.data())
def test_every_record_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    value = data.draw(anything_of(kind))
    text = to_json(kind, value)
    assert from_json(kind, text) == value
    assert repr(from_json(kind, text.encode())) == repr(value)


@given(value=anything_of(Order), junk=st.none() | st.booleans() | st.integers() | st.text(), data=st.data())
def test_damage_is_told_as_such_or_does_not_matter(value: Order, junk: object, data: st.DataObject) -> None:
    tree = json.loads(to_json(Order, value))
    tree[data.draw(st.sampled_from(sorted(tree)))] = junk
    with contextlib.suppress(RecordError):
        from_json(Order, json.dumps(tree))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '"query"', "[" * 100_000, b"\xff"),
        '{"kind":"place"}',
        '{"kind":"query","key":{"job":"a","number":NaN},"epoch":1}',
        '{"kind":"query","key":{"job":"a","number":' + "9" * 5000 + '},"epoch":1}',
        '{"kind":"query","key":{"job":"a","number":true},"epoch":1}',
    ],
)
def test_what_is_no_order_is_refused(text: str | bytes) -> None:
    with pytest.raises(RecordError):
        from_json(Order, text)


@pytest.mark.parametrize("text", ['{"pairs":[["a",1,2]],"named":{}}', '{"pairs":[],"named":{"a":1e999}}'])
def test_pairs_have_two_items_and_numbers_are_finite(text: str) -> None:
    with pytest.raises(RecordError):
        from_json(Sample, text)


def test_fields_of_a_newer_version_are_ignored() -> None:
    text = '{"kind":"query","key":{"job":"a","number":1,"moon":"full"},"epoch":1,"mood":[]}'
    order = from_json(Order, text)
    assert isinstance(order, Query)
    assert (order.key.job, order.epoch) == ("a", 1)
