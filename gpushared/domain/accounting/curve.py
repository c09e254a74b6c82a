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
        first_ms = min(sample.at_ms for sample in samples)
        since_ms = first_ms + (since_ms - first_ms) // MINUTE_MS * MINUTE_MS
    step = max(MINUTE_MS, -(-(until_ms - since_ms) // count))
    pieces: dict[int, list[UseSample]] = {}
    for sample in samples:
        for at_ms in range(max(sample.at_ms, since_ms), sample.at_ms + sample.length_ms, step):
            pieces.setdefault((at_ms - since_ms) // step, []).append(sample)
    total = max(1, -(-(until_ms - since_ms) // step))
    return [_point(since_ms + number * step, pieces.get(number, [])) for number in range(total)]


def _point(at_ms: int, samples: Sequence[UseSample]) -> CurvePoint:
    used = [
        (sample.use_mean_ratio, sample.seen_seconds)
        for sample in samples
        if sample.use_mean_ratio is not None
    ]
    seen = sum(seconds for _, seconds in used)
    memory = [sample.memory_mean_mib for sample in samples if sample.memory_mean_mib is not None]
    return CurvePoint(
        at_ms,
        sum(ratio * seconds for ratio, seconds in used) / seen if seen else None,
        max((sample.use_max_ratio for sample in samples if sample.use_max_ratio is not None), default=None),
        sum(memory) / len(memory) if memory else None,
    )


def idle_at_end_ms(samples: Iterable[UseSample], since_ms: int, until_ms: int) -> int:
    """Return how long before the end of a time no kernel was seen to run; 0 if nobody knows.

    Nobody knows what ran in a gap that is longer than the sample before it.
    """
    idle_since = until_ms
    # Of samples at the same time, on several GPUs, those that are not idle come first.
    for sample in sorted(samples, key=lambda sample: (sample.at_ms, sample.use_max_ratio != 0), reverse=True):
        is_near = idle_since - (sample.at_ms + sample.length_ms) <= sample.length_ms
        if sample.use_max_ratio is None or sample.use_max_ratio > 0 or not is_near:
            break
        idle_since = sample.at_ms
    return max(0, until_ms - max(since_ms, idle_since))
