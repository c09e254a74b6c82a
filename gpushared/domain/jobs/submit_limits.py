"""Check a user's submission of a job, as far as that is possible without the pool."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown

MAX_ARRAY = 10_000
"""An array has at most this many jobs."""
MAX_INDEX = 999_999
MAX_ARRAY_TEXT = 4096
MAX_RETRIES = 100
LONGEST_STOP_AFTER_SECONDS = 30 * 24 * 3600
SHORTEST_STOP_AFTER_SECONDS = 30
"""A node's heartbeat may be late by some seconds without anything being wrong."""
_THROTTLE = re.compile(r"([^%]*)%(\d{1,5})", re.ASCII)
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def check_bounds(number: int, least: int, most: int, noun: str) -> int:
    """Return the number. Raises RequestError if it is out of bounds."""
    if not least <= number <= most:
        raise RequestError(f"{number} {noun} are not possible", hint=f"give {least} to {most}")
    return number


class ParsedArray(NamedTuple):
    """Hold the parsed array. ``numbers`` are in order, each once; at most ``limit`` jobs run at once.

    ``numbers`` is empty if there is no array.
    """

    numbers: tuple[int, ...]
    limit: int | None = None


def read_array(text: str) -> ParsedArray:
    """Read ``0-99``, ``1,3,5-9`` or ``0-99%4``. Raise RequestError."""
    if "%" not in text:
        return ParsedArray(_numbers(text))
    match = _THROTTLE.fullmatch(text[:MAX_ARRAY_TEXT])
    if match is None or not match[1] or not int(match[2]):
        raise RequestError(
            f"{shown(text)} does not say how many jobs of an array run at once",
            hint="write 0-99%4 for at most 4 of them at once",
        )
    return ParsedArray(_numbers(match[1]), int(match[2]))


def _numbers(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    numbers: set[int] = set()
    for part in text[:MAX_ARRAY_TEXT].split(","):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first:
            raise RequestError(
                f"{shown(text)} are no numbers of an array",
                hint="write 0-99 or 1,3,5-9, up to 999999; 0-99%4 for at most 4 of them at once",
            )
        if len(numbers) + last - first >= 2 * MAX_ARRAY:
            raise _too_many()
        numbers.update(range(first, last + 1))
    if len(numbers) > MAX_ARRAY or len(text) > MAX_ARRAY_TEXT:
        raise _too_many()
    return tuple(sorted(numbers))


def _too_many() -> RequestError:
    return RequestError(
        f"an array has at most {MAX_ARRAY} jobs", hint="divide it, or let each job do more of the work"
    )
