"""Record the history of a node: samples, spans, waits and summaries, written each minute.

The journal has every span and every lease's end, so a crash loses the samples of the last minute and nothing
else. A history that cannot be written raises a trouble; the leases go on, and the waiting
records are written later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from gpushared.config.history_settings import HistoryConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.leases.node_state import NodeState, Step, open_spans
from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE, Gpu
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import milliseconds
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.net.history_recent import UsePoint
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sample, Sampler
from gpushared.node.runtime.use_series import RECENT_STEP_SECONDS, SeriesSample, UseSeries
from gpushared.ports import Journal, PastLeases
from gpushared.storage.history.history_file import SqliteHistory
from gpushared.storage.history.history_writer import HistoryWriter
from gpushared.storage.history.hour_use import HourUse, merged
from gpushared.storage.history.records import (
    GpuFacts,
    HistoryBatch,
    KeepHistory,
    SeriesKey,
    SourceName,
)

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
WAIT_SECONDS = 10
"""The reasons of waits are looked at this often, in a long queue once a minute."""
LONG_QUEUE = 200
WRITE_SECONDS = 60.0
MAX_SAMPLE_SECONDS = 15.0
"""A sample stands for the time since the one before, but for no longer than this, or than the pause between
two samples."""
MAX_SERIES_WAITING = 20_000
"""The growth of so many series is kept while the history cannot be written."""
SPANS_PER_WRITE = 5000
MAX_SUMMARIES = 20_000
MAX_HOURS = 72
"""Keep so many hours of each series in memory while the history cannot be written."""
PAST_PER_READ = 1000
RETRY_SECONDS = 30.0
PRUNE_SECONDS = 3600.0
PART = "history"
HELD = "held"
"""The reason of a lease that a user keeps from starting."""


class HistoryRecorder(HistoryWriter):
    """Gather what happens, and write it by ``run`` as long as the daemon runs."""

    def __init__(
        self,
        loop: Loop,
        sampler: Sampler,
        journal: Journal,
        history: SqliteHistory,
        troubles: Troubles,
        node_name: str,
        config: Callable[[], HistoryConfig],
    ) -> None:
        super().__init__(troubles, PART, "the history")
        self._loop = loop
        self._sampler = sampler
        self._journal = journal
        self._history = history
        self._node_name = node_name
        self._config = config
        self._source: SourceName | None = None
        self._series: dict[SeriesKey, UseSeries] = {}
        self._growth: dict[SeriesKey, dict[int, HourUse]] = {}
        """The growth of each series by hour, which the history does not have yet."""
        self._in_doubt: HistoryBatch | None = None
        """A batch that may have been written; it is written again before any other."""
        self._number = 0
        self._summaries: dict[LeaseId, LeaseSummary] = {}
        self._missed_summaries = False
        self._waits: dict[tuple[LeaseId, str], int] = {}
        self._gpus: tuple[GpuFacts, ...] = ()
        self._sampled_at: float | None = None
        self._waits_at = loop.now()
        self._prune_at = 0.0
        loop.observers.append(self._observe)

    async def run(self) -> None:
        """Record for ever."""
        due = time.monotonic() + WRITE_SECONDS
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._take_sample(self._sampler.newest)
            self._take_waits()
            if time.monotonic() >= due:
                self._gather_uses()
                ok = await self._try_to_write() and await self._attempt(self._prune_now_and_then)
                due = time.monotonic() + (WRITE_SECONDS if ok else RETRY_SECONDS)

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs that the node has now, in the order of their indices."""
        return _facts(sorted(self._loop.state.gpus.values(), key=lambda gpu: (gpu.index, gpu.label)))

    def points(self, gpu: str, since_ms: int) -> list[UsePoint]:
        """Return the samples of a GPU that are in memory, one each ten seconds; times are of the day."""
        series = self._series.get(("", gpu))
        if series is None:
            return []
        ahead_ms = milliseconds(self._loop.state.ahead_seconds)
        return [
            UsePoint(at_ms + ahead_ms, RECENT_STEP_SECONDS * 1000, use_ratio, memory_mib)
            for at_ms, use_ratio, memory_mib in series.recent.points(since_ms - ahead_ms)
        ]

    # --- gathering -------------------------------------------------------------------------------------

    def _observe(self, _before: NodeState, step: Step) -> None:
        for lease in step.changed:
            if lease.id in self._summaries or len(self._summaries) < MAX_SUMMARIES:
                self._summaries[lease.id] = summary_of(lease)
            else:
                self._missed_summaries = True

    def _take_sample(self, sample: Sample) -> None:
        if sample.at <= (self._sampled_at or 0.0):
            return
        since, self._sampled_at = self._sampled_at, sample.at
        if since is None:
            return  # nobody knows for how long the first sample stands
        at_ms = milliseconds(sample.at)
        longest_seconds = max(MAX_SAMPLE_SECONDS, 1.5 * self._sampler.pause_seconds)
        ms = milliseconds(min(longest_seconds, sample.at - since))
        state = self._loop.state
        for gpu_id, reading in sample.readings.items():
            gpu = state.gpus.get(gpu_id)
            memory = None if reading.memory_used_bytes is None else reading.memory_used_bytes // MIB
            held_mib = 0 if gpu is None else gpu.leasable_bytes // MIB
            series_sample = SeriesSample(
                WHOLE_PERMILLE, held_mib, reading.utilization_ratio, memory, reading.power_watts
            )
            self._series_of("", gpu_id).take(at_ms, series_sample, ms)
        for lease in state.holders():
            held_ms = milliseconds(sample.at - (lease.holds_since or sample.at))
            for grant in lease.grants:
                use = sample.uses.get((lease.id, grant.gpu))
                if use is None or held_ms <= 0:
                    continue
                memory = None if use.memory_bytes is None else use.memory_bytes // MIB
                size = permille_of([grant], state.gpus)
                series_sample = SeriesSample(size, grant.memory_bytes // MIB, use.utilization_ratio, memory)
                self._series_of(lease.id, grant.gpu).take(at_ms, series_sample, min(ms, held_ms))

    def _series_of(self, lease: str, gpu: str) -> UseSeries:
        key = (lease, gpu)
        if key not in self._series:
            self._series[key] = UseSeries(self._config().recent_hours)
        return self._series[key]

    def _take_waits(self) -> None:
        now = self._loop.now()
        if now - self._waits_at < WAIT_SECONDS:
            return
        waiting = self._loop.state.waiting()
        if len(waiting) > LONG_QUEUE and now - self._waits_at < WRITE_SECONDS:
            return
        since, self._waits_at = self._waits_at, now
        if not waiting:
            return
        decisions = self._loop.outlook().decisions
        for lease in waiting:
            decision = decisions.get(lease.id)
            reason = HELD if lease.held_by else "" if decision is None else str(decision.reason or "")
            ms = milliseconds(now - max(since, lease.waits_since or now))
            if reason and ms > 0:
                self._waits[lease.id, reason] = self._waits.get((lease.id, reason), 0) + ms

    # --- writing ---------------------------------------------------------------------------------------

    async def _write(self) -> None:
        source = await self._resume_source()
        if self._missed_summaries:
            await self._read_summaries(source)
        self._gather_uses()
        if self._in_doubt is not None:
            await self._write_batch(self._in_doubt)
        more = True
        while more:
            more = await self._write_batch(await self._next_batch(source))

    async def _next_batch(self, source: SourceName) -> HistoryBatch:
        spans = await self._journal.spans(SPANS_PER_WRITE)
        state, now = self._loop.state, self._loop.now()
        gpus = _facts(state.gpus.values())
        growth = {key: tuple(hours.values()) for key, hours in self._growth.items()}
        self._growth.clear()
        self._number += 1
        return HistoryBatch(
            source,
            milliseconds(now),
            milliseconds(state.ahead_seconds),
            () if gpus == self._gpus else gpus,
            tuple(self._summaries.values()),
            spans,
            open_spans(state, now),
            dict(self._waits),
            growth=growth,
            number=self._number,
        )

    async def _write_batch(self, batch: HistoryBatch) -> bool:
        """Write a batch, and return True if the journal may have more spans."""
        self._in_doubt = batch
        await self._history.write(batch)
        self._in_doubt = None
        self._gpus = tuple(batch.gpus) or self._gpus
        written = {summary.lease: summary for summary in batch.leases}
        self._summaries = {
            lease: summary for lease, summary in self._summaries.items() if summary is not written.get(lease)
        }
        state = self._loop.state
        self._waits = {key: ms for key, ms in self._waits.items() if key[0] in state.leases}
        if batch.spans:
            await self._journal.forget_spans(batch.spans[-1][0])
        return len(batch.spans) == SPANS_PER_WRITE

    def _gather_uses(self) -> None:
        """Move the changes of each series to the records to write, and drop the series of past holders."""
        held_series = {
            (lease.id, grant.gpu) for lease in self._loop.state.holders() for grant in lease.grants
        }
        for key, series in list(self._series.items()):
            lease, gpu = key
            hours = self._growth.setdefault(key, {})
            for hour in series.changes():
                hours[hour.hour] = merged(hours[hour.hour], hour) if hour.hour in hours else hour
            for oldest in sorted(hours)[:-MAX_HOURS]:
                del hours[oldest]
            if not hours:
                del self._growth[key]
            if key not in held_series if lease else gpu not in self._loop.state.gpus:
                del self._series[key]
        for oldest_key in list(self._growth)[: max(0, len(self._growth) - MAX_SERIES_WAITING)]:
            del self._growth[oldest_key]

    async def _resume_source(self) -> SourceName:
        """Return the source, after reading what an earlier run of the daemon has written."""
        if self._source is not None:
            return self._source
        source = SourceName(self._node_name, await self._journal.identity())
        resumption = await self._history.resume(source)
        identity = await self._journal.identity(resumption.newest_span)
        if identity != source.journal:
            log.warning("the journal is an older copy: its leases are new ones to the history")
            source = SourceName(self._node_name, identity)
            resumption = await self._history.resume(source)
        await self._take_summaries(resumption.newest_ended_at)
        for wait, ms in resumption.waits.items():
            self._waits[wait] = self._waits.get(wait, 0) + ms
        self._number = resumption.batch
        self._source = source
        return source

    async def _read_summaries(self, source: SourceName) -> None:
        """Read from the journal the summaries that found no room in memory."""
        self._missed_summaries = False
        await self._take_summaries((await self._history.resume(source)).newest_ended_at)

    async def _take_summaries(self, newest_ended_at: float | None) -> None:
        """Take the leases that are not over, and those that ended since the history's newest."""
        for lease in self._loop.state.leases.values():
            self._summaries[lease.id] = summary_of(lease)
        if newest_ended_at is None:
            return
        before: tuple[float, int] | None = None
        while True:
            past = PastLeases(since=newest_ended_at, before=before)
            leases, more = await self._journal.past(past, PAST_PER_READ)
            for lease in leases:
                self._summaries[lease.id] = summary_of(lease)
            if not more:
                return
            last = summary_of(leases[-1])
            before = (last.ended_at or 0.0, leases[-1].sequence)

    async def _prune_now_and_then(self) -> None:
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            config = self._config()
            keep = KeepHistory(config.keep_minutes_days, config.keep_hours_days)
            await self._history.prune(keep, milliseconds(self._loop.now()))


def _facts(gpus: Iterable[Gpu]) -> tuple[GpuFacts, ...]:
    return tuple(GpuFacts(gpu.id, gpu.label, gpu.name, gpu.leasable_bytes // MIB) for gpu in gpus)
