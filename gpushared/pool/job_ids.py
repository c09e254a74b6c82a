"""Ids of jobs."""

from __future__ import annotations

import secrets
from hashlib import sha256

from gpushared.domain.jobs.model import JobId

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 (https://www.crockford.com/base32.html), which nobody misreads."""
LENGTH = 10
BITS = 5


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
