"""A question about little costs little, however long the history is: SQLite counts its own steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.accounting.summary import summary_of
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.storage.history import HistoryFile
from gpushared.storage.history.history_export import ExportKind, export
from gpushared.storage.history.history_queries import accounts, leases
from gpushared.storage.history.hour_use import HOUR_MS, HourUse
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, SourceName
from gpushared.testing import fake_lease

GPU = GpuId("GPU-0")
BEGIN = 490_000 * HOUR_MS
NODES, LEASE_HOURS = 3, 3
LEASE = "l-300"
STEPS_PER_LOOK = 100
ALL = HistoryFilter()

Question = Callable[[sqlite3.Connection], object]


def written(folder: Path, count: int) -> Path:
    """A history in which leases held a GPU one after the other, on each of the nodes."""
    path = folder / f"{count}.db"
    history = HistoryFile(path, busy_seconds=1.0)
    made = summary_of(fake_lease(1))
    summaries, spans = [], []
    uses: dict[tuple[str, str], list[HourUse]] = {}
    for number in range(count):
        lease, begin = LeaseId(f"l-{number}"), BEGIN + number * LEASE_HOURS * HOUR_MS
        end = begin + LEASE_HOURS * HOUR_MS
        summaries.append(
            replace(made, lease=lease, job=f"j-{number}", created_at=begin / 1000, ended_at=end / 1000)
        )
        spans.append((number + 1, Span(lease, "p", begin, end, GPU, 250, 20_000 * MIB)))
        first = begin // HOUR_MS
        uses[lease, GPU] = [HourUse(first + hour, seen_permille_ms=1) for hour in range(LEASE_HOURS)]
    for node in range(NODES):
        source = SourceName(f"box-{node}", 1)
        facts = (GpuFacts(GPU, "0", "H100", 80_000),)
        history.write(
            HistoryBatch(source, end, gpus=facts, leases=summaries, spans=spans, open_spans=(), uses=uses)
        )
    history.close()
    return path


def steps(path: Path, question: Question) -> int:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    db = sqlite3.connect(path)
    db.set_progress_handler(look, STEPS_PER_LOOK)
    assert question(db)
    db.close()
    return looks * STEPS_PER_LOOK


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("work")
    return written(folder, 800), written(folder, 2400)


@pytest.mark.parametrize(
    "question",
    [
        lambda db: accounts(db, HistoryFilter(lease=LEASE)),
        lambda db: leases(db, ALL, 9),
        lambda db: leases(db, HistoryFilter(job="j-300"), 9),
        lambda db: export(db, ExportKind.HOURS, ALL, "").after,
        lambda db: export(db, ExportKind.MINUTES, ALL, "").after,
    ],
    ids=["accounts of a lease", "newest leases", "leases of a job", "hours", "minutes"],
)
def test_a_longer_history_costs_no_more(files: tuple[Path, Path], question: Question) -> None:
    short, long = (steps(path, question) for path in files)
    assert long <= short * 1.2 + STEPS_PER_LOOK
