"""Measure the history: CPU of a sample and of a minute's write, the size of a month, and how fast it is read.

The recorder, the loop's state and the file are the product's own; the samples are made up: 8 GPUs with 64
leases that work, rest and change every six hours. CPU is that of the process, the file's thread included.

    .venv/bin/python bench/history.py
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from common import ms, print_conditions

from gpushared.config.history_settings import HistoryConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.grouping import Grouping, windows
from gpushared.domain.accounting.summary import summary_of
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Active, ContainerId, Ended, Finished, Grant, Lease, LeaseId
from gpushared.domain.model.span import Span
from gpushared.node.runtime.history_recorder import HistoryRecorder
from gpushared.node.runtime.sampler import LeaseUse, Sample
from gpushared.node.runtime.use_series import SeriesSample, UseSeries
from gpushared.ports import GpuReading
from gpushared.storage.history import HistoryFile, SqliteHistory
from gpushared.storage.history.history_export import ExportKind
from gpushared.storage.history.hour_use import MINUTE_MS
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, SeriesName, SourceName
from gpushared.testing import MemoryJournal, fake_lease

GPUS, LEASES, HOURS, LEASE_HOURS = 8, 64, 720, 6
GPU_MIB = 80_000
BEGIN = 1_760_000_000
ONE_GPU = SeriesName("bench", "GPU-0003")
RANDOM = random.Random(1)


def gpu(number: int) -> Gpu:
    return Gpu(GpuId(f"GPU-{number:04}"), number, "NVIDIA H100 80GB HBM3", GPU_MIB * MIB, GPU_MIB * MIB)


def lease(number: int, at: float) -> Lease:
    grant = Grant(GpuId(f"GPU-{number % GPUS:04}"), GPU_MIB * MIB // 8, 125)
    state = Active((grant,), ContainerId(f"c{number}"), at)
    made = replace(fake_lease(number), state=state, held_since=at, created_at=at)
    return replace(made, id=LeaseId(f"l-{number:06}"), image="registry.example/train:latest")


class World:
    """Stands in for the loop and the sampler: a state that stays, and a sample of it at any time."""

    def __init__(self) -> None:
        self.at = float(BEGIN)
        leases = {one.id: one for one in (lease(number, self.at) for number in range(LEASES))}
        gpus = {one.id: one for one in map(gpu, range(GPUS))}
        self.state = NodeState(gpus=gpus, leases=leases)
        self.observers: list[Callable[..., None]] = []
        self.newest = Sample()
        self.pause_seconds = 1.0

    def now(self) -> float:
        return self.at

    def tick(self) -> None:
        self.at += 1.0
        readings = {one: GpuReading(one, 60_000 * MIB, RANDOM.random(), 60, 400.0) for one in self.state.gpus}
        uses = {
            (one.id, grant.gpu): LeaseUse(RANDOM.randrange(10_000) * MIB, RANDOM.random())
            for one in self.state.leases.values()
            for grant in one.grants
        }
        self.newest = Sample(self.at, readings, uses=uses)


async def cost_of_recording(folder: Path, minutes: int) -> None:
    world = World()
    recorder = HistoryRecorder(
        cast("Any", world),
        cast("Any", world),
        MemoryJournal(),
        SqliteHistory(folder / "cost.db"),
        Troubles(),
        "bench",
        HistoryConfig,
    )
    samples, writes, blocked = [], [], []
    for _ in range(minutes):
        for _ in range(60):
            world.tick()
            began = time.process_time()
            recorder._take_sample(world.newest)  # noqa: SLF001 - what the recorder does each second
            samples.append(time.process_time() - began)
        began, clock = time.process_time(), time.perf_counter()
        recorder._gather_uses()  # noqa: SLF001 - the part that the loop waits for
        blocked.append(time.perf_counter() - clock)
        await recorder._write()  # noqa: SLF001 - what the recorder does each minute
        writes.append(time.process_time() - began)
    a_minute = 60 * statistics.mean(samples) + statistics.mean(writes)
    print(f"{GPUS} GPUs, {LEASES} leases, {minutes} minutes")
    print(f"  a sample           {ms(statistics.mean(samples))} of CPU")
    print(f"  a minute's write   {ms(statistics.mean(writes))} of CPU")
    print(f"  the loop waits     {ms(statistics.median(blocked))} for it (median)")
    print(f"  together           {a_minute / 60:.3%} of a core (aim 0.3 %)")
    await recorder._history.close()  # noqa: SLF001 - its own


def a_month(folder: Path) -> None:
    path = folder / "month.db"
    history, source = HistoryFile(path, busy_seconds=5.0), SourceName("bench", 1)
    facts = tuple(GpuFacts(one.id, one.label, one.name, GPU_MIB) for one in map(gpu, range(GPUS)))
    number, spans = 0, 0
    live: list[Lease] = []
    for hour in range(HOURS):
        at = BEGIN + hour * 3600
        ended: list[Lease] = []
        if hour % LEASE_HOURS == 0:
            ended = [replace(one, state=Ended(Finished(0), float(at))) for one in live]
            live = [lease(number + one, float(at)) for one in range(LEASES)]
            number += LEASES
        over = []
        for one in ended:
            spans += 2
            began = round(one.created_at * 1000)
            waited = Span(one.id, "lab", began - 600_000, began)
            held = Span(
                one.id, "lab", began, at * 1000, GpuId(f"GPU-{one.sequence % GPUS:04}"), 125, 10_000 * MIB
            )
            over += [(spans - 1, waited), (spans, held)]
        uses = {(one.id, grant.gpu): series_of(at) for one in live for grant in one.grants}
        uses |= {("", one.id): series_of(at) for one in map(gpu, range(GPUS))}
        leases = tuple(map(summary_of, [*ended, *live]))
        waits = {(one.id, "resources"): 600_000 for one in live}
        history.write(HistoryBatch(source, (at + 3600) * 1000, 0, facts, leases, over, (), waits, uses))
    history.close()
    size = path.stat().st_size / 1e6
    print(f"a month: {number} leases, {HOURS} hours x {GPUS + LEASES} series: {size:.1f} MB (aim 60 MB)")
    read(path)


def series_of(at: int) -> list[Any]:
    series = UseSeries(1)
    for minute in range(60):
        seen = SeriesSample(125, 10_000, RANDOM.random(), RANDOM.randrange(10_000), 400.0)
        series.take(at * 1000 + minute * MINUTE_MS + 1, seen, MINUTE_MS)
    return series.changes()


def read(path: Path) -> None:
    history = HistoryFile(path, busy_seconds=5.0)
    window = (BEGIN * 1000, (BEGIN + HOURS * 3600) * 1000)
    month = HistoryFilter(*window)
    asked: list[tuple[str, str, Callable[[], object]]] = [
        ("a GPU's month by hours", "30 ms", lambda: history.points(ONE_GPU, *window, by_hour=True)),
        ("the same by minutes", "", lambda: history.points(ONE_GPU, *window)),
        ("a month's accounts (usage, waste)", "1 s", lambda: history.accounts(month)),
        ("a month's waits", "1 s", lambda: history.waits(month)),
        ("a month's accounts day by day", "1 s", lambda: by_day(history)),
        ("the newest 100 leases", "", lambda: history.leases(month, 100)),
        ("the queue as a lease found it", "30 ms", lambda: history.queue_then(1, "l-004000")),
        *(
            (f"a page of an export of {kind}", "", lambda kind=kind: history.export(kind, month, ""))  # type: ignore[misc]  # a lambda has no types
            for kind in ExportKind
        ),
    ]
    for name, aim, ask in asked:
        ask()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            ask()
            times.append(time.perf_counter() - began)
        print(f"  {name:36} {ms(statistics.median(times))}{f' (aim {aim})' if aim else ''}")
    history.close()


def by_day(history: HistoryFile) -> None:
    for window in windows(Grouping.DAY, BEGIN * 1000, (BEGIN + HOURS * 3600) * 1000):
        history.accounts(HistoryFilter(window.since_ms, window.until_ms))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=20, help="how many minutes are recorded (20)")
    minutes = parser.parse_args().minutes
    print_conditions()
    with tempfile.TemporaryDirectory(prefix="gsb-") as folder:
        asyncio.run(cost_of_recording(Path(folder), minutes))
        a_month(Path(folder))


if __name__ == "__main__":
    main()
