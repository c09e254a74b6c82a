"""What a user may say of a job at its submission, as far as it can be read without knowing the pool."""

from __future__ import annotations

import re

from gpushared.domain.errors import RequestError
from gpushared.domain.units import shown

MAX_ARRAY = 10_000
"""Jobs of one array."""
MAX_INDEX = 999_999
MAX_ARRAY_TEXT = 4096
MAX_RETRIES = 100
LONGEST_STOP_AFTER_SECONDS = 30 * 24 * 3600
SHORTEST_STOP_AFTER_SECONDS = 30
"""A node's beat may be late by some seconds without anything being wrong."""
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def check_bounds(number: int, least: int, most: int, what: str) -> int:
    """The number. Raises RequestError where it is out of bounds."""
    if not least <= number <= most:
        raise RequestError(f"{number} {what} are not possible", hint=f"give {least} to {most}")
    return number


def read_array(text: str) -> tuple[int, ...]:
    """The numbers of ``0-99`` or ``1,3,5-9`` in order, each once; empty for no array. Raises RequestError."""
    if not text:
        return ()
    numbers: set[int] = set()
    for part in text[:MAX_ARRAY_TEXT].split(","):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first:
            hint = "write 0-99 or 1,3,5-9, up to 999999"
            if "%" in part:
                hint += "; how many run at once is no part of it: each waits for room by itself"
            raise RequestError(f"{shown(text)} are no numbers of an array", hint=hint)
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
