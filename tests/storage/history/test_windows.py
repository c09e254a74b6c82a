"""The accounts of days or other pieces of a time add up to the account of the whole, over random histories."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.summary import summary_of
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.node.runtime.use_series import SeriesSample, UseSeries
from gpushared.storage.history import HistoryFile
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS, HourUse
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, SourceName
from gpushared.testing import fake_lease

BEGIN = 490_000 * HOUR_MS
GPU = GpuId("GPU-0")
HOURS = 4
END = BEGIN + HOURS * HOUR_MS
moments = st.integers(BEGIN, END)
runs = st.lists(
    st.tuples(st.integers(0, HOURS * 60 - 1), st.integers(1, 90), st.sampled_from([0.0, 0.3, 1.0])),
    min_size=1,
    max_size=4,
)


def written(folder: Path, played: list[tuple[int, int, float]], ahead_ms: int) -> HistoryFile:
    """A history in which each lease of ``played`` held a quarter from a minute on, and used it so much."""
    history = HistoryFile(folder / "history.db", busy_seconds=1.0)
    leases, spans = [], []
    uses: dict[tuple[str, str], list[HourUse]] = {}
    for at, (minute, length, use) in enumerate(played):
        lease = LeaseId(f"l-{at}")
        begin, end = BEGIN + minute * MINUTE_MS, min(END, BEGIN + (minute + length) * MINUTE_MS)
        leases.append(replace(summary_of(fake_lease(at)), lease=lease, created_at=begin / 1000))
        spans.append((at + 1, Span(lease, "p", begin, end, GPU, 250, 20_000 * MIB)))
        series = UseSeries(1)
        for at_ms in range(begin + 5000, end, 10_000):
            series.take(at_ms, SeriesSample(250, 20_000, use, 5_000), 10_000)
        uses[str(lease), str(GPU)] = series.changes()
    facts = (GpuFacts(GPU, "0", "H100", 80_000),)
    source = SourceName("box", 1)
    history.write(HistoryBatch(source, END, ahead_ms, facts, leases, spans, (), {}, uses))
    return history


def account(history: HistoryFile, since_ms: int, until_ms: int) -> Account:
    found = history.accounts(HistoryFilter(since_ms, until_ms))
    return sum((one.account for one in found), Account())


@given(runs, st.lists(moments, max_size=5), st.integers(-HOUR_MS, HOUR_MS))
@settings(max_examples=40)
def test_pieces_of_a_time_add_up_to_the_whole(
    played: list[tuple[int, int, float]], cuts: list[int], ahead_ms: int
) -> None:
    bounds = [moment + ahead_ms for moment in sorted({BEGIN, *cuts, END})]
    with TemporaryDirectory() as folder:
        history = written(Path(folder), played, ahead_ms)
        whole = account(history, bounds[0], bounds[-1])
        pieces = [account(history, *bound) for bound in pairwise(bounds)]
        history.close()
    total = sum(pieces, Account())
    assert (total.held_permille_ms, total.held_mib_ms) == (whole.held_permille_ms, whole.held_mib_ms)
    for name in ("active_permille_ms", "idle_permille_ms", "used_permille_ms", "memory_used_mib_ms"):
        # An hour that is cut loses less than a unit for each piece.
        lost = getattr(whole, name) - getattr(total, name)
        assert 0 <= lost <= len(bounds) * len(played) * HOURS, name
