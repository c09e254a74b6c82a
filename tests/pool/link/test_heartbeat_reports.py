"""A node's reports are read one after the other, and only what is new in them is read anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushared.domain.jobs.member import HeartbeatReport, Holding
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, JobId, LeaseId
from gpushared.pool.link import codec

GIB = 1 << 30


def holding(number: int, memory_bytes: int = GIB) -> Holding:
    key = AttemptKey(JobId(f"j{number}"), 1)
    grants = (Grant(GpuId(f"GPU-{number}"), memory_bytes, 500),)
    return Holding(LeaseId(f"l-{number}"), grants, "ann", "vision", attempt=key)


def report(*holdings: Holding, waiting: int = 0) -> HeartbeatReport:
    return HeartbeatReport(holdings, ((GpuId("GPU-1"), 7),), ((GpuId("GPU-2"), "it is hot"),), waiting)


def test_each_report_is_read_whole_whatever_was_in_the_one_before() -> None:
    """Leases come, go and change; the rest of the report is new each time."""
    reader = codec.HeartbeatReader()
    for one in (
        report(holding(1), holding(2)),
        report(holding(2), holding(3), waiting=3),
        report(holding(2, memory_bytes=2 * GIB), holding(3)),
        HeartbeatReport(),
        report(holding(3)),
    ):
        assert reader.read(codec.free_bytes(one)) == one


def test_a_lease_that_the_last_report_told_in_the_same_words_stays_the_same_object() -> None:
    """Comparing two reports then compares objects, not fields."""
    reader = codec.HeartbeatReader()
    before = reader.read(codec.free_bytes(report(holding(1), holding(2))))
    after = reader.read(codec.free_bytes(report(holding(2), holding(3))))
    assert after.holdings[0] is before.holdings[1]


@pytest.mark.parametrize(
    "change",
    [
        {"lease": 7},
        {"grants": [{"gpu": "GPU-1", "memory_bytes": -1, "compute_permille": 500}]},
        {"grants": "all"},
        {"attempt": {"job": "j1", "number": 0}},
    ],
    ids=str,
)
def test_a_changed_lease_is_checked_although_its_name_is_known(change: dict[str, Any]) -> None:
    """And a report that was refused leaves nothing behind."""
    reader = codec.HeartbeatReader()
    good = codec.free_bytes(report(holding(1)))
    reader.read(good)
    document = json.loads(good)
    document["holdings"][0].update(change)
    for _ in range(2):
        with pytest.raises(RequestError):
            reader.read(json.dumps(document).encode())
    assert reader.read(good) == report(holding(1))


@pytest.mark.parametrize("held", ["all", {"l-1": {}}, ["l-1"], [None], [[]]], ids=str)
def test_what_is_held_is_a_list_of_leases(held: object) -> None:
    """Anything else is refused as unreadable."""
    with pytest.raises(codec.Unreadable):
        codec.HeartbeatReader().read(json.dumps({"holdings": held}).encode())


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ('{"holdings":[],"waiting":1}', False),
        (f'{{"holdings":[],"waiting":1,"note":"{"7" * 30}"}}', False),
        (f'{{"holdings":[],"waiting":{"7" * 30}}}', True),
        ('{"holdings":[],"troubles":[["GPU-1","\\ud800"]]}', True),
        ('{"holdings":[],"troubles":[["GPU-1","\\uD83D\\uDE00"]]}', False),
    ],
)
def test_numbers_beyond_64_bits_and_halves_of_characters_are_refused(text: str, *, is_refused: bool) -> None:
    """Neither can be stored; many digits in a text are no number."""
    if is_refused:
        with pytest.raises(codec.Unreadable):
            codec.HeartbeatReader().read(text.encode())
    else:
        codec.HeartbeatReader().read(text.encode())
