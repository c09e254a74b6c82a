"""Whether a word names a job or a lease."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from gpushared.cli.job_places import Place, docker_host_for
from gpushared.client import Client, Lease
from gpushared.client.job_messages import Job
from gpushared.client.jobs import Jobs
from gpushared.domain.errors import NotFound, StateConflict

LEASE = "l-"
_Found = TypeVar("_Found")
_JOB = re.compile(r"[0-9a-hjkmnp-tv-z]{10}(?:_\d{1,6})?")
"""Crockford's base 32, as the daemon makes ids; tests hold the two together."""


def is_job_id(word: str) -> bool:
    """Whether it looks like a job's whole id; names of containers may look so too."""
    return _JOB.fullmatch(word) is not None


def may_be_array(word: str) -> bool:
    return is_job_id(word) and "_" not in word


def first_found(word: str, of_lease: Callable[[str], _Found], of_job: Callable[[str], _Found]) -> _Found:
    """What the lease or the job of that name gives; raises NotFound.

    What looks like a job's id is looked for among jobs first, anything else among leases, which are all here.
    """
    if word.startswith(LEASE):
        return of_lease(word)
    first, second = (of_job, of_lease) if is_job_id(word) else (of_lease, of_job)
    with suppress(NotFound):
        return first(word)
    try:
        return second(word)
    except NotFound:
        raise NotFound(
            f"there is no job, lease or container {word[:80]!r}",
            hint="`gpushare jobs` and `gpushare ps` list them",
        ) from None


def container_named(
    client: Client,
    word: str,
    rank: int = 0,
    attempt_of: Callable[[Job], int] = lambda job: job.attempt,
) -> Place:
    """Where the container of a job or of a lease is. Raises NotFound, StateConflict.

    ``attempt_of`` says which attempt at the job is meant, and may refuse.
    """
    jobs = Jobs(client)

    def of_job(name: str) -> Place:
        job = jobs.get(name)
        return docker_host_for(client, job, rank, attempt_of(job))

    return first_found(word, lambda name: _of_lease(client, client.get(name), attempt_of), of_job)


def _of_lease(client: Client, lease: Lease, attempt_of: Callable[[Job], int]) -> Place:
    if not lease.container_id and lease.job_id:
        job = Jobs(client).get(lease.job_id)
        return docker_host_for(client, job, attempt=attempt_of(job))
    if not lease.container_id:
        raise StateConflict(
            f"lease {lease.id} is {lease.state} and shows you no container",
            hint=f"its story: gpushare why {lease.id}",
        )
    return Place(f"unix://{client.path}", lease.container_id)


def set_held(client: Client, word: str, *, held: bool) -> str:
    """Holds a lease or a job, or lets it go; returns its id. Raises NotFound, StateConflict."""
    jobs = Jobs(client)
    return first_found(
        word,
        lambda name: client.hold(name, held=held).id,
        lambda name: jobs.hold(name, held=held).id,
    )
