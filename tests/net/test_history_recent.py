"""The last hour of each GPU: its use in steps, and who held it, as far as the caller may see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.api.v1 import history_pb2
from gpushared.config.history_settings import Others
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Caller
from gpushared.net.history_recent import RecentTime, UsePoint, read_time, recent, steps
from gpushared.net.history_service import HistoryApi, Rights
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter
from tests.net.test_history_service import ALICE, BEGIN, BOB, BOX, GPU, ROOT, history, span, summary, worked

__all__ = ["history"]
FACTS = GpuFacts(GPU, "0", "H100", 80_000)
HOUR = RecentTime(BEGIN, BEGIN + HOUR_MS, 10 * MINUTE_MS)
NOW = BEGIN / 1000 + 3600


class InMemory:
    """The samples of a daemon that started in the hour's last ten minutes."""

    def gpus(self) -> list[GpuFacts]:
        return [FACTS]

    def points(self, gpu: str, since_ms: int) -> list[UsePoint]:
        assert gpu == GPU
        begin = BEGIN + 50 * MINUTE_MS
        return [
            UsePoint(begin + second * 1000, 10_000, 0.9, 8_000)
            for second in range(0, 600, 10)
            if begin + second * 1000 >= since_ms
        ]


async def of_gpu(history: SqliteHistory, asked: RecentTime = HOUR) -> None:
    """The GPU itself was half used from the first minute to the last one."""
    series = worked((0, 60), 0.5, 6_000)
    await history.write(HistoryBatch(BOX, BEGIN + HOUR_MS, uses={("", GPU): series.changes()}))


async def test_steps_come_from_the_file_and_the_newest_from_memory(history: SqliteHistory) -> None:
    await of_gpu(history)
    (gpu,) = await recent(history, InMemory(), HOUR, HistoryFilter())
    assert (gpu.uuid, gpu.label, gpu.name) == (GPU, "0", "H100")
    assert [round(step.use_ratio, 6) for step in gpu.steps] == [*[0.5] * 5, 0.9]
    assert [step.memory_used_bytes for step in gpu.steps] == [*[6_000 * MIB] * 5, 8_000 * MIB]
    assert [step.at for step in gpu.steps] == [(BEGIN + ten * 10 * MINUTE_MS) / 1000 for ten in range(6)]


async def test_holdings_are_cut_to_the_time_and_name_the_share(history: SqliteHistory) -> None:
    asked = RecentTime(BEGIN + 20 * MINUTE_MS, BEGIN + 50 * MINUTE_MS, MINUTE_MS)
    (gpu,) = await recent(history, InMemory(), asked, HistoryFilter())
    held = [(one.owner, one.lease, one.since, one.until, one.share_permille) for one in gpu.holdings]
    minute = [(BEGIN + number * MINUTE_MS) / 1000 for number in range(61)]
    assert held == [
        ("alice", "l-1", minute[20], minute[30], 875),
        ("bob", "l-2", minute[30], minute[50], 250),
    ]


async def test_a_lease_that_still_holds_is_there(history: SqliteHistory) -> None:
    await history.write(
        HistoryBatch(
            BOX,
            BEGIN + HOUR_MS,
            leases=(summary(3, BOB, (55, 99), ended_at=None, outcome=""),),
            open_spans=(span(3, (55, 60)),),
        )
    )
    (gpu,) = await recent(history, InMemory(), HOUR, HistoryFilter(lease=LeaseId("l-3")))
    assert [(one.owner, one.memory_bytes) for one in gpu.holdings] == [("bob", 20_000 * MIB)]


@pytest.mark.parametrize(
    ("others", "caller", "owners"),
    [
        (Others.LEASES, BOB, {"alice", "bob"}),
        (Others.TOTALS, BOB, {"bob"}),
        (Others.NOTHING, ALICE, {"alice"}),
        (Others.NOTHING, ROOT, {"alice", "bob"}),
    ],
)
async def test_who_held_is_shown_as_the_site_says(
    history: SqliteHistory, monkeypatch: pytest.MonkeyPatch, others: Others, caller: Caller, owners: set[str]
) -> None:
    monkeypatch.setattr("gpushared.net.history_service.time.time", lambda: NOW)

    async def flush() -> None:
        pass

    rights = Rights(lambda: others)
    api = HistoryApi(history, flush, rights, simulated=lambda: True, recent=InMemory())
    assert "gpushare.v1.History/Recent" in api.calls()
    answer = await api.recent(history_pb2.RecentRequest(), caller)
    assert {one.owner for gpu in answer.gpus for one in gpu.holdings} == owners
    assert answer.gpus[0].steps, "the use of a GPU is everybody's, as in gpushare gpus"
    assert (answer.step_seconds, answer.until, answer.simulated) == (60, NOW, True)


def test_a_coordinator_does_not_serve_it(tmp_path: Path) -> None:
    async def flush() -> None:
        pass

    api = HistoryApi(SqliteHistory(tmp_path / "h.db"), flush, Rights(lambda: Others.LEASES), simulated=bool)
    assert "gpushare.v1.History/Recent" not in api.calls()


def test_a_figure_that_was_not_seen_is_left_out_of_the_mean() -> None:
    points = [UsePoint(0, 10_000, None, None), UsePoint(10_000, 20_000, 0.5, None)]
    (step,) = steps(points, MINUTE_MS)
    assert step.use_ratio == 0.5
    assert not step.HasField("memory_used_bytes")


@pytest.mark.parametrize(
    "asked",
    [
        {"step_seconds": 9},
        {"step_seconds": 3601},
        {"step_seconds": -1},
        {"since": NOW + 1},
        {"since": 1.0},
        {"since": float("nan")},
        {"since": NOW - 80_000, "step_seconds": 10},
    ],
)
def test_a_time_that_is_not_possible_is_refused(asked: dict[str, float]) -> None:
    with pytest.raises(RequestError) as refused:
        read_time(history_pb2.RecentRequest(**asked), NOW)  # type: ignore[arg-type]  # the test names fields
    assert refused.value.hint


def test_the_time_begins_with_a_whole_step() -> None:
    asked = read_time(history_pb2.RecentRequest(step_seconds=600), NOW + 61)
    assert asked == RecentTime(BEGIN, round((NOW + 61) * 1000), 600_000)
