"""Answer how each GPU of a node was used in the last hour, and who held it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple, Protocol

from gpushared.api.v1 import history_pb2
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB
from gpushared.net.history_views import MS_PER_SECOND, int64
from gpushared.storage.history.history_file import SqliteHistory
from gpushared.storage.history.records import GpuFacts, HistoryFilter, Holding, SeriesName

STEP_SECONDS = 60
HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0
LEAST_STEP_SECONDS, MAX_STEP_SECONDS = 10, 3600
MAX_STEPS = 1000
MAX_HOLDINGS = 5000
"""An hour in which more leases began is answered with the newest ones."""


class UsePoint(NamedTuple):
    """Hold the use and the memory of a GPU for a while, from a moment in milliseconds of the time of day."""

    at_ms: int
    length_ms: int
    use_ratio: float | None
    memory_mib: int | None


class RecentPoints(Protocol):
    """Tell of the node's GPUs, and of their use as far as it is in memory: finer and newer than in the file."""

    def gpus(self) -> Sequence[GpuFacts]: ...

    def points(self, gpu: str, since_ms: int) -> Sequence[UsePoint]: ...


class RecentTime(NamedTuple):
    """Hold the time and the steps that were asked for."""

    since_ms: int
    until_ms: int
    step_ms: int


def read_time(message: history_pb2.RecentRequest, now: float) -> RecentTime:
    """Return the time that is asked for; it begins with a whole step. Raises RequestError."""
    step = message.step_seconds or STEP_SECONDS
    if not LEAST_STEP_SECONDS <= step <= MAX_STEP_SECONDS:
        raise RequestError(
            f"steps of {step} s are not possible",
            hint=f"give {LEAST_STEP_SECONDS} to {MAX_STEP_SECONDS} seconds",
        )
    since = message.since or now - HOUR_SECONDS
    if not math.isfinite(since) or not now - DAY_SECONDS - MAX_STEP_SECONDS <= since <= now:
        raise RequestError("the time does not begin within the last day", hint="give Unix seconds")
    if (now - since) / step > MAX_STEPS:
        raise RequestError(f"the time has more than {MAX_STEPS} steps", hint="give longer steps")
    step_ms = step * MS_PER_SECOND
    return RecentTime(round(since * MS_PER_SECOND) // step_ms * step_ms, round(now * MS_PER_SECOND), step_ms)


async def recent(
    history: SqliteHistory, points: RecentPoints, recent_time: RecentTime, holders: HistoryFilter
) -> list[history_pb2.RecentGpu]:
    """Return each GPU of the node. ``holders`` selects the leases that the caller may see."""
    holders = replace(holders, since_ms=recent_time.since_ms, until_ms=recent_time.until_ms)
    by_gpu: dict[str, list[Holding]] = defaultdict(list)
    for holding in await history.holdings(holders, MAX_HOLDINGS):
        by_gpu[holding.gpu].append(holding)
    return [
        history_pb2.RecentGpu(
            uuid=gpu.id,
            label=gpu.label,
            name=gpu.model,
            steps=steps(await _points(history, points, gpu.id, recent_time), recent_time.step_ms),
            holdings=map(_holding, sorted(by_gpu[gpu.id], key=attrgetter("since_ms"))),
        )
        for gpu in points.gpus()
    ]


async def _points(
    history: SqliteHistory, points: RecentPoints, gpu: str, recent_time: RecentTime
) -> list[UsePoint]:
    """Return the points in memory, and before them those of the file: the minutes before the daemon's start."""
    newest = points.points(gpu, recent_time.since_ms)
    until_ms = newest[0].at_ms if newest else recent_time.until_ms
    minutes = await history.points(SeriesName("", gpu), recent_time.since_ms, until_ms)
    before = (
        UsePoint(point.at_ms, point.length_ms, point.minute.use_mean_ratio, point.minute.memory_mean_mib)
        for point in minutes
        if recent_time.since_ms <= point.at_ms < until_ms
    )
    return [*before, *newest]


def steps(points: Iterable[UsePoint], step_ms: int) -> list[history_pb2.RecentStep]:
    """Return the mean of the points that begin in each step, weighted by their lengths."""
    by_step: dict[int, list[UsePoint]] = defaultdict(list)
    for point in points:
        by_step[point.at_ms // step_ms].append(point)
    return [
        history_pb2.RecentStep(
            at=number * step_ms / MS_PER_SECOND,
            use_ratio=_mean((point.length_ms, point.use_ratio) for point in step_points),
            memory_used_bytes=None if memory is None else int64(round(memory * MIB)),
        )
        for number, step_points in sorted(by_step.items())
        for memory in (_mean((point.length_ms, point.memory_mib) for point in step_points),)
    ]


def _mean(weighted: Iterable[tuple[int, float | None]]) -> float | None:
    pairs = [(weight, figure) for weight, figure in weighted if figure is not None]
    weights = sum(weight for weight, _ in pairs)
    return sum(weight * figure for weight, figure in pairs) / weights if weights else None


def _holding(holding: Holding) -> history_pb2.RecentHolding:
    return history_pb2.RecentHolding(
        lease=holding.lease,
        owner=holding.owner,
        project=holding.project,
        since=holding.since_ms / MS_PER_SECOND,
        until=holding.until_ms / MS_PER_SECOND,
        share_permille=holding.permille,
        memory_bytes=int64(holding.memory_mib * MIB),
    )
