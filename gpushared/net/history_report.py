"""Report on one lease: its curve, its waits, and what it could have asked for instead."""

from __future__ import annotations

from gpushared.api.v1 import history_pb2
from gpushared.domain.accounting.advice import Course, notes
from gpushared.domain.accounting.curve import CurvePoint, UseSample, curve, idle_at_end_ms
from gpushared.storage.history.history_file import SqliteHistory
from gpushared.storage.history.hour_use import HOUR_MS
from gpushared.storage.history.records import HistoryFilter, LeaseHistory, SeriesName

FINISHED = "finished"
OVER_LIMIT = "over_limit"
LONG_RUN_MS = 3 * 24 * HOUR_MS
"""The curve of a longer run is read by hours."""


async def lease_report(
    history: SqliteHistory, lease: LeaseHistory, points: int, now_ms: int
) -> history_pb2.LeaseReport:
    """Return the report on a lease; its summary is left to the caller."""
    lease_filter = HistoryFilter(source=lease.source, lease=lease.summary.lease)
    until_ms = lease.ended_ms or now_ms
    samples = [sample for gpu in lease.gpus for sample in await _samples(history, lease, gpu, until_ms)]
    rows = await history.accounts(lease_filter)
    ratios = [ratio for row in rows if (ratio := row.account.use_of_held_ratio) is not None]
    waits = await history.waits(lease_filter)
    report = history_pb2.LeaseReport(
        reasons=[
            history_pb2.ReasonWait(reason=reason, waited_ms=ms)
            for wait in waits
            for reason, ms in sorted(wait.reasons.items(), key=lambda item: -item[1])
        ],
        worst_gpu_ratio=min(ratios) if len(ratios) > 1 else None,
        notes=[
            history_pb2.ReportNote(kind=note.kind, text=note.text, mend=note.mend)
            for note in notes(await _course(history, lease, samples, until_ms))
        ],
    )
    if lease.started_ms is not None:
        mib_on_each = (lease.held_mib or 0) / max(1, len(lease.gpus))
        curve_points = curve(samples, lease.started_ms, until_ms, points)
        report.curve.extend(_point(point, mib_on_each) for point in curve_points)
    return report


async def _samples(history: SqliteHistory, lease: LeaseHistory, gpu: str, until_ms: int) -> list[UseSample]:
    name = SeriesName(lease.node, gpu, lease.summary.lease, lease.source)
    since_ms = lease.started_ms or lease.created_ms
    by_hour = until_ms - since_ms > LONG_RUN_MS
    points = await history.points(name, since_ms, until_ms, by_hour=by_hour)
    return [
        UseSample(
            point.at_ms,
            point.minute.seen_seconds,
            point.minute.use_mean_ratio,
            point.minute.use_max_ratio,
            point.minute.memory_mean_mib,
            point.length_ms,
        )
        for point in points
    ]


async def _course(
    history: SqliteHistory, lease: LeaseHistory, samples: list[UseSample], until_ms: int
) -> Course:
    summary = lease.summary
    return Course(
        account=lease.account,
        gpu_count=max(1, len(lease.gpus)),
        asked_share=summary.memory_bytes is None,
        is_over=lease.ended_ms is not None,
        ended_by_itself=summary.outcome == FINISHED,
        was_over_limit=summary.outcome == OVER_LIMIT,
        ran_ms=lease.run_ms,
        idle_at_end_ms=idle_at_end_ms(samples, lease.started_ms or until_ms, until_ms),
        time_limit_seconds=summary.time_limit_seconds,
        peak_mib=lease.peak_mib,
        held_mib=lease.held_mib,
        queue=await history.queue_then(lease.source, summary.lease),
    )


def _point(point: CurvePoint, held_mib: float) -> history_pb2.UsePoint:
    return history_pb2.UsePoint(
        at=point.at_ms / 1000,
        use_ratio=point.use_ratio,
        use_max_ratio=point.use_max_ratio,
        memory_ratio=None if point.memory_mib is None or not held_mib else point.memory_mib / held_mib,
    )
