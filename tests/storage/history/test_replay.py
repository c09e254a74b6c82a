"""The queue as a lease found it is read from the history: who held what, and who was before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.accounting.replay import GpuThen, OthersPart, QueueThen
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.storage.history import HistoryFile
from gpushared.storage.history.records import GpuFacts, HistoryBatch, SourceName
from gpushared.testing import fake_lease

GPU, OTHER = GpuId("GPU-0"), GpuId("GPU-1")
MINE = "l-3"
ROOM = {"resources": 5}


def lease(number: int, created_ms: int) -> LeaseSummary:
    made = summary_of(fake_lease(number))
    return replace(made, lease=LeaseId(f"l-{number}"), created_at=created_ms / 1000)


def span(number: int, start: int, end: int, gpu: GpuId | None = GPU) -> Span:
    return Span(LeaseId(f"l-{number}"), "p", start, end, gpu, 500 if gpu else 0, 40_000 * MIB if gpu else 0)


def read(
    tmp_path: Path, *spans: Span, waits: Mapping[str, Mapping[str, int]], still: tuple[Span, ...] = ()
) -> QueueThen | None:
    """Leases 1 to 5 asked one after the other; the third is the one that is looked at."""
    tmp_path.mkdir(exist_ok=True)
    history = HistoryFile(tmp_path / "history.db", busy_seconds=1.0)
    history.write(
        HistoryBatch(
            SourceName("box", 1),
            100_000,
            gpus=(GpuFacts(GPU, "0", "H100", 80_000), GpuFacts(OTHER, "1", "H100", 80_000)),
            leases=[lease(number, number) for number in range(1, 6)],
            spans=list(enumerate(spans, 1)),
            open_spans=still,
            waits={
                (LeaseId(one), reason): ms for one, found in waits.items() for reason, ms in found.items()
            },
        )
    )
    found = history.queue_then(1, MINE)
    history.close()
    return found


def test_it_has_what_others_held_of_the_same_gpu_and_who_was_before(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        span(1, 0, 50),
        span(1, 0, 50, OTHER),
        span(2, 10, 60, None),
        span(5, 20, 70, None),
        span(4, 30, 400, None),
        span(3, 10, 100, None),
        span(3, 100, 200),
        waits={MINE: ROOM, "l-2": ROOM, "l-5": ROOM},
        still=(span(2, 60, 900),),
    )
    held = [OthersPart(0, 50, 500, 40_000), OthersPart(60, 900, 500, 40_000)]
    # The fourth asked later and was served later; the fifth asked later, and was served before.
    assert found == QueueThen(10, 100, [GpuThen(80_000, held)], [(10, 60), (20, 70)])


@pytest.mark.parametrize("reason", ["project_limit", "begin_time", "held"])
def test_a_wait_for_something_else_than_room_says_nothing(tmp_path: Path, reason: str) -> None:
    waits = {MINE: {**ROOM, reason: 1}}
    assert read(tmp_path, span(3, 10, 100, None), span(3, 100, 200), waits=waits) is None


def test_a_lease_that_started_at_once_or_waits_still_has_no_queue(tmp_path: Path) -> None:
    assert read(tmp_path, span(3, 100, 200), waits={}) is None
    assert read(tmp_path / "other", waits={MINE: ROOM}, still=(span(3, 10, 100, None),)) is None


@pytest.mark.parametrize(("reason", "ahead"), [("held", []), ("resources", [(5, 90)])])
def test_nobody_keeps_room_for_a_request_that_is_held(
    tmp_path: Path, reason: str, ahead: list[tuple[int, int]]
) -> None:
    waits = {MINE: ROOM, "l-1": {reason: 9}}
    found = read(tmp_path, span(1, 5, 90, None), span(3, 10, 100, None), span(3, 100, 200), waits=waits)
    assert found is not None
    assert found.ahead == ahead
