"""Hold an hour of samples of one series: sums for the hour, and 60 minutes in a packed form.

A series is a GPU, or a lease on a GPU. A minute takes 9 bytes, a third of a row of its own. What a lease held
in a minute is not here, because the spans say it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MINUTES = 60
_SLOT = struct.Struct("<BBBHHH")
_MISSING_BYTE, _MISSING_WORD = 0xFF, 0xFFFF
_MEMORY_UNIT_MIB = 8
"""Memory of up to 512 GiB fits into a word."""
_RATIO_STEPS = 200
EMPTY_MINUTES = _SLOT.pack(0, *[_MISSING_BYTE] * 2, *[_MISSING_WORD] * 3) * MINUTES


@dataclass(frozen=True, slots=True)
class Minute:
    """Hold a minute of a series; a figure is None if no sample of the minute has it.

    ``seen_seconds`` is the time for which the use is known. The memory is a GPU's or the lease's on it.
    """

    seen_seconds: int
    use_mean_ratio: float | None
    use_max_ratio: float | None
    memory_mean_mib: int | None
    memory_max_mib: int | None
    power_watts: int | None


@dataclass(slots=True)
class HourUse:
    """Sum an hour of one series. ``hour`` counts hours of the clock that counts time, since the epoch."""

    hour: int
    seen_permille_ms: int = 0
    """The held compute in the time for which the use is known."""
    active_permille_ms: int = 0
    idle_permille_ms: int = 0
    used_permille_ms: int = 0
    use_max_permille: int = 0
    memory_seen_mib_ms: int = 0
    memory_used_mib_ms: int = 0
    memory_ms: int = 0
    """The time for which the memory is known."""
    memory_max_mib: int = 0
    energy_mj: int = 0
    """The energy in millijoules, by the power while it was known."""
    minutes: bytearray = field(default_factory=lambda: bytearray(EMPTY_MINUTES))
    """The 60 minutes, empty once they are too old to be kept."""

    def put_minute(self, number: int, minute: Minute) -> None:
        """Write a minute of the hour in its place."""
        _SLOT.pack_into(
            self.minutes,
            number * _SLOT.size,
            min(60, minute.seen_seconds),
            _ratio_byte(minute.use_mean_ratio),
            _ratio_byte(minute.use_max_ratio),
            _memory_word(minute.memory_mean_mib),
            _memory_word(minute.memory_max_mib),
            _MISSING_WORD if minute.power_watts is None else min(_MISSING_WORD - 1, minute.power_watts),
        )

    def seen_minutes(self) -> Iterator[tuple[int, Minute]]:
        """Yield the minutes that have a sample, each with its number in the hour."""
        for number in range(len(self.minutes) // _SLOT.size):
            minute = _unpacked(self.minutes, number)
            if minute.seen_seconds or minute.memory_mean_mib is not None:
                yield number, minute


_GREATEST = ("use_max_permille", "memory_max_mib")
_SUMS = tuple(column.name for column in fields(HourUse) if column.name not in {"hour", "minutes", *_GREATEST})


def merged(earlier: HourUse, later: HourUse) -> HourUse:
    """Return the sum of two pieces of the same hour; a minute that both have is the later one's."""
    sums = {name: getattr(earlier, name) + getattr(later, name) for name in _SUMS}
    greatest = {name: max(getattr(earlier, name), getattr(later, name)) for name in _GREATEST}
    minutes = bytearray(earlier.minutes or EMPTY_MINUTES)
    result = HourUse(earlier.hour, **sums, **greatest, minutes=minutes)
    for number, minute in later.seen_minutes():
        result.put_minute(number, minute)
    return result


def growth(whole: HourUse, part: HourUse) -> HourUse:
    """Return what ``merged`` must add to the part of an hour to make the whole."""
    sums = {name: getattr(whole, name) - getattr(part, name) for name in _SUMS}
    return replace(whole, **sums)


def _unpacked(minutes: bytes | bytearray, number: int) -> Minute:
    seen, mean, greatest, memory, memory_max, power = _SLOT.unpack_from(minutes, number * _SLOT.size)
    return Minute(
        seen,
        _ratio(mean),
        _ratio(greatest),
        _memory(memory),
        _memory(memory_max),
        None if power == _MISSING_WORD else power,
    )


def _ratio_byte(ratio: float | None) -> int:
    """Return the ratio in half percents; a use that is not zero stays so."""
    if ratio is None:
        return _MISSING_BYTE
    return max(int(ratio > 0), min(_RATIO_STEPS, round(ratio * _RATIO_STEPS)))


def _ratio(byte: int) -> float | None:
    return None if byte == _MISSING_BYTE else byte / _RATIO_STEPS


def _memory_word(mib: int | None) -> int:
    if mib is None:
        return _MISSING_WORD
    return min(_MISSING_WORD - 1, -(-mib // _MEMORY_UNIT_MIB))


def _memory(word: int) -> int | None:
    return None if word == _MISSING_WORD else word * _MEMORY_UNIT_MIB
