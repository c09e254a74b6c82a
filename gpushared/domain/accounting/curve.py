"""Thin a series of samples to a curve of a few points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class UseSample:
    """Hold a minute or an hour of a lease on a GPU; None was not seen."""

    at_ms: int
    seen_seconds: int
    use_mean_ratio: float | None
    use_max_ratio: float | None
    memory_mean_mib: int | None
    length_ms: int = MINUTE_MS


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Hold a piece of a curve: the mean and the greatest use, and the memory in use on a GPU on average."""

    at_ms: int
    use_ratio: float | None
    use_max_ratio: float | None
    memory_mib: float | None


def curve(samples: Sequence[UseSample], since_ms: int, until_ms: int, count: int) -> list[CurvePoint]:
    """Return ``count`` points or fewer, none shorter than a minute; a piece without samples has no figures.

    The curve begins with a minute of the samples, which may begin before ``since_ms``. A sample that is longer
    than a piece, as an hour is, stands for all its pieces.
    """
    if samples:
        first_ms = min(one.at_ms for one in samples)
        since_ms = first_ms + (since_ms - first_ms) // MINUTE_MS * MINUTE_MS
    step = max(MINUTE_MS, -(-(until_ms - since_ms) // count))
    pieces: dict[int, list[UseSample]] = {}
    for one in samples:
        for at_ms in range(max(one.at_ms, since_ms), one.at_ms + one.length_ms, step):
            pieces.setdefault((at_ms - since_ms) // step, []).append(one)
    total = max(1, -(-(until_ms - since_ms) // step))
    return [_point(since_ms + number * step, pieces.get(number, [])) for number in range(total)]


def _point(at_ms: int, samples: Sequence[UseSample]) -> CurvePoint:
    used = [(one.use_mean_ratio, one.seen_seconds) for one in samples if one.use_mean_ratio is not None]
    seen = sum(seconds for _, seconds in used)
    memory = [one.memory_mean_mib for one in samples if one.memory_mean_mib is not None]
    return CurvePoint(
        at_ms,
        sum(ratio * seconds for ratio, seconds in used) / seen if seen else None,
        max((one.use_max_ratio for one in samples if one.use_max_ratio is not None), default=None),
        sum(memory) / len(memory) if memory else None,
    )


def idle_at_end_ms(samples: Iterable[UseSample], since_ms: int, until_ms: int) -> int:
    """Return how long before the end of a time no kernel was seen to run; 0 if nobody knows.

    Nobody knows what ran in a gap that is longer than the sample before it.
    """
    idle_since = until_ms
    # Of samples at the same time, on several GPUs, those that are not idle come first.
    for one in sorted(samples, key=lambda one: (one.at_ms, one.use_max_ratio != 0), reverse=True):
        is_near = idle_since - (one.at_ms + one.length_ms) <= one.length_ms
        if one.use_max_ratio is None or one.use_max_ratio > 0 or not is_near:
            break
        idle_since = one.at_ms
    return max(0, until_ms - max(since_ms, idle_since))
