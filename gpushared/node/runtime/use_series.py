"""Gather samples into minutes and hours: a series for each GPU, and for each lease on a GPU."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpushared.storage.history.hour_use import HOUR_MS, MINUTE_MS, HourUse, Minute, growth

RECENT_STEP_SECONDS = 10
_UNKNOWN = -1


@dataclass(slots=True)
class _MinuteSums:
    """Sum the samples of one minute."""

    seen_ms: int = 0
    used_ms: float = 0.0
    """The sum of each use, as a ratio, times its milliseconds."""
    use_max_ratio: float = 0.0
    memory_ms: int = 0
    memory_mib_ms: int = 0
    memory_max_mib: int = 0
    power_ms: int = 0
    energy_mj: float = 0.0
    held_permille: int = 0
    held_mib: int = 0

    def take(self, sample: SeriesSample, ms: int) -> None:
        self.held_permille, self.held_mib = sample.held_permille, sample.held_mib
        if sample.use_ratio is not None:
            self.seen_ms += ms
            self.used_ms += sample.use_ratio * ms
            self.use_max_ratio = max(self.use_max_ratio, sample.use_ratio)
        if sample.memory_mib is not None:
            self.memory_ms += ms
            self.memory_mib_ms += sample.memory_mib * ms
            self.memory_max_mib = max(self.memory_max_mib, sample.memory_mib)
        if sample.power_watts is not None:
            self.power_ms += ms
            self.energy_mj += sample.power_watts * ms

    @property
    def as_minute(self) -> Minute:
        seen_ms, memory_ms = self.seen_ms, self.memory_ms
        return Minute(
            seen_seconds=min(60, max(int(seen_ms > 0), round(seen_ms / 1000))),
            use_mean_ratio=self.used_ms / seen_ms if seen_ms else None,
            use_max_ratio=self.use_max_ratio if seen_ms else None,
            memory_mean_mib=round(self.memory_mib_ms / memory_ms) if memory_ms else None,
            memory_max_mib=self.memory_max_mib if memory_ms else None,
            power_watts=round(self.energy_mj / self.power_ms) if self.power_ms else None,
        )

    def add_to(self, hour: HourUse) -> None:
        """Add the minute to the sums of its hour. The whole minute is active if any kernel ran in it."""
        hour.seen_permille_ms += self.held_permille * self.seen_ms
        if self.use_max_ratio > 0:
            hour.active_permille_ms += self.held_permille * self.seen_ms
        else:
            hour.idle_permille_ms += self.held_permille * self.seen_ms
        hour.used_permille_ms += round(self.held_permille * self.used_ms)
        hour.use_max_permille = max(hour.use_max_permille, round(self.use_max_ratio * 1000))
        hour.memory_seen_mib_ms += self.held_mib * self.memory_ms
        hour.memory_used_mib_ms += self.memory_mib_ms
        hour.memory_ms += self.memory_ms
        hour.memory_max_mib = max(hour.memory_max_mib, self.memory_max_mib)
        hour.energy_mj += round(self.energy_mj)


@dataclass(frozen=True, slots=True)
class SeriesSample:
    """Hold one sample of a series; None is unknown. ``held_...`` is what the lease held then, or the GPU has."""

    held_permille: int
    held_mib: int
    use_ratio: float | None
    memory_mib: int | None
    power_watts: float | None = None


class Recent:
    """Keep the last hours of a series in memory, a point each ten seconds, in a ring of packed figures."""

    def __init__(self, hours: int) -> None:
        self._points = hours * 3600 // RECENT_STEP_SECONDS
        self._use_permille = array("h", [_UNKNOWN]) * self._points
        self._memory_mib = array("i", [_UNKNOWN]) * self._points
        self._newest = -1

    def put(self, at_ms: int, sample: SeriesSample) -> None:
        """Keep the newest sample of each ten seconds."""
        number = at_ms // (RECENT_STEP_SECONDS * 1000)
        for skipped in range(max(self._newest + 1, number - self._points + 1), number):
            self._set(skipped, _UNKNOWN, _UNKNOWN)
        use = _UNKNOWN if sample.use_ratio is None else round(sample.use_ratio * 1000)
        self._set(number, use, _UNKNOWN if sample.memory_mib is None else sample.memory_mib)
        self._newest = number

    def _set(self, number: int, use_permille: int, memory_mib: int) -> None:
        self._use_permille[number % self._points] = use_permille
        self._memory_mib[number % self._points] = memory_mib

    def points(self, since_ms: int) -> Iterator[tuple[int, float | None, int | None]]:
        """Yield the time in milliseconds, the use as a ratio, and the memory in MiB, of the known points."""
        step_ms = RECENT_STEP_SECONDS * 1000
        if self._newest < 0:
            return
        for number in range(max(since_ms // step_ms, self._newest - self._points + 1, 0), self._newest + 1):
            use, memory = (ring[number % self._points] for ring in (self._use_permille, self._memory_mib))
            if use != _UNKNOWN or memory != _UNKNOWN:
                yield (
                    number * step_ms,
                    None if use == _UNKNOWN else use / 1000,
                    None if memory == _UNKNOWN else memory,
                )


class UseSeries:
    """Gather one series. Samples come in the order of their times."""

    def __init__(self, recent_hours: int) -> None:
        self.recent = Recent(recent_hours)
        self._hours: dict[int, HourUse] = {}
        """The minutes that are over, by hour: of the present hour, and of those that ended since ``changes``."""
        self._reported: dict[int, HourUse] = {}
        """The sum of all that ``changes`` has returned for the present hour."""
        self._minute_at = -1
        self._minute = _MinuteSums()
        self._touched = False

    def take(self, at_ms: int, sample: SeriesSample, ms: int) -> None:
        """Take a sample that stands for the ``ms`` milliseconds before it."""
        number = at_ms // MINUTE_MS
        if number != self._minute_at:
            if self._minute_at >= 0:
                self._add_minute_to(self._hours)
            self._minute_at, self._minute = number, _MinuteSums()
        self._minute.take(sample, ms)
        self.recent.put(at_ms, sample)
        self._touched = True

    def changes(self) -> list[HourUse]:
        """Return the growth of each hour since the last call.

        The present minute is in them as far as it is known: if a kernel runs in its rest, the next changes
        turn it from idle to active.
        """
        if not self._touched:
            return []
        self._touched = False
        hours = {
            number: replace(hour, minutes=bytearray(hour.minutes)) for number, hour in self._hours.items()
        }
        present = self._add_minute_to(hours)
        grown = [
            growth(hour, self._reported[number]) if number in self._reported else hour
            for number, hour in hours.items()
        ]
        self._reported = {present: hours[present]}
        self._hours = {number: hour for number, hour in self._hours.items() if number == present}
        return grown

    def _add_minute_to(self, hours: dict[int, HourUse]) -> int:
        """Add the present minute to its hour, and return the hour's number."""
        begin_ms = self._minute_at * MINUTE_MS
        number = begin_ms // HOUR_MS
        hour = hours.setdefault(number, HourUse(number))
        self._minute.add_to(hour)
        hour.put_minute(begin_ms % HOUR_MS // MINUTE_MS, self._minute.as_minute)
        return number
