"""Ids of jobs, and the numbers of an array's."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256

from gpushared.domain.errors import RequestError
from gpushared.domain.jobs.model import JobId
from gpushared.domain.units import shown

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 (https://www.crockford.com/base32.html), which nobody misreads."""
LENGTH = 10
BITS = 5
MAX_ARRAY = 10_000
"""Jobs of one array."""
MAX_INDEX = 999_999
MAX_ARRAY_TEXT = 4096
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def new_id(principal: str, request_id: str) -> JobId:
    """Nobody else's: made by chance, or of who asks and their own id of the request.

    So a request that is repeated names the same jobs, also where the first one was half kept.
    """
    if not request_id:
        return _id(secrets.randbits(LENGTH * BITS))
    digest = sha256(f"{principal}\0{request_id}".encode()).digest()
    return _id(int.from_bytes(digest, "big") >> (len(digest) * 8 - LENGTH * BITS))


def _id(number: int) -> JobId:
    places = range((LENGTH - 1) * BITS, -1, -BITS)
    return JobId("".join(ALPHABET[number >> place & (1 << BITS) - 1] for place in places))


def id_in_array(array: JobId, index: int) -> JobId:
    return JobId(f"{array}_{index}")


def is_array_id(text: str) -> bool:
    """Whether it looks like the id of an array, or of a job in none."""
    return len(text) == LENGTH and all(letter in ALPHABET for letter in text)


def is_job_id(text: str) -> bool:
    """Whether it looks like the whole id of a job."""
    array, underscore, number = text.partition("_")
    return is_array_id(array) and (not underscore or (number.isascii() and number.isdecimal()))


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
