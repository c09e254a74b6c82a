"""Ids of jobs: which id a request gives its job, and whether a job has the id that its request gives."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256

from gpushared.domain.jobs.job import JobSpec
from gpushared.domain.model.lease import JobId

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 (https://www.crockford.com/base32.html), which nobody misreads."""
BITS = 5
LENGTH = 13
"""65 bits: nobody finds a request of their own that gives the id of another's."""
OLDER_LENGTH = 10
"""Of ids of the releases up to 0.1, which also gave ids by chance."""
REQUEST_ID_BYTES = 16


def new_request_id() -> str:
    """For a request that has none, so that each job's id is what its owner and its request give."""
    return secrets.token_hex(REQUEST_ID_BYTES)


def id_of(principal: str, request_id: str) -> JobId:
    """The id of the job of a request, or of its array.

    A request that is repeated names the same jobs, also where the first one was half kept, and through
    whichever node it comes. Nobody else's request names them.
    """
    return _id(principal, request_id, LENGTH)


def older_id_of(principal: str, request_id: str) -> JobId:
    """The same as releases up to 0.1 gave it."""
    return _id(principal, request_id, OLDER_LENGTH)


def id_for(principal: str, request_id: str, is_known: Callable[[JobId], bool]) -> JobId:
    """The id that a request had from an older release, where a job is known by that id, else the new one."""
    older = older_id_of(principal, request_id)
    return older if is_known(older) else id_of(principal, request_id)


def _id(principal: str, request_id: str, length: int) -> JobId:
    digest = sha256(f"{principal}\0{request_id}".encode()).digest()
    number = int.from_bytes(digest, "big") >> (len(digest) * 8 - length * BITS)
    places = range((length - 1) * BITS, -1, -BITS)
    return JobId("".join(ALPHABET[number >> place & (1 << BITS) - 1] for place in places))


def id_in_array(array: JobId, index: int) -> JobId:
    return JobId(f"{array}_{index}")


def is_own_id(job: JobId, spec: JobSpec) -> bool:
    """Return True if a request of the job's owner gives the job that id.

    An id that an older release gave by chance counts as well: no newer request can be given one of that form.
    """
    base = spec.array or job
    if job != (base if spec.index is None else id_in_array(base, spec.index)):
        return False
    if (spec.array is None) != (spec.index is None):
        return False
    principal, request_id = spec.owner.principal, spec.request_id
    if not request_id:
        return _looks_as(base, OLDER_LENGTH)
    return base in {id_of(principal, request_id), older_id_of(principal, request_id)}


def is_array_id(text: str) -> bool:
    """Return True if the text looks like the id of an array, or of a job in none."""
    return any(_looks_as(text, length) for length in (LENGTH, OLDER_LENGTH))


def is_job_id(text: str) -> bool:
    """Return True if the text looks like the whole id of a job."""
    array, underscore, number = text.partition("_")
    return is_array_id(array) and (not underscore or (number.isascii() and number.isdecimal()))


def _looks_as(text: str, length: int) -> bool:
    return len(text) == length and all(letter in ALPHABET for letter in text)
