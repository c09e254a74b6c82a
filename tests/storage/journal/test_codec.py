"""Leases as JSON: nothing is lost, and versions tolerate each other."""

import contextlib
import json
from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NewType, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import (
    ComputeCap,
    ContainerId,
    Ended,
    Grant,
    Lease,
    LeaseState,
    MemoryWall,
    NeverClaimed,
    Outcome,
    Queued,
    Starting,
    Walls,
)
from gpushared.storage.journal.journal_file import lease_from_json, lease_to_json
from gpushared.storage.records import RecordError, kind_of
from gpushared.testing import fake_lease

PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(),
    int: st.integers(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
}


def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type as the domain uses types; without corners that only tests would ever see."""
    if isinstance(kind, NewType):
        return anything_of(kind.__supertype__)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        parts = {
            field.name: anything_of(hints[field.name]) for field in fields(kind) if field.name != "story"
        }
        return st.builds(kind, **parts)
    if get_origin(kind) is tuple:
        return st.lists(anything_of(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is UnionType:
        return st.one_of([anything_of(member) for member in get_args(kind)])
    if kind is NoneType:
        return st.none()
    return st.sampled_from(list(kind)) if issubclass(kind, StrEnum) else PLAIN[kind]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(anything_of(Lease))
def test_every_lease_comes_back_as_it_was(lease: Lease) -> None:
    back = lease_from_json(lease_to_json(lease))
    assert back == lease
    assert repr(back) == repr(lease)  # equality does not tell 1 from 1.0 from True


@given(anything_of(Lease), st.data())
def test_damage_anywhere_is_told_as_such_or_does_not_matter(lease: Lease, data: st.DataObject) -> None:
    tree = json.loads(lease_to_json(lease))
    key = data.draw(st.sampled_from(sorted(tree)))
    tree[key] = data.draw(json_values)
    with contextlib.suppress(RecordError):
        lease_from_json(json.dumps(tree))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '"lease"', "[" * 100_000, '{"sequence": 1e999}']
)
def test_what_is_no_lease_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        lease_from_json(text)


def edited(lease: Lease, **changes: Any) -> str:
    return json.dumps(json.loads(lease_to_json(lease)) | changes)


def test_fields_of_a_newer_version_are_ignored() -> None:
    state = {"kind": "queued", "since": 1.0, "mood": "hopeful"}
    assert lease_from_json(edited(fake_lease(1), moon_phase="full", state=state)) == fake_lease(
        1, Queued(1.0)
    )


def test_fields_that_an_older_version_did_not_have_take_their_default() -> None:
    tree = json.loads(lease_to_json(fake_lease(1)))
    for name in ("walls", "image", "container_name", "request_id", "expires_at"):
        del tree[name]
    tree["request"] = {}
    lease = lease_from_json(json.dumps(tree))
    assert (lease.walls, lease.image, lease.request.gpu_count) == (None, "", 1)


@pytest.mark.parametrize(
    "state",
    [{"kind": "hibernating"}, {}, {"kind": ["queued"]}, None, {"kind": "queued"}],
    ids=["unknown", "without a kind", "odd kind", "none", "lacking a field"],
)
def test_a_state_that_is_not_understood_is_refused_rather_than_guessed(state: object) -> None:
    with pytest.raises(RecordError):
        lease_from_json(edited(fake_lease(1), state=state))


def test_a_true_is_no_number() -> None:
    with pytest.raises(RecordError):
        lease_from_json(edited(fake_lease(1), sequence=True))


def test_a_time_that_is_no_number_is_not_written() -> None:
    with pytest.raises(RecordError):
        lease_to_json(fake_lease(1, Queued(float("nan"))))


def test_the_story_is_not_written_with_the_lease() -> None:
    assert "once upon" not in lease_to_json(fake_lease(1, story=("once upon a time",)))


def test_the_words_in_the_journal_are_those_of_the_first_version() -> None:
    """A renamed class or enum member would make old journals unreadable: then a migration is needed."""
    assert [kind_of(state) for state in get_args(LeaseState)] == [
        *("queued", "reserved", "starting", "active", "paused"),
        *("suspending", "suspended", "resuming", "draining", "requeued", "ended"),
    ]
    assert [kind_of(outcome) for outcome in get_args(Outcome)] == [
        *("finished", "stopped", "expired", "never_claimed", "over_limit", "outside_mps"),
        *("preempted", "idle", "failed"),
    ]


def test_a_lease_reads_as_one_would_write_it_by_hand() -> None:
    grant = Grant(GpuId("GPU-1"), 1024, 250)
    lease = fake_lease(1, Starting((grant,), ContainerId("c1"), since=2.0, deadline=None))
    assert json.loads(lease_to_json(lease))["state"] == {
        "kind": "starting",
        "grants": [
            {"gpu": "GPU-1", "memory_bytes": 1024, "compute_permille": 250, "compute_limit_permille": 0}
        ],
        "container": "c1",
        "since": 2.0,
        "deadline": None,
        "held": False,
        "by_node": False,
    }
    over = json.loads(lease_to_json(fake_lease(1, Ended(NeverClaimed(), at=3.0))))
    assert over["state"] == {"kind": "ended", "outcome": {"kind": "never_claimed"}, "at": 3.0, "grants": []}


def test_walls_are_written_in_their_own_words() -> None:
    walls = Walls(MemoryWall.MPS_CLIENT, ComputeCap.NONE)
    text = edited(fake_lease(1), walls={"memory_wall": "mps-client", "compute_cap": "none"})
    assert lease_from_json(text).walls == walls
