"""Report on one lease: its curve, its waits, and what it could have asked for instead."""

from __future__ import annotations

from gpushared.api.v1 import history_pb2
from gpushared.domain.accounting.advice import Course, notes
from gpushared.domain.accounting.curve import CurvePoint, UseSample, curve, idle_at_end_ms
from gpushared.storage.history.history_file import SqliteHistory
from gpushared.storage.history.hour_use import HOUR_MS
from gpushared.storage.history.records import HistoryFilter, LeaseHistory, SeriesName

FINISHED = "finished"
LONG_RUN_MS = 3 * 24 * HOUR_MS
"""The curve of a longer run is read by hours."""


async def lease_report(
    history: SqliteHistory, one: LeaseHistory, points: int, now_ms: int
) -> history_pb2.LeaseReport:
    """Return the report on a lease; its summary is left to the caller."""
    wanted = HistoryFilter(source=one.source, lease=one.summary.lease)
    until_ms = one.ended_ms or now_ms
    samples = [sample for gpu in one.gpus for sample in await _samples(history, one, gpu, until_ms)]
    ratios = [of_gpu.account.use_of_held_ratio for of_gpu in await history.accounts(wanted)]
    known = [ratio for ratio in ratios if ratio is not None]
    reasons = [wait.reasons for wait in await history.waits(wanted)]
    report = history_pb2.LeaseReport(
        reasons=[
            history_pb2.ReasonWait(reason=reason, waited_ms=ms)
            for found in reasons
            for reason, ms in sorted(found.items(), key=lambda item: -item[1])
        ],
        worst_gpu_ratio=min(known) if len(known) > 1 else None,
        notes=[
            history_pb2.ReportNote(kind=note.kind, text=note.text, mend=note.mend)
            for note in notes(await _course(history, one, samples, until_ms))
        ],
    )
    if one.started_ms is not None:
        found = curve(samples, one.started_ms, until_ms, points)
        each_mib = (one.held_mib or 0) / max(1, len(one.gpus))
        report.curve.extend(_point(point, each_mib) for point in found)
    return report


async def _samples(history: SqliteHistory, one: LeaseHistory, gpu: str, until_ms: int) -> list[UseSample]:
    name = SeriesName(one.node, gpu, one.summary.lease, one.source)
    since_ms = one.started_ms or one.created_ms
    by_hour = until_ms - since_ms > LONG_RUN_MS
    found = await history.points(name, since_ms, until_ms, by_hour=by_hour)
    return [
        UseSample(
            point.at_ms,
            point.minute.seen_seconds,
            point.minute.use_mean_ratio,
            point.minute.use_max_ratio,
            point.minute.memory_mean_mib,
            point.length_ms,
        )
        for point in found
    ]


async def _course(
    history: SqliteHistory, one: LeaseHistory, samples: list[UseSample], until_ms: int
) -> Course:
    asked = one.summary
    return Course(
        account=one.account,
        gpu_count=max(1, len(one.gpus)),
        asked_share=asked.memory_bytes is None,
        is_over=one.ended_ms is not None,
        ended_by_itself=asked.outcome == FINISHED,
        ran_ms=one.run_ms,
        idle_at_end_ms=idle_at_end_ms(samples, one.started_ms or until_ms, until_ms),
        time_limit_seconds=asked.time_limit_seconds,
        peak_mib=one.peak_mib,
        held_mib=one.held_mib,
        queue=await history.queue_then(one.source, asked.lease),
    )


def _point(point: CurvePoint, held_mib: float) -> history_pb2.UsePoint:
    return history_pb2.UsePoint(
        at=point.at_ms / 1000,
        use_ratio=point.use_ratio,
        use_max_ratio=point.use_max_ratio,
        memory_ratio=None if point.memory_mib is None or not held_mib else point.memory_mib / held_mib,
    )
